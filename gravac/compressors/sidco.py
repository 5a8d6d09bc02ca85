"""SIDCo: the threshold an exponential tail would have, fitted again on what passed until the count is right."""

import math
from dataclasses import replace

from torch import Tensor

from gravac.compressors.base import Bound, Key, kept
from gravac.compressors.hardthreshold import above
from gravac.compressors.selector import PLAIN, Indexed
from gravac.kernels import select_top

_STAGE = 0.25
"""Share a stage may cut down to. One fit for the whole tail misses it when gradients are not exponential."""


class SIDCo(Indexed):
    """If ``|x|`` were exponential, a share r of it would lie above ``-mean · ln r``.

    Stage by stage: the excess over the last threshold is fitted anew and cut to a quarter, the last stage to what is
    left. Sends about k elements, never more than 2k; the CF achieved is the payload's.
    """

    name = "sidco"
    source = "Abdelmoniem et al. 2021, SIDCo-E: multi-stage fit of an exponential"
    traits = replace(PLAIN, fixed_size=False, nested=False)

    def choose(self, x: Tensor, cf: float, key: Key) -> Tensor:
        n, k = x.numel(), kept(x.numel(), cf)
        magnitudes = x.float().abs()
        level, exceeding = 0.0, magnitudes
        while exceeding.numel() > k:
            share = max(_STAGE, k / exceeding.numel())
            step = float((exceeding - level).mean()) * -math.log(share)
            above_next = exceeding[above(exceeding, level + step)]
            if above_next.numel() in (0, exceeding.numel()):
                break
            level += step
            exceeding = above_next
            if share > _STAGE:
                break
        found = above(magnitudes, level)
        limit = min(n, 2 * k)
        return found if found.numel() <= limit else found[select_top(magnitudes[found], limit)]

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=1.0 / numel)  # the largest elements, at least one
