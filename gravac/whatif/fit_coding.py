"""Encoding and decoding by CF, from what windows say that steps waited for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gravac.whatif import robust
from gravac.whatif.timemodel import CODING_POWER, coded

if TYPE_CHECKING:
    from gravac.whatif.fit import Sample

COMPRESS_SECONDS_PER_ELEMENT = 2e-9
COMPRESS_SECONDS_PER_CODED = 1e-8
DECOMPRESS_SECONDS_PER_CODED = 4e-9
"""Top-k's own kernels on one core of an AMD EPYC: of 262,144 elements, CF 10 against CF 1000. Taken where a trace does
not show its own."""


@dataclass(frozen=True, slots=True)
class Coding:
    """Terms of ``TimeModel`` by the same names, and what the trace could not tell of them."""

    compress_seconds: float
    compress_seconds_per_coded: float
    decompress_seconds_per_coded: float
    unknown: tuple[str, ...]


def fit(samples: Sequence["Sample"], elements: int) -> Coding:
    """compress = constant + coded · slope, decompress = payloads decoded · coded · slope. Two CFs tell all."""
    known = [each for each in samples if each.seen.cf > 1.0 and each.seen.compress_seconds is not None]
    factors = sorted({each.seen.cf for each in known})
    if len(factors) > 1:
        compress = _line(known, elements, lambda each: each.seen.compress_seconds or 0.0, decoded=False)
        decompress = _line(known, elements, lambda each: each.seen.decompress_seconds or 0.0, decoded=True)
        return Coding(compress[0] + decompress[0], compress[1], decompress[1], ())
    if not known:
        constant = COMPRESS_SECONDS_PER_ELEMENT * elements
        said = (
            "encoding: no window was at one CF throughout, so it counts what Top-k takes on another machine, "
            f"{constant * 1e3:.3g} ms and {COMPRESS_SECONDS_PER_CODED * 1e9:.3g} ns · elements / CF^{CODING_POWER:g}"
        )
        return Coding(constant, COMPRESS_SECONDS_PER_CODED, DECOMPRESS_SECONDS_PER_CODED, (said,))
    seen, count = known[0], coded(elements, factors[0])
    slope = min(COMPRESS_SECONDS_PER_CODED, (seen.seen.compress_seconds or 0.0) / count)
    decoding = (seen.seen.decompress_seconds or 0.0) / (count * seen.volume.decoded)
    said = (
        f"encoding by CF: only CF {factors[0]:g} was sent; {slope * 1e9:.3g} ns · elements / CF^{CODING_POWER:g} of "
        "it, as elsewhere"
    )
    return Coding((seen.seen.compress_seconds or 0.0) - slope * count, slope, min(decoding, 1e-6), (said,))


def _line(
    known: Sequence["Sample"], elements: int, seconds: Callable[["Sample"], float], decoded: bool
) -> tuple[float, ...]:
    rows = [(1.0, coded(elements, each.seen.cf) * (each.volume.decoded if decoded else 1)) for each in known]
    size = [max(each.seen.seconds, 1e-9) for each in known]
    return robust.fit(rows, [seconds(each) for each in known], size, [each.weight for each in known]).terms
