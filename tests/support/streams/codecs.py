"""Which codecs are trained on streams, and how their CFs are switched."""

import itertools

from gravac.aggregators import AGGREGATORS
from gravac.compressors import COMPRESSORS, build

CHOSEN = (
    "dense", "bf16", "topk", "topk+bf16", "randomk", "blockrandomk", "mstopk", "dgc", "int8", "onebit", "powersgd",
)  # fmt: skip
"""One of each kind. All but ``dgc`` read nothing of a device."""
CFS = (1.0, 10.0, 4.0, 2.0, 10.0, 3.0, 1.0, 20.0)
"""No two neighbors are the same, so that each step switches."""


def fast() -> tuple[str, ...]:
    """Return the chosen codecs and all other codecs and aggregators that read nothing of a device."""
    codecs = [name for name in sorted(COMPRESSORS) if build(name).traits.sync_free]
    aggregators = [name for name in sorted(AGGREGATORS) if AGGREGATORS[name].sync_free]
    return tuple(dict.fromkeys([*CHOSEN, *codecs, *aggregators]))


def switching(steps: int) -> tuple[float, ...]:
    """Return the CFs of that many steps, with one switch fewer."""
    return tuple(itertools.islice(itertools.cycle(CFS), steps))
