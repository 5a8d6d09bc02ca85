"""Truncated SVD: the best low-rank approximation, as two factors per matrix."""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Compressor, Key, Payload, TensorSpec, to_wire
from gravac.compressors.lowrank.matrices import MatrixLayout, geometry, square
from gravac.compressors.quantize.quantizer import ROUNDED


class LowRank(Compressor):
    """Base of codecs that send two thin factors per matrix, and vectors and small matrices as they are.

    A codec that was not ``fitted`` to shapes takes the flat tensor for one matrix, as square as its size allows.
    """

    def __init__(self) -> None:
        self._shapes: tuple[tuple[int, ...], ...] = ()

    def fitted(self, shapes: Sequence[tuple[int, ...]]) -> Self:
        other = copy(self)
        other._shapes = tuple(tuple(shape) for shape in shapes)
        return other

    def geometry(self, numel: int, cf: float) -> MatrixLayout:
        """Return how the tensor is sent. Raise ValueError if the codec was fitted to another size."""
        shapes = self._shapes or (square(numel),)
        if sum(math.prod(shape) for shape in shapes) != numel:
            raise ValueError(f"{self.name} was fitted to tensors of shapes {shapes}, not to {numel} elements")
        return geometry(shapes, cf)

    def least_share(self, numel: int, cf: float) -> float:
        """Return the smallest rank / full rank of all matrices, the least share of a matrix's energy that is kept."""
        groups = self.geometry(numel, cf).groups
        return min((group.rank / min(group.rows, group.columns) for group in groups), default=1.0)


class SVD(LowRank):
    """Sends the largest singular values of each matrix with their vectors: the best approximation of that rank.

    Rank r of an a×b matrix takes r(a + b) values; the singular values are folded into the left factor. A projection.
    ``‖x - C(x)‖² <= (1 - r/min(a, b)) ‖x‖²``.
    """

    name = "svd"
    source = "Eckart and Young 1936; Wang et al. 2018, ATOMO, spectral atoms"
    traits = replace(ROUNDED, unbiased=False, nested=True, projection=True, sync_free=False)

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        plan = self.geometry(numel, cf)
        return (TensorSpec(dtype, sum(group.factor_numel for group in plan.groups) + plan.dense_numel),)

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        if not bool(x.isfinite().all()):
            return self.blank(x.numel(), cf, key, dtype, x.device, math.nan)
        plan = self.geometry(x.numel(), cf)
        pieces = []
        for group in plan.groups:
            left, values, right = torch.linalg.svd(group.stack(x), full_matrices=False)
            pieces += [
                (left * values.unsqueeze(1))[..., : group.rank].flatten(),
                right[:, : group.rank].flatten(),
            ]
        pieces.append(plan.gather_dense(x).float())
        return Payload((to_wire(torch.cat(pieces), dtype),), None, x.numel(), cf, key)

    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        plan = self.geometry(payload.numel, payload.cf)
        factors = payload.values.float()
        at = 0
        for group in plan.groups:  # the left factors of all its matrices, then the right ones
            count, rank = len(group.offsets), group.rank
            left, right = factors[at : at + group.factor_numel].split(
                [count * rank * group.rows, count * rank * group.columns]
            )
            group.add(left.view(count, group.rows, rank) @ right.view(count, rank, group.columns), out, scale)
            at += group.factor_numel
        plan.add_dense(factors[at:], out, scale)

    def narrow(self, payload: Payload, cf: float) -> Payload:
        assert payload.key is not None
        return self.compress(self.decode(payload), cf, payload.key, payload.values.dtype)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=self.least_share(numel, cf))
