"""The elements of a tensor from some magnitude on."""

import torch
from torch import Tensor

from gravac.kernels import backend, reference


def count_above(x: Tensor, level: float) -> int:
    """How many ``|x|`` of a contiguous float32 tensor of shape ``(n,)`` are at least ``level`` (rounded to float32).

    NaN counts as larger than infinity; a ``level`` that is NaN or below zero lets everything pass.
    """
    edge = _edge(level)
    if backend.compiled(x):
        import numpy as np

        from gravac.kernels.cpu.top import count_above as compiled

        return int(compiled(x.detach().numpy().view(np.int32), edge))
    return int((reference.magnitudes(x) >= edge).sum())


def take_above(x: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Those elements: places (int32, ascending) and values, both of shape ``(count_above(x, level),)``.

    Raises ValueError for more elements than 32-bit places can tell apart.
    """
    if x.numel() > 2**31 - 1:
        raise ValueError(
            f"{x.numel()} elements do not fit 32-bit positions; use smaller DDP buckets (bucket_cap_mb)"
        )
    if backend.compiled(x):
        import numpy as np

        from gravac.kernels.cpu.top import take_above as compiled

        count = count_above(x, level)
        indices, values = torch.empty(count, dtype=torch.int32), torch.empty(count)
        bits = x.detach().numpy().view(np.int32)
        compiled(bits, _edge(level), indices.numpy(), values.numpy().view(np.int32))
        return indices, values
    found = (reference.magnitudes(x) >= _edge(level)).nonzero().squeeze(1)
    return found.int(), x.detach()[found]


def _edge(level: float) -> int:
    """The lowest magnitude that passes, as the bits of a float32, which order as the numbers do."""
    return int(torch.tensor(level).view(torch.int32)) if level > 0.0 else 0
