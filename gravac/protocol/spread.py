"""How a window's times spread over the ranks: a few quantiles, however many ranks there are."""

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from gravac.protocol.fields import Record, Seconds

QUANTILES = (0.0, 0.5, 0.9, 1.0)
"""Lowest, median, the one that nine ranks of ten stay within, highest."""
Quantiles = Annotated[tuple[Seconds, ...], Field(min_length=4, max_length=4)]


class Spread(Record):
    """Over all ranks, of one rank's seconds in the window: lowest, median, 90 % and highest, to the microsecond.

    Each is the time of some rank, but of each phase another one. ``step_seconds``: all phases.
    """

    step_seconds: Quantiles  # all phases
    data_wait: Quantiles  # for the next batch
    compute: Quantiles  # forward, backward, optimiser
    compress: Quantiles  # encoding
    communicate: Quantiles  # waiting for the network
    decompress: Quantiles  # decoding


def quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """``QUANTILES`` of at least one value, by nearest rank: always values that are there."""
    ordered = sorted(values)
    return tuple(round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 6) for share in QUANTILES)
