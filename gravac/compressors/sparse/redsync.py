"""RedSync's two selections: thresholds between the mean and the maximum of ``|x|``."""

from dataclasses import replace

from gravac.compressors.base import Bound, Key, kept
from gravac.compressors.sparse.selector import PLAIN
from gravac.compressors.sparse.survivors import Passed, Survivors, Thresholded
from gravac.compressors.sparse.topk import TopK

_SOURCE = "Fang et al. 2019, RedSync"


class TrimmedTopK(TopK):
    """Published as: lower the threshold from the maximum in fifths until k elements pass, then Top-k among those.

    That is Top-k exactly, ties included, so it is found the way Top-k is, which is faster.
    """

    name = "redsync-trimmed"
    source = f"{_SOURCE}, trimmed top-k"


class RedSync(Thresholded):
    """Bisect for a threshold that lets k to 2k elements pass, and send what passes.

    Where counts jump past that, the 2k largest go. It never looks below the mean, so for a CF under about 3 it sends
    less than k: believe the CF achieved, not the one asked for. (Public code stops at a ``tolerance`` of 0.2 and takes
    what it then has, down to a hundredth of k.)
    """

    name = "redsync"
    source = f"{_SOURCE}, threshold binary search"
    traits = replace(PLAIN, fixed_size=False, nested=False)

    def __init__(self, *, tolerance: float = 1e-3) -> None:
        if not 0 < tolerance < 1:
            raise ValueError(f"redsync: tolerance={tolerance} must be between 0 and 1")
        self.tolerance = tolerance

    def find(self, survivors: Survivors, cf: float, key: Key) -> Passed:
        k, mean, top = kept(survivors.x.numel(), cf), survivors.mean(), survivors.top
        low, high = 0.0, 1.0
        while high - low > self.tolerance:
            middle = (low + high) / 2
            count = survivors.count(mean + middle * (top - mean))
            if k <= count <= 2 * k:
                low = middle
                break
            if count < k:
                high = middle
            else:
                low = middle
        return survivors.above(min(top, mean + low * (top - mean))).largest(2 * k)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=1.0 / numel)  # the largest elements, at least one
