"""RedSync's two selections: thresholds between the mean and the maximum of ``|x|``."""

from dataclasses import replace

from torch import Tensor

from gravac.compressors.base import Bound, Key, kept
from gravac.compressors.hardthreshold import above
from gravac.compressors.selector import PLAIN, Indexed
from gravac.compressors.topk import TopK
from gravac.kernels import select_top

_SOURCE = "Fang et al. 2019, RedSync"


class TrimmedTopK(TopK):
    """Lower the threshold from the maximum in fifths until k elements pass, then Top-k among those: Top-k exactly."""

    name = "redsync-trimmed"
    source = f"{_SOURCE}, trimmed top-k"

    def choose(self, x: Tensor, cf: float, key: Key) -> Tensor:
        k, magnitudes = kept(x.numel(), cf), x.float().abs()
        mean, top = float(magnitudes.mean()), float(magnitudes.max())
        share, survivors = 0.8, above(magnitudes, mean + 0.8 * (top - mean))
        while survivors.numel() < k:
            share -= 0.2
            survivors = above(magnitudes, max(0.0, mean + share * (top - mean)))
        return survivors[select_top(magnitudes[survivors], k)]


class RedSync(Indexed):
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

    def choose(self, x: Tensor, cf: float, key: Key) -> Tensor:
        k, magnitudes = kept(x.numel(), cf), x.float().abs()
        mean, top = float(magnitudes.mean()), float(magnitudes.max())
        low, high = 0.0, 1.0
        while high - low > self.tolerance:
            middle = (low + high) / 2
            count = above(magnitudes, mean + middle * (top - mean)).numel()
            if k <= count <= 2 * k:
                low = middle
                break
            if count < k:
                high = middle
            else:
                low = middle
        found = above(magnitudes, min(top, mean + low * (top - mean)))
        return found if found.numel() <= 2 * k else found[select_top(magnitudes[found], 2 * k)]

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=1.0 / numel)  # the largest elements, at least one
