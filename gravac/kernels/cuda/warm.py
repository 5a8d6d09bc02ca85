"""Runs every kernel once, on a few elements, so that none is compiled in a step."""

import itertools
from typing import get_args

import torch

from gravac import kernels
from gravac.kernels.device import owned, rounded, step_sums, tiled

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def run_all(device: torch.device) -> None:
    """Launches all kernels on a device for the types that training uses. Takes up to a minute the first time on a
    machine.
    """
    n = 8192
    x, out = (
        torch.ones(n, device=device, dtype=torch.float32),
        torch.empty(n, device=device, dtype=torch.float32),
    )
    tally = kernels.tally(x)
    for dtype in _FLOATS:
        gradient = x.to(dtype)
        for sums in (False, True):  # where p is made elsewhere, in place of the residual, and not at all
            kernels.tally(gradient, x, out=out, sums=sums)
            kernels.tally(gradient, out, out=out, sums=sums)
            kernels.tally(gradient, out=out, sums=sums)
        kernels.tally(gradient)
        kernels.subtract_unless(x[0] == 0.0, out, gradient)
        kernels.product(gradient, x)
        kernels.product(x, gradient)
        kernels.product(gradient, gradient)
    kernels.tally(x, x, out=out)
    indices, values = kernels.take_top(x.clone(), 2, tally, clear=True)
    kernels.take_top(x, 2, tally)
    for dtype in _FLOATS:
        kernels.scatter_add(out, indices, values.to(dtype))
    kernels.scatter_add(out, indices.long(), values)
    kernels.unpack_positions(kernels.pack_positions(indices, n), 2, n)
    kernels.unpack(kernels.pack(x >= 0, 1), n, 1)
    for block in (32, 256, n):
        scales, codes = kernels.quantize(x, block, 4, 1)
        kernels.dequantize(scales, codes, n, block, 4)
    ages, rates = (
        torch.full((n,), kernels.STEP, device=device, dtype=torch.int16),
        torch.zeros(1, 5, device=device, dtype=torch.float32),
    )
    table = torch.zeros(2, kernels.AGE_ROWS, 2, device=device, dtype=torch.float32)
    for dtype in _FLOATS:
        param, grad, first, second = x.to(dtype).repeat(4, 1)
        for nonzero in (False, True):
            aged = kernels.AgedStep(param, grad, first, second, ages, nonzero=nonzero)
            kernels.step_aged([aged], table, rates, 0.9)
    kernels.noise(n, 1, device)
    kernels.distinct(n, 2, 1, device)
    _run_tiled(x)
    _run_owned(x)
    _run_rounded(x)


def _run_tiled(x: torch.Tensor) -> None:
    """Launch the kernels of whole messages: each way to send values."""
    counts = torch.ones((), dtype=torch.bool, device=x.device)
    row = torch.zeros(1, step_sums.ROW, dtype=torch.float64, device=x.device)
    senders = torch.zeros(x.numel(), dtype=torch.uint8, device=x.device)
    for values in get_args(tiled.Values):
        buffers = tiled.TiledBuffers(tiled.TiledLayout(x.numel() - 1, x.numel() // 16, values), x.device)
        group = tiled.TiledGroup([buffers], 1)
        for dtype in _FLOATS[:2]:
            for begin in (0, 1):  # at a multiple of 16 bytes, and not
                gradient, rest = x.to(dtype)[begin:][: x.numel() - 1], x.clone()[: x.numel() - 1]
                step = tiled.TiledStep(buffers, gradient, gradient, rest, rest, row[0], rest, senders)
                tiled.encode(group, [step])
                tiled.decode(group, counts, [step], 0)
    for dtype in _FLOATS:
        step_sums.square(x.to(dtype), row[0])
        step_sums.signed(
            x.to(dtype), x[:16].view(16, 1), 1, torch.zeros(17, dtype=torch.float64, device=x.device)
        )
    step_sums.add_rows(row, torch.zeros(16, dtype=torch.float64, device=x.device), 11, 9)


def _run_owned(x: torch.Tensor) -> None:
    """Launch the kernels of messages of owners: each way to send values, in tiles of each size."""
    counts = torch.ones((), dtype=torch.bool, device=x.device)
    row = torch.zeros(step_sums.ROW, dtype=torch.float64, device=x.device)
    n = x.numel() - 1
    senders = torch.zeros(n, dtype=torch.uint8, device=x.device)
    for values, tile in itertools.product(get_args(tiled.Values), owned.TILES):
        buffers = owned.OwnedBuffers(owned.OwnedLayout(n, 256, values, 2, 1, tile), 0, x.device)
        group = owned.OwnedGroup([buffers], 2)
        for dtype, begin in itertools.product(_FLOATS[:2], (0, 1)):
            gradient, rest = x.to(dtype)[begin:][:n], x.clone()[:n]
            step = tiled.TiledStep(buffers, gradient, gradient, rest, rest, row, rest, senders)
            owned.encode(group, [step])
            owned.add_up(group, [step])
            owned.decode(group, counts, [step])


def _run_rounded(x: torch.Tensor) -> None:
    """Launch the kernels of rounded messages."""
    counts = torch.ones((), dtype=torch.bool, device=x.device)
    row = torch.zeros(step_sums.ROW, dtype=torch.float64, device=x.device)
    for rounding in (rounded.BFLOAT16, rounded.RANDOM, rounded.nearest(7)):
        buffers = rounded.RoundedBuffers(rounded.RoundedLayout(x.numel(), 1, True, rounding), 0, x.device)
        group = rounded.RoundedGroup([buffers])
        for dtype in _FLOATS[:2]:
            gradient, p = x.to(dtype), x.clone()
            members = [rounded.Member(buffers, gradient, p, p, row, gradient, True)]
            rounded.encode(group, members, [1])
            rounded.average(group, members, [1])
            rounded.decode(group, members, counts)
