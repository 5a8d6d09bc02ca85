"""DGC's selection: a threshold from a sample, then exact Top-k among the few elements above it."""

from dataclasses import replace

from gravac import kernels
from gravac.compressors.base import Bound, Key, kept
from gravac.compressors.sparse.selector import PLAIN
from gravac.compressors.sparse.survivors import Passed, Survivors, Thresholded

_ROUNDS = 10


class DGC(Thresholded):
    """Threshold = the sample's k/n quantile of ``|x|``; lowered by a fifth while it lets less than 0.8 k through.

    More than k: Top-k among those ("hierarchical"). So it sends between 0.8 k and k elements, and exactly the largest
    ones, after a pass over n elements and a sort of few. The sample is strided from a random start.
    """

    name = "dgc"
    source = "Lin et al. 2018, Deep Gradient Compression, sampled threshold with hierarchical selection"
    traits = replace(PLAIN, fixed_size=False, nested=False)

    def __init__(self, *, sample: float = 0.01) -> None:
        if not 0 < sample <= 1:
            raise ValueError(f"dgc: sample={sample} must be a share of the elements in (0, 1]")
        self.sample = sample

    def find(self, survivors: Survivors, cf: float, key: Key) -> Passed:
        n = survivors.x.numel()
        k = kept(n, cf)
        stride = max(1, int(n / max(self.sample * n, 2 * cf)))  # the sample must hold a few of those to find
        sampled = survivors.sample(key.own_seed() % stride, stride)
        count = min(sampled.numel(), max(1, round(sampled.numel() * k / n)))
        level = float(kernels.take_top(sampled, count)[1].abs().amin())
        for _ in range(_ROUNDS):
            if survivors.above(level).count >= 0.8 * k:
                break
            level *= 0.8
        return survivors.above(level).largest(k)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(
            delta=1.0 / numel
        )  # always the largest elements, at least one; k of them in the usual case
