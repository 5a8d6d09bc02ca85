"""Codecs that send every element above a threshold they estimate: DGC, RedSync and SIDCo."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.base import Bound, Key, Payload, kept_count, to_wire
from gravac.compressors.sparse.selector import PLAIN, Indexed
from gravac.kernels import SelectionHint

_AT_ONCE = 1 << 18
"""Elements processed at a time, so that intermediate results stay in a CPU's cache."""


@dataclass(frozen=True, slots=True)
class Passed:
    """Elements above a threshold: places (int32, ascending) and values (float32), both of shape ``(m,)``."""

    places: Tensor
    values: Tensor

    @property
    def count(self) -> int:
        return self.places.numel()

    def largest(self, most: int) -> "Passed":
        """Return all of them, or the ``most`` largest."""
        if self.count <= most:
            return self
        chosen, values = kernels.take_top(self.values, most)
        return Passed(self.places.index_select(0, chosen), values)


class Survivors:
    """Finds the elements of ``x`` (float32, contiguous, shape ``(n,)``) above thresholds.

    A high threshold is applied to what passed a lower one, and nothing is computed twice. The results do not depend on
    the order of calls. NaN passes every threshold; a threshold that is NaN lets everything pass.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self._passed: dict[float, Passed] = {}
        self._counts: dict[float, int] = {}
        self._means: dict[float, float] = {}
        self._samples: dict[tuple[int, int], Tensor] = {}

    @cached_property
    def top(self) -> float:
        """The largest magnitude; NaN if there is one."""
        least, most = self.x.aminmax()
        return float(torch.maximum(-least, most))

    def sample(self, first: int, stride: int) -> Tensor:
        """Return every ``stride``-th element, from ``first`` on."""
        if (first, stride) not in self._samples:
            self._samples[first, stride] = self.x[first::stride].contiguous()
        return self._samples[first, stride]

    def above(self, level: float) -> Passed:
        """Return all elements of at least magnitude ``level`` (rounded to float32)."""
        level = _single(level)
        if level not in self._passed:
            near = self._near(level)
            if near is None:
                self._passed[level] = Passed(*kernels.take_above(self.x, level))
            else:
                chosen, values = kernels.take_above(near.values, level)
                self._passed[level] = Passed(near.places.index_select(0, chosen), values)
        return self._passed[level]

    def count(self, level: float) -> int:
        """Return how many elements have at least magnitude ``level``."""
        level = _single(level)
        if level in self._passed:
            return self._passed[level].count
        if level not in self._counts:
            near = self._near(level)
            self._counts[level] = kernels.count_above(self.x if near is None else near.values, level)
        return self._counts[level]

    def mean(self, level: float = 0.0) -> float:
        """Return the mean magnitude of the elements of at least magnitude ``level``."""
        level = _single(level)
        if level not in self._means:
            values = self.x if level == 0.0 else self.above(level).values
            size = _AT_ONCE if values.device.type == "cpu" else max(1, values.numel())
            total = sum(float(part.abs().sum()) for part in values.split(size))
            self._means[level] = total / values.numel()
        return self._means[level]

    def _near(self, level: float) -> Passed | None:
        """Return the fewest known survivors that include those of ``level``; None if that is all of ``x``."""
        lower = [known for known in self._passed if known <= level]
        return self._passed[max(lower)] if lower else None


class Thresholded(Indexed):
    """A selector that sends what passes a threshold it estimates."""

    @abstractmethod
    def find(self, survivors: Survivors, cf: float, key: Key) -> Passed:
        """Return the elements to send at ``cf``."""

    def levels(
        self, x: Tensor, cfs: Sequence[float], key: Key, dtype: torch.dtype, hint: SelectionHint | None = None
    ) -> list[Payload]:
        """Return payloads with the same bits as those of ``compress``, in less time.

        Passes over ``x`` are shared, and each level searches the survivors of the one before (GraVAC §III-C).
        """
        survivors = Survivors(x.detach().float().contiguous())
        payloads = []
        for cf in cfs:
            passed = self.find(survivors, cf, key)
            values = passed.values if x.dtype == torch.float32 else x.index_select(0, passed.places)
            values = values if values.dtype == dtype else to_wire(values, dtype)
            payloads.append(self._payload(values, passed.places, x.numel(), cf, key))
        return payloads

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return self.levels(x, (cf,), key, dtype)[0]

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=1.0 / numel)  # the largest elements are sent, at least one


def _single(level: float) -> float:
    """Return ``level`` as float32 holds it; 0 if it lets everything pass."""
    return float(torch.tensor(level, dtype=torch.float32, device="cpu")) if level > 0.0 else 0.0


_ROUNDS = 10


class DGC(Thresholded):
    """Estimates a threshold from a sample, then takes the exact Top-k of the few elements above it.

    The threshold is the sample's k/n quantile of ``|x|``, lowered by a fifth while fewer than 0.8 k elements pass. If
    more than k pass, their Top-k is sent ("hierarchical"). So it sends between 0.8 k and k elements, exactly the
    largest ones, and needs one pass over n elements and a sort of a few. ``sample``: share of the elements that is
    sampled, with a stride from a random start.
    """

    name = "dgc"
    source = "Lin et al. 2018, Deep Gradient Compression, sampled threshold with hierarchical selection"
    traits = replace(PLAIN, fixed_size=False, nested=False, sync_free=False)

    def __init__(self, *, sample: float = 0.01) -> None:
        if not 0 < sample <= 1:
            raise ValueError(f"dgc: sample={sample} must be a share of the elements in (0, 1]")
        self.sample = sample

    def find(self, survivors: Survivors, cf: float, key: Key) -> Passed:
        n = survivors.x.numel()
        k = kept_count(n, cf)
        stride = max(1, int(n / max(self.sample * n, 2 * cf)))  # the sample must hold a few of those to find
        sampled = survivors.sample(key.own_seed() % stride, stride)
        count = min(sampled.numel(), max(1, round(sampled.numel() * k / n)))
        level = float(kernels.take_top(sampled, count)[1].abs().amin())
        for _ in range(_ROUNDS):
            if survivors.above(level).count >= 0.8 * k:
                break
            level *= 0.8
        return survivors.above(level).largest(k)


class RedSync(Thresholded):
    """Bisects for a threshold between the mean and the maximum of ``|x|`` that k to 2k elements pass, and sends those.

    If no threshold gives a count in that range, the 2k largest are sent. It never looks below the mean, so for a CF
    under about 3 it sends fewer than k elements: rely on the CF achieved, not on the one asked for. ``tolerance``:
    width at which bisection ends. The public code stops at 0.2 and sends what passes then, which may be a hundredth of
    k.
    """

    name = "redsync"
    source = "Fang et al. 2019, RedSync, threshold binary search"
    traits = replace(PLAIN, fixed_size=False, nested=False, sync_free=False)

    def __init__(self, *, tolerance: float = 1e-3) -> None:
        if not 0 < tolerance < 1:
            raise ValueError(f"redsync: tolerance={tolerance} must be between 0 and 1")
        self.tolerance = tolerance

    def find(self, survivors: Survivors, cf: float, key: Key) -> Passed:
        k, mean, top = kept_count(survivors.x.numel(), cf), survivors.mean(), survivors.top
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


_STAGE = 0.25
"""Share of elements that a stage keeps at least. One fit for the whole tail misses it when gradients are not
exponential."""


class SIDCo(Thresholded):
    """Uses the threshold that an exponential tail would have, fitted again to what passed until the count is right.

    If ``|x|`` were exponential, a share r of it would lie above ``-mean · ln r``. Each stage fits the excess over the
    last threshold and keeps a quarter of the elements; the last stage keeps what is left of the share. It sends about k
    elements and never more than 2k. The payload has the CF that was achieved.
    """

    name = "sidco"
    source = "Abdelmoniem et al. 2021, SIDCo-E: multi-stage fit of an exponential"
    traits = replace(PLAIN, fixed_size=False, nested=False, sync_free=False)

    def find(self, survivors: Survivors, cf: float, key: Key) -> Passed:
        n = survivors.x.numel()
        k, level, exceeding = kept_count(n, cf), 0.0, n
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
