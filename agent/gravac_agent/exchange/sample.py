"""A sample of coordinates whose raw gradients are averaged over ranks. It is chosen once and copied out of each bucket.

The sample is a vector that holds the coordinates of one parameter after another, always in the same order. DDP may
regroup its buckets after the first step. As parameters are found by name, only the order of copying changes.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gravac.memories import Bucket

log = logging.getLogger("gravac.agent")

TENSORS = 16
"""Parameters that the sample is taken from, at most."""
PER_TENSOR = 32
"""Coordinates of each, on average."""
_SHUFFLED = 1 << 20
"""Largest parameter whose elements are shuffled to choose from. Of a larger one they are drawn, hardly any twice."""


class Coordinates:
    """Chooses the sample: parameters with a probability in proportion to their size, and random coordinates of each.

    It leaves out parameters whose gradients are not flat pieces of a bucket: frozen, complex, or not dense in memory.

    Args:
        parameters: The module's parameters by name, without those that get sparse gradients.
        seed: Seed of the choice. Ranks with the same parameters and the same seed choose the same.
    """

    def __init__(self, parameters: Mapping[str, Tensor], seed: int) -> None:
        self.places = _choose({name: param for name, param in parameters.items() if _is_flat(param)}, seed)
        """Chosen elements of each parameter, in the order of its memory."""
        self.slots: dict[str, slice] = {}
        """Where each parameter's coordinates are in the sample."""
        self.size = 0
        for name, places in self.places.items():
            self.slots[name] = slice(self.size, self.size + places.numel())
            self.size += places.numel()

    def order(self, names: Sequence[str]) -> Tensor:
        """Return the places in the sample of these parameters' coordinates, one parameter after another."""
        slots = [self.slots[name] for name in names if name in self.slots]
        return torch.cat(
            [_NONE, *(torch.arange(slot.start, slot.stop, dtype=torch.int64, device="cpu") for slot in slots)]
        )

    def in_bucket(self, names: Sequence[str], numels: Sequence[int]) -> Tensor:
        """Return which elements of a bucket's flat gradient are in the sample, in the bucket's order of parameters.

        Args:
            names: Parameters of the bucket, in order.
            numels: Elements of each.
        """
        found, offset = [_NONE], 0
        for name, numel in zip(names, numels, strict=True):
            if name in self.places:
                found.append(self.places[name] + offset)
            offset += numel
        return torch.cat(found)


class SampledBucket(NamedTuple):
    """The part of a bucket in the sample: the sampled elements of its gradient, and their places in the sample."""

    elements: Tensor
    order: Tensor


class GradientSample:
    """The sample of the running step on this rank. The exchange thread fills it, and its methods never raise.

    Args:
        coordinates: The coordinates that are sampled.
    """

    def __init__(self, coordinates: Coordinates) -> None:
        self.coordinates, self.size = coordinates, coordinates.size
        self.raw = torch.zeros(coordinates.size, dtype=torch.float64, device="cpu")
        """This rank's gradients: 0 where there is none, NaN if copying failed."""
        self.exchanged = torch.zeros(coordinates.size, dtype=torch.float64, device="cpu")
        """The mean over ranks that was exchanged."""

    def begin_step(self) -> None:
        """Forget the last step."""
        self.raw.zero_()
        self.exchanged.zero_()

    def of(self, bucket: Bucket) -> SampledBucket:
        """Return where a bucket meets the sample."""
        coordinates = self.coordinates
        return SampledBucket(
            coordinates.in_bucket(bucket.names, bucket.numels), coordinates.order(bucket.names)
        )

    def copy(self, flat: Tensor, bucket: SampledBucket, into: Tensor) -> None:
        """Copy a bucket's sampled elements into ``raw`` or ``exchanged``.

        Args:
            flat: Its raw gradient or its mean, shape ``(n,)``. A sparse one is left out.
            bucket: Places at which it meets the sample.
            into: One of the two.
        """
        if flat.is_sparse or not bucket.elements.numel():
            return
        try:
            into.index_copy_(0, bucket.order, flat.index_select(0, bucket.elements).double())
        except Exception:
            into.fill_(math.nan)
            log.exception("a bucket is not sampled; the training goes on")


_NONE = torch.empty(0, dtype=torch.int64, device="cpu")


def _is_flat(parameter: Tensor) -> bool:
    """Return whether DDP puts the gradient into a bucket as it lies in memory, one number for each element."""
    dense = parameter.is_contiguous() or any(
        parameter.dim() == dim and parameter.is_contiguous(memory_format=form)
        for dim, form in ((4, torch.channels_last), (5, torch.channels_last_3d))
    )
    return parameter.requires_grad and parameter.is_floating_point() and parameter.dim() > 0 and dense


def _choose(parameters: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    # Systematic sampling: a hit every ``step`` elements, so a parameter is hit in proportion to its size.
    step = sum(param.numel() for param in parameters.values()) / TENSORS
    at = step * float(torch.rand((), generator=generator, dtype=torch.float32, device="cpu"))
    found: dict[str, Tensor] = {}
    end = 0
    for name, parameter in parameters.items():
        numel = parameter.numel()
        end += numel
        hits = 0
        while at < end:
            hits, at = hits + 1, at + step
        if hits:
            count = min(numel, hits * PER_TENSOR)
            if numel <= _SHUFFLED:
                found[name] = torch.randperm(numel, generator=generator, device="cpu")[:count].sort().values
            else:
                found[name] = torch.randint(numel, (count,), generator=generator, device="cpu").unique()
    return found
