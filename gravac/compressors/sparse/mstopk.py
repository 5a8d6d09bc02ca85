"""MSTopk: exactly k elements, about the largest, by a threshold that is found with counts alone."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.base import Key, kept_count
from gravac.compressors.sparse.selector import PLAIN
from gravac.compressors.sparse.thresholds import Passed, Survivors, Thresholded


class MSTopk(Thresholded):
    """Sends k = floor(n / CF) elements, about the largest, above a threshold that is found with counts alone.

    Bisects between the mean and the maximum of ``|x|``, ``rounds`` times. Two thresholds remain: at most k elements are
    above the upper one, and more than k above the lower one. All elements above the upper one are sent. A run of those
    in between, from a random position, completes k. So the size is fixed, and the passes over the tensor only count.
    The search never looks below the mean: for a CF under about 3 the run is drawn from all smaller elements.

    If no threshold lets at most k elements pass, as with ties at the maximum, the k largest above the lower one are
    sent. The published code would then treat all elements as above the upper one. A GPU cannot wait to see whether that
    happens, so it also computes an exact Top-k. There ``topk`` is faster.
    """

    name = "mstopk"
    source = (
        "Shi et al. 2021, Towards scalable distributed training of deep learning on public cloud clusters, "
        "algorithm 1"
    )
    traits = replace(PLAIN, nested=False)
    examples = ("rounds=3",)

    def __init__(self, *, rounds: int = 25) -> None:
        if not 1 <= rounds <= 60:
            raise ValueError(f"mstopk: rounds={rounds} must be 1 to 60")
        self.rounds = rounds

    def find(self, survivors: Survivors, cf: float, key: Key) -> Passed:
        if kernels.on_device(survivors.x):
            return self._find_on_device(survivors.x, kept_count(survivors.x.numel(), cf), key)
        k, top, mean = kept_count(survivors.x.numel(), cf), survivors.top, survivors.mean()
        if not math.isfinite(top) or not math.isfinite(mean):
            return survivors.above(0.0).largest(k)
        low, high = 0.0, 1.0
        lower, upper, above = 0.0, math.inf, 0
        for _ in range(self.rounds):
            middle = (low + high) / 2
            level = mean + middle * (top - mean)
            count = survivors.count(level)
            # Of the thresholds that at most k elements pass, keep the one that most pass.
            if count <= k:
                high = middle
                if count > above:
                    upper, above = level, count
            else:
                low = middle
                lower = level
        passed = survivors.above(lower)
        return passed.largest(k) if above == 0 else self._filled(passed, upper, k, key)

    @staticmethod
    def _filled(passed: Passed, upper: float, k: int, key: Key) -> Passed:
        """Return all of ``passed`` from ``upper`` on, and a run of the others: k elements."""
        chosen = passed.values.abs() >= upper
        others = (~chosen).nonzero().view(-1)
        missing = k - (passed.count - others.numel())
        first = key.own_seed() % (others.numel() - missing + 1)
        chosen[others[first : first + missing]] = True
        places = chosen.nonzero().view(-1)
        return Passed(passed.places.index_select(0, places), passed.values.index_select(0, places))

    def _find_on_device(self, x: Tensor, k: int, key: Key) -> Passed:
        """Find them as ``find`` does, without reading anything: thresholds and counts stay tensors."""
        sizes = kernels.magnitudes(x)
        top, mean = sizes.amax().view(torch.float32).double(), x.abs().sum().double() / x.numel()
        low, high = torch.zeros_like(mean), torch.ones_like(mean)
        above = torch.zeros_like(mean, dtype=torch.int64)
        lower, upper = torch.zeros_like(sizes[0]), torch.full_like(sizes[0], 2**31 - 1)
        for _ in range(self.rounds):
            middle = (low + high) / 2
            level = mean + middle * (top - mean)
            edge = torch.where(level > 0.0, level.float().view(torch.int32), 0)
            count = (sizes >= edge).sum()
            few = count <= k
            more = few & (count > above)
            low, high = torch.where(few, low, middle), torch.where(few, middle, high)
            lower = torch.where(few, lower, edge)
            upper, above = torch.where(more, edge, upper), torch.where(more, count, above)
        chosen = sizes >= upper
        others = (sizes >= lower) & ~chosen
        missing = k - above
        first = key.own_seed() % (others.sum() - missing + 1).clamp_min(1)
        order = others.cumsum(0) - 1
        chosen |= others & (order >= first) & (order < first + missing)
        # What the host does where no threshold lets at most k pass, or the mean or the largest is not finite.
        exactly = (above == 0) | ~top.isfinite() | ~mean.isfinite()
        places, values = kernels.take_top(x, k)
        places = torch.where(exactly, places, kernels.chosen_places(chosen, k).int())
        return Passed(places, torch.where(exactly, values, x.index_select(0, places)))
