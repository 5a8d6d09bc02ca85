"""Every kernel once, on a few elements, so that none is compiled in a step."""

import torch

from gravac import kernels

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def run_all(device: torch.device) -> None:
    """Start all kernels there for the types that training uses. Takes half a minute the first time on a machine."""
    x, out = torch.ones(64, device=device), torch.empty(64, device=device)
    counted = kernels.tally(x)
    for dtype in _FLOATS:
        gradient = x.to(dtype)
        kernels.tally(gradient, x, out=out, sums=True)
        kernels.tally(gradient, out=out, sums=True)
        kernels.product(gradient, x)
    indices, values = kernels.take_top(x.clone(), 2, counted, clear=True)
    kernels.take_top(x, 2, counted)
    for dtype in _FLOATS:
        kernels.scatter_add(out, indices, values.to(dtype))
    kernels.scatter_add(out, indices.long(), values)
    kernels.unpack_positions(kernels.pack_positions(indices, 64), 2, 64)
    kernels.unpack(kernels.pack(x >= 0, 1), 64, 1)
    scales, codes = kernels.quantise(x, 256, 4, 1)
    kernels.dequantise(scales, codes, 64, 256, 4)
    kernels.noise(64, 1, device)
    kernels.distinct(2000, 2, 1, device)
