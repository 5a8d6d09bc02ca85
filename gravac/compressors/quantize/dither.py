"""Dither: every element is rounded at random to a few equally spaced levels of its block, and clipped."""

import math

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload
from gravac.compressors.quantize.nearest import Nearest
from gravac.kernels import GRIDS, dither

SPREADS = {15: 1.25, 7: 1.4, 5: 1.5, 3: 1.75}
"""By the number of levels: the spacing, as a multiple of the one that ``nearest`` takes."""


class Dither(Nearest):
    """Rounds every element at random to one of the two levels around it, and clips what lies beyond the outermost.

    ``nearest`` sends a small element only once error feedback has added it up for many steps; this sends it at once,
    on average. Of SGD with momentum that loses less, of Adam's kind more. The levels are wider apart than those of
    ``nearest``, so few elements are clipped; QSGD clips none, and its levels are wider still. Same bytes as
    ``nearest``.

    ``levels``: 15, 7, 5 or 3; by default the CF asked for decides. ``spread``: the spacing as a multiple of that of
    ``nearest``; by default 1.25, 1.4, 1.5 and 1.75. ``block``: elements that share a spacing, B. ``E‖C(x) - x‖² <= (1 +
    1.01 spread √B) ‖x‖²``.
    """

    name = "dither"
    source = "Alistarh et al. 2017, QSGD, §3.1, for the rounding; Wen et al. 2017, TernGrad, §4, for clipping before it"
    examples: tuple[str, ...] = ("levels=15", "levels=7,block=7", "levels=5", "levels=3", "levels=3,spread=3")
    ladder = tuple(levels for levels, grid in GRIDS.items() if grid.reaches)

    def __init__(self, *, levels: int | None = None, spread: float | None = None, block: int = 64) -> None:
        super().__init__(levels=levels, block=block)
        if spread is not None and not (spread > 0 and math.isfinite(spread)):
            raise ValueError(f"{self.name}: spread={spread} must be above 0 and finite, such as 1.5")
        self.spread_asked = spread

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        levels = self.level_count(cf)
        parts = dither(x, self.block, levels, self._spread(cf), key.own_seed())
        return Payload(parts, None, x.numel(), cf, key)

    def bound(self, numel: int, cf: float) -> Bound:
        """A spacing d is at most ``spread`` times the block's largest magnitude, as levels are whole numbers. An
        element's expected squared error is at most ``|x| d``, or ``x²`` where it is clipped; and ``Σ|x| <= √B ‖x‖``.
        """
        return Bound(omega=1.0 + 1.01 * self._spread(cf) * math.sqrt(min(numel, self.block)))

    def _spread(self, cf: float) -> float:
        return self.spread_asked or SPREADS[self.level_count(cf)]
