"""SIDCo: the threshold an exponential tail would have, fitted again on what passed until the count is right."""

import math
from dataclasses import replace

from gravac.compressors.base import Bound, Key, kept
from gravac.compressors.sparse.selector import PLAIN
from gravac.compressors.sparse.survivors import Passed, Survivors, Thresholded

_STAGE = 0.25
"""Share a stage may cut down to. One fit for the whole tail misses it when gradients are not exponential."""


class SIDCo(Thresholded):
    """If ``|x|`` were exponential, a share r of it would lie above ``-mean · ln r``.

    Stage by stage: the excess over the last threshold is fitted anew and cut to a quarter, the last stage to what is
    left. Sends about k elements, never more than 2k; the CF achieved is the payload's.
    """

    name = "sidco"
    source = "Abdelmoniem et al. 2021, SIDCo-E: multi-stage fit of an exponential"
    traits = replace(PLAIN, fixed_size=False, nested=False)

    def find(self, survivors: Survivors, cf: float, key: Key) -> Passed:
        n = survivors.x.numel()
        k, level, exceeding = kept(n, cf), 0.0, n
        while exceeding > k:
            share = max(_STAGE, k / exceeding)
            following = level + (survivors.mean(level) - level) * -math.log(share)
            count = survivors.above(following).count
            if count in (0, exceeding):
                break
            level, exceeding = following, count
            if share > _STAGE:
                break
        return survivors.above(level).largest(min(n, 2 * k))

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=1.0 / numel)  # the largest elements, at least one
