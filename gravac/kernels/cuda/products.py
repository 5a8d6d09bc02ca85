"""Inner products in float64 that stay on the device."""

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import begin_of, raw, read, room, widened
from gravac.kernels.cuda.build import jit, launch

BLOCK = 4096
"""Elements of a program."""


@jit("x", "y")
def _inner(x: tl.tensor, y: tl.tensor, sums: tl.tensor, n: tl.int64, SIZE: tl.constexpr) -> None:
    begin, at = begin_of(SIZE), tl.arange(0, SIZE)
    left = room(n, begin, SIZE)
    one = widened(read(x + begin, at, left, SIZE)).to(tl.float64)
    other = widened(read(y + begin, at, left, SIZE)).to(tl.float64)
    tl.store(sums + tl.program_id(0), tl.sum(one * other))


def inner(x: Tensor, y: Tensor) -> Tensor:
    """⟨x, y⟩ of two tensors of shape ``(n,)``, any floating types up to float32: float64 of shape ``()``."""
    n = x.numel()
    programs = -(-n // BLOCK)
    sums = torch.empty(programs, dtype=torch.float64, device=x.device)
    launch(_inner, programs, raw(x), raw(y), sums, n, warps=8, SIZE=BLOCK)
    return sums.sum()
