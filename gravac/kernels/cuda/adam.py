"""A step of Adam in which only some elements of the gradient arrived."""

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import begin_of, narrowed, raw, room, widened
from gravac.kernels.cuda.build import jit, launch

BLOCK = 1024
"""Elements per program."""
COLUMNS = 7
"""Of the table."""


@jit()
def _step_aged(
    param: tl.tensor,
    grad: tl.tensor,
    exp_avg: tl.tensor,
    exp_avg_sq: tl.tensor,
    age: tl.tensor,
    arrived: tl.tensor,
    table: tl.tensor,
    rates: tl.tensor,
    n: tl.int64,
    oldest: tl.int32,
    WHOLE: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    if tl.load(rates + 4) == 0:  # else nothing changes
        begin, at = begin_of(SIZE), tl.arange(0, SIZE)
        inside = at < room(n, begin, SIZE)
        come = inside
        if not WHOLE:
            come = tl.load(arrived + begin + at, mask=inside, other=0) > 0
        old = tl.load(age + begin + at, mask=inside, other=1).to(tl.int32)
        row = table + tl.where(come, old, 0) * COLUMNS
        was = tl.load(param + begin + at, mask=inside, other=0)
        p = widened(was)
        m = widened(tl.load(exp_avg + begin + at, mask=inside, other=0))
        v = widened(tl.load(exp_avg_sq + begin + at, mask=inside, other=0))
        g = widened(tl.load(grad + begin + at, mask=come, other=0))
        u = g + tl.load(row + 6) * tl.load(rates + 3) * p
        carried, kept = m * tl.load(row + 4), m * tl.load(row)
        way = tl.where(come, carried + u * tl.load(row + 5), carried)
        m = tl.where(come, kept + u * tl.load(row + 1), kept)
        v = tl.where(come, v * tl.load(row + 2) + u * tl.load(row + 3) * u, v)
        p = p * tl.load(rates + 2) - tl.div_rn(way * tl.load(rates), tl.sqrt_rn(v) + tl.load(rates + 1))
        tl.store(param + begin + at, narrowed(p, was), mask=inside)
        tl.store(exp_avg + begin + at, narrowed(m, was), mask=inside)
        tl.store(exp_avg_sq + begin + at, narrowed(v, was), mask=come)
        older = tl.where(come, 1, tl.minimum(old + 1, oldest))
        tl.store(age + begin + at, older.to(tl.int8), mask=inside)


def step_aged(floats: list[Tensor], others: list[Tensor], table: Tensor, rates: Tensor) -> None:
    """Do what ``gravac.kernels.step_aged`` does. ``others``: ages, and what arrived if not everything did."""
    n = others[0].numel()
    launch(
        _step_aged,
        -(-n // BLOCK),
        *map(raw, floats),
        others[0],
        others[-1].view(torch.uint8),
        table,
        rates,
        n,
        table.shape[0] - 1,
        WHOLE=len(others) == 1,
        COLUMNS=COLUMNS,
        SIZE=BLOCK,
    )
