"""Spectral ATOMO: each singular value is sent or not, at random, unbiased and with the least variance."""

from dataclasses import replace

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, TensorSpec, to_wire
from gravac.compressors.lowrank.svd import LowRank
from gravac.compressors.quantize.quantizer import ROUNDED
from gravac.kernels import noise


class Atomo(LowRank):
    """Sends each singular value at random: unbiased, with the least variance for the size.

    Singular value i is sent with probability p_i and divided by it; Σ p_i = r per matrix, p_i ∝ σ_i up to 1. That is r
    terms of a + b values on average, and 4 bytes per matrix for their count. A draw may be empty; drawing again until
    it is not, as the public code does, would bias it. ``E‖C(x) - x‖² = Σ σ_i² (1/p_i - 1)``, at most what equal
    probabilities give, ``(min(a, b)/r - 1) ‖x‖²``.
    """

    name = "atomo"
    source = "Wang et al. 2018, ATOMO, algorithm 1, spectral atoms"
    traits = replace(ROUNDED, fixed_size=False, sync_free=False)

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> None:
        return None

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        if not bool(x.isfinite().all()):
            return self.blank(x.numel(), cf, key, dtype, x.device, torch.nan)
        plan = self.geometry(x.numel(), cf)
        full = sum(len(group.offsets) * min(group.rows, group.columns) for group in plan.groups)
        draws = noise(full, key.own_seed(), x.device)
        pieces, counts = [], []
        for group in plan.groups:
            left, values, right = torch.linalg.svd(group.stack(x), full_matrices=False)
            chances = water_filling(values, group.rank)
            mine, draws = draws[: values.numel()].view_as(values), draws[values.numel() :]
            chosen = mine < chances
            left = left * (values / chances.clamp_min(torch.finfo(torch.float32).tiny)).unsqueeze(1)
            # Term after term, matrix after matrix: its column of the left factor, then its row of the right one.
            pieces.append(torch.cat((left.transpose(1, 2)[chosen], right[chosen]), 1).flatten())
            counts.append(chosen.sum(1, dtype=torch.int32))
        pieces.append(plan.gather_dense(x).float())
        found = torch.cat(counts) if counts else torch.empty(0, dtype=torch.int32, device=x.device)
        return Payload((to_wire(torch.cat(pieces), dtype), found), None, x.numel(), cf, key)

    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        plan = self.geometry(payload.numel, payload.cf)
        values, counts = payload.values.float(), payload.parts[1].long()
        at = first = 0
        for group in plan.groups:
            mine = counts[first : first + len(group.offsets)]
            terms, size = int(mine.sum()), group.rows + group.columns
            left, right = (
                values[at : at + terms * size].view(terms, size).split([group.rows, group.columns], 1)
            )
            matrices = [
                a.T @ b for a, b in zip(left.split(mine.tolist()), right.split(mine.tolist()), strict=True)
            ]
            group.add(torch.stack(matrices), out, scale)
            at, first = at + terms * size, first + len(group.offsets)
        plan.add_dense(values[at:], out, scale)

    def specs_of(self, nbytes: int, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        plan = self.geometry(numel, cf)
        matrices = sum(len(group.offsets) for group in plan.groups)
        values, left = divmod(nbytes - 4 * matrices, dtype.itemsize)
        if left or values < plan.dense_numel:
            raise ValueError(
                f"{self.name} payload has {nbytes} bytes, which fits no number of terms for n={numel}"
            )
        return TensorSpec(dtype, values), TensorSpec(torch.int32, matrices)

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        plan = self.geometry(numel, cf)
        values = sum(group.factor_numel for group in plan.groups) + plan.dense_numel
        return values * dtype.itemsize + 4 * sum(len(group.offsets) for group in plan.groups)

    def blank(
        self, numel: int, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> Payload:
        plan = self.geometry(numel, cf)
        pieces, counts = (
            [torch.full((plan.dense_numel,), value, device=device, dtype=torch.float32)],
            list[int](),
        )
        for group in reversed(plan.groups):
            terms = [1 if value != 0.0 else 0 for _ in group.offsets]
            size = sum(terms) * (group.rows + group.columns)
            pieces.append(torch.full((size,), value, device=device, dtype=torch.float32))
            counts = terms + counts
        found = torch.tensor(counts, dtype=torch.int32, device=device)
        return self.rebuild((torch.cat(pieces[::-1]).to(dtype), found), numel, cf, key)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(omega=1.0 / self.least_share(numel, cf) - 1.0)


def water_filling(values: Tensor, budget: float) -> Tensor:
    """Return the probabilities ``p`` that minimize Σ v²/p with Σ p = ``budget`` and p <= 1.

    They are ``min(1, c·v)`` for the right c (Wang et al. 2018, ATOMO, algorithm 1).

    Args:
        values: At least 0, shape ``(…, m)``; the last dimension is one problem.
        budget: Sum of the probabilities. Where fewer than ``budget`` values are positive, those have p = 1.

    Returns:
        The shape and dtype of ``values``; 0 where a value is 0.
    """
    wide = values.double()
    ordered = wide.sort(-1, descending=True).values
    rest = ordered.flip(-1).cumsum(-1).flip(-1)  # rest[j]: sum of all but the j largest
    saturated = torch.arange(ordered.shape[-1], device=values.device, dtype=torch.int64)
    # With the j largest at 1 the others get c = (budget - j) / rest; the first j whose next value stays below 1 is it.
    c = torch.where(rest > 0, (budget - saturated).clamp_min(0.0) / rest, torch.inf)
    fits = c * ordered <= 1.0
    found = torch.where(fits, saturated, ordered.shape[-1]).amin(-1, keepdim=True)
    j = found.clamp(max=ordered.shape[-1] - 1)
    rate = torch.where(found < ordered.shape[-1], c.gather(-1, j), torch.inf)
    p = torch.where(wide > 0, (rate * wide).clamp(max=1.0), 0.0)
    return p.to(values.dtype)
