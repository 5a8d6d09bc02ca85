"""Sums of a step that stay on the device: one row of numbers for each bucket, added to the tick at the end.

A row has ‖g‖², ‖p‖², ‖s‖², ⟨s, p⟩, ⟨p, g⟩ and ⟨s, g⟩, of the gradient g, of gradient and residual p, and of what is
sent of it, s.
"""

import torch
from torch import Tensor

from gravac.kernels import backend

ROW = 6
"""Numbers of a row."""
_NONFINITE = 7
"""Place in the tick of the first flag, behind as many energies."""


def square(x: Tensor, row: Tensor) -> None:
    """Add to a row that of a gradient that is sent as it is, so that all six numbers are ‖x‖².

    Args:
        x: float32, bfloat16 or float16, shape ``(n,)``.
        row: float64, shape ``(ROW,)``.
    """
    if backend.on_gpu(x, row):
        from gravac.kernels.cuda import step_sums as on_gpu

        on_gpu.square(x, row)
        return
    wide = x.double()
    row.add_(wide.dot(wide))


def signed(x: Tensor, signs: Tensor, every: int, sums: Tensor) -> None:
    """Add signed sums of a sample of a tensor's elements, and the sample's energy.

    Args:
        x: Shape ``(n,)``.
        signs: 1 or -1 for each element of the sample, float32 of shape ``(rows, columns)``.
        every: One of so many elements is in the sample. Sums grow with the root of that, and the energy with it.
        sums: Their sums are added, float64 of shape ``(rows + 1,)``; the last one is the energy.
    """
    if backend.on_gpu(x, signs, sums):
        from gravac.kernels.cuda import step_sums as on_gpu

        on_gpu.signed(x, signs, every, sums)
        return
    sample = torch.zeros(signs.numel(), dtype=torch.float64, device=x.device)
    chosen = x[::every]
    sample[: chosen.numel()] = chosen
    sums[:-1] += every**0.5 * (sample.view_as(signs) * signs).sum(1)
    sums[-1] += every * sample.dot(sample)


def add_rows(rows: Tensor, vector: Tensor, names: int, last_flag: int) -> None:
    """Add what the rows of a step's buckets say to the numbers that its tick begins with, and clear them.

    Those are ‖g‖², ‖p‖², ‖s‖², twice ⟨s, p⟩² / ‖s‖², ‖p - s‖², ⟨p - s, g⟩, and 1 if a number is not finite. Then, or
    where the tick said so before, energies become 0: NaN among them would hide all flags.

    Args:
        rows: float64, shape ``(buckets, ROW)``.
        vector: float64; its first ``names`` numbers are those eight, and more flags and energies.
        names: At most 16.
        last_flag: The last number that is a flag.
    """
    if backend.on_gpu(rows, vector):
        from gravac.kernels.cuda import step_sums as on_gpu

        on_gpu.add_rows(rows, vector, names, last_flag)
        return
    gradient, both, sent, inner, dot, sent_dot = rows.unbind(1)
    kept = torch.where(sent > 0.0, inner * inner / torch.where(sent > 0.0, sent, 1.0), 0.0)
    rest = (both - 2.0 * inner + sent).clamp_min(0.0)
    bad = (~(gradient.isfinite() & both.isfinite())).double()
    total, at = vector[:names].clone(), torch.arange(names, dtype=torch.int64, device=vector.device)
    total[: _NONFINITE + 1] += torch.stack((gradient, both, sent, kept, kept, rest, dot - sent_dot, bad)).sum(
        1
    )
    flagged = total[_NONFINITE] > 0.0
    total = torch.where(flagged & ((at < _NONFINITE) | (at > last_flag)), 0.0, total)
    total[_NONFINITE] = flagged.double()
    vector[:names].copy_(total)
    rows.zero_()
