"""Buffers outside of the heap, for what is large and stays."""

import mmap

import torch
from torch import Tensor

_LEAST_BYTES = 1 << 18
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def mapped(numel: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Return zeros of shape ``(numel,)`` in a mapping of their own, which goes back to the system when it is freed.

    In a thread's heap, what is freed below and above a buffer that stays would remain resident, however large it is.
    """
    nbytes = numel * dtype.itemsize
    if nbytes < _LEAST_BYTES or torch.device(device).type != "cpu":
        return torch.zeros(numel, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, nbytes, **_PRIVATE), dtype=dtype)
