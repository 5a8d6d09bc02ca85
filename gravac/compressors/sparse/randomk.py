"""Random-k with a seed that all ranks share: only values are sent, so they can be all-reduced."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, Self

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.base import Bound, Key, Payload, TensorSpec, kept_count, to_wire
from gravac.compressors.sparse.selector import PLAIN, Selector
from gravac.kernels import Scalar, distinct


class SharedDraw(Selector):
    """Base of codecs that send k = floor(n / CF) elements at positions that follow from the key: 4k bytes.

    The positions are the same on every rank. Nested: a stronger CF keeps a prefix of the same draw.
    """

    traits = replace(PLAIN, linear=True)

    @abstractmethod
    def draw(self, numel: int, cf: float, key: Key, device: torch.device) -> Tensor:
        """Return the positions, int32 or int64 of shape ``(k,)``, no two equal."""

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...] | None:
        return (TensorSpec(dtype, kept_count(numel, cf)),)

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        support = self.draw(x.numel(), cf, key, x.device)
        values = x.index_select(0, support)
        return Payload(
            (values if values.dtype == dtype else to_wire(values, dtype),), support, x.numel(), cf, key
        )

    def rebuild(self, parts: tuple[Tensor, ...], numel: int, cf: float, key: Key) -> Payload:
        return Payload(parts, self.draw(numel, cf, key, parts[0].device), numel, cf, key)

    def narrow(self, payload: Payload, cf: float) -> Payload:
        assert payload.support is not None
        k = kept_count(payload.numel, cf)
        return Payload((payload.values[:k],), payload.support[:k], payload.numel, cf, payload.key)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=kept_count(numel, cf) / numel)


class RandomK(SharedDraw):
    """Sends k = floor(n / CF) random elements at positions that all ranks know.

    Positions are drawn without replacement. Values are not scaled, as error feedback requires: ``E ||x - C(x)||² = (1 -
    k/n) ||x||²``.
    """

    name = "randomk"
    source = "Stich et al. 2018, Sparsified SGD with memory, definition 2.2"

    def draw(self, numel: int, cf: float, key: Key, device: torch.device) -> Tensor:
        return distinct(numel, kept_count(numel, cf), key.shared_seed(), device)


class Unbiased(SharedDraw):
    """A shared draw times n/k, which is unbiased. The wire carries the values as they are, and decoding multiplies."""

    def weight(self, payload: Payload) -> float:
        return payload.numel / payload.values.numel()

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(omega=numel / kept_count(numel, cf) - 1.0)


class UnbiasedRandomK(Unbiased, RandomK):
    """Random-k times n/k: unbiased, for training without error feedback.

    ``E ||x - C(x)||² = (n/k - 1) ||x||²``, so it does not contract. Values are sent as they are and multiplied when
    they are decoded.
    """

    name = "randomk-unbiased"
    source = "Wangni et al. 2018, Gradient sparsification, uniform probabilities"
    traits = replace(RandomK.traits, unbiased=True, projection=False)


class NeighborRun(NamedTuple):
    """A run of ``length`` neighbors from element ``start`` of the tensor of ``numel`` elements that begins at
    ``offset``.
    """

    offset: int
    numel: int
    start: int
    length: int

    def tensor(self, flat: Tensor) -> Tensor:
        return flat[self.offset : self.offset + self.numel]


class BlockRandomK(SharedDraw):
    """Block Random-k: sends one contiguous run of elements of each tensor, at positions that all ranks know.

    The k = floor(n / CF) elements are copied rather than gathered, and only values are sent. A run may wrap around the
    end of its tensor. As in ConEF's code, every tensor has its own block, so that no layer waits for many steps and is
    then sent whole. A tensor of m elements sends m k / n of the k elements, rounded up or down at random, so every
    element is sent equally often. The start is uniform over *all* positions of the tensor. As for Random-k, ``E ||x -
    C(x)||² = (1 - k/n) ||x||²``. A codec that was not fitted to tensors treats the whole as one tensor.
    """

    name = "blockrandomk"
    source = "Xie et al. 2020, CSER, GRBS; Li et al. 2023, ConEF, rbSGD"

    def __init__(self) -> None:
        self._numels: tuple[int, ...] = ()

    def fitted(self, shapes: Sequence[tuple[int, ...]]) -> Self:
        numels = tuple(filter(None, map(math.prod, shapes)))
        if len(numels) < 2:
            return self
        other = copy(self)
        other._numels = numels
        # A stronger CF rounds the tensors' shares again, so its runs need not lie within the weaker one's.
        other.traits = replace(self.traits, nested=False)
        return other

    def narrow(self, payload: Payload, cf: float) -> Payload:
        if not self.traits.nested:
            raise ValueError(f"{self.name} is not nested: compress the original tensor at cf={cf:g} instead")
        return super().narrow(payload, cf)

    def draw(self, numel: int, cf: float, key: Key, device: torch.device) -> Tensor:
        runs = self._runs(numel, kept_count(numel, cf), key)
        places = [kernels.run_places(run.numel, run.start, run.length, device) + run.offset for run in runs]
        return places[0] if len(places) == 1 else torch.cat(places)

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        n = x.numel()
        values = self._take(x, self._runs(n, kept_count(n, cf), key))
        values = values if values.dtype == dtype else to_wire(values, dtype)
        return Payload((values,), self.draw(n, cf, key, x.device), n, cf, key)

    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        values, runs = payload.values.to(out.dtype), self._runs_of(payload)
        scale *= self.weight(payload)
        for run, piece in zip(runs, values.split([run.length for run in runs]), strict=True):
            kernels.add_run(run.tensor(out), run.start, piece, scale)

    def inner(self, payload: Payload, x: Tensor) -> Scalar:
        return self.weight(payload) * kernels.inner(payload.values, self._take(x, self._runs_of(payload)))

    @staticmethod
    def start(numel: int, key: Key) -> int:
        """Return the first position sent of a tensor that is alone, in [0, n)."""
        return key.shared_seed() % numel

    def _take(self, x: Tensor, runs: tuple[NeighborRun, ...]) -> Tensor:
        pieces = [kernels.take_run(run.tensor(x), run.start, run.length) for run in runs]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _runs_of(self, payload: Payload) -> tuple[NeighborRun, ...]:
        assert payload.key is not None
        return self._runs(payload.numel, payload.values.numel(), payload.key)

    def _runs(self, numel: int, count: int, key: Key) -> tuple[NeighborRun, ...]:
        if not self._numels:
            return (NeighborRun(0, numel, self.start(numel, key), count),)
        if sum(self._numels) != numel:
            raise ValueError(f"{self.name} was fitted to tensors of {self._numels} elements, not to {numel}")
        return _deal(self._numels, count, key.shared_seed())


@lru_cache(maxsize=256)  # asked for several times a step: to take, to add, to take off
def _deal(numels: tuple[int, ...], count: int, seed: int) -> tuple[NeighborRun, ...]:
    """Split ``count`` elements among tensors, as a run of each that gets any."""
    # Systematic sampling in exact integers: a tensor's share is rounded up or down with the right probability.
    total, offset, runs = sum(numels), 0, []
    shift = _draw(seed, "shares") % total
    for number, numel in enumerate(numels):
        share = ((offset + numel) * count + shift) // total - (offset * count + shift) // total
        if share:
            runs.append(NeighborRun(offset, numel, _draw(seed, number) % numel, share))
        offset += numel
    return tuple(runs)


def _draw(seed: int, what: object) -> int:
    return int.from_bytes(sha256(f"{seed}/{what}".encode()).digest()[:8], "big")


class UnbiasedBlockRandomK(Unbiased, BlockRandomK):
    """Block Random-k times n/k: unbiased, for training without error feedback.

    ``E ||x - C(x)||² = (n/k - 1) ||x||²``.
    """

    name = "blockrandomk-unbiased"
    traits = replace(BlockRandomK.traits, unbiased=True, projection=False)
