"""A step of Adam in which only some elements of the gradient arrived."""

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import begin_of, narrowed, raw, room, widened
from gravac.kernels.cuda.build import jit, launch
from gravac.kernels.reference import OLDEST, STEP

BLOCK = 1024
"""Elements per program."""


@jit()
def _step_aged(
    param: tl.tensor,
    grad: tl.tensor,
    exp_avg: tl.tensor,
    exp_avg_sq: tl.tensor,
    age: tl.tensor,
    senders: tl.tensor,
    table: tl.tensor,
    rates: tl.tensor,
    beta1: tl.float32,
    share: tl.float32,
    n: tl.int64,
    last: tl.int32,
    WHOLE: tl.constexpr,
    STEP: tl.constexpr,
    OLDEST: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    if tl.load(rates + 4) == 0:  # else nothing changes
        begin, at = begin_of(SIZE), tl.arange(0, SIZE)
        inside = at < room(n, begin, SIZE)
        sent = inside.to(tl.int32)
        if not WHOLE:
            sent = tl.load(senders + begin + at, mask=inside, other=0).to(tl.int32)
        come = sent > 0
        wait = tl.load(age + begin + at, mask=inside, other=STEP).to(tl.int32)
        a = (wait.to(tl.float32) * (sent.to(tl.float32) * share) + 0.5).to(tl.int32)
        late, row = table + tl.minimum(wait, last) * 2, table + (last + 1 + tl.minimum(a, last)) * 2
        was = tl.load(param + begin + at, mask=inside, other=0)
        p = widened(was)
        kept = widened(tl.load(exp_avg + begin + at, mask=inside, other=0)) * beta1
        v = widened(tl.load(exp_avg_sq + begin + at, mask=inside, other=0))
        g = widened(tl.load(grad + begin + at, mask=come, other=0))
        u = g + tl.minimum(a, last).to(tl.float32) * (1 / STEP) * tl.load(rates + 3) * p
        way = tl.where(come, kept + u * tl.load(late + 1, mask=come, other=0), kept)
        m = tl.where(come, kept + u * tl.load(late, mask=come, other=0), kept)
        fresh = v * tl.load(row, mask=come, other=0) + u * tl.load(row + 1, mask=come, other=0) * u
        v = tl.where(come, fresh, v)
        p = p * tl.load(rates + 2) - tl.div_rn(way * tl.load(rates), tl.sqrt_rn(v) + tl.load(rates + 1))
        tl.store(param + begin + at, narrowed(p, was), mask=inside)
        tl.store(exp_avg + begin + at, narrowed(m, was), mask=inside)
        tl.store(exp_avg_sq + begin + at, narrowed(v, was), mask=come)
        older = tl.minimum(wait - a, OLDEST - STEP) + STEP
        tl.store(age + begin + at, older.to(tl.int16), mask=inside)


def step_aged(
    floats: list[Tensor], others: list[Tensor], table: Tensor, rates: Tensor, beta1: float, share: float
) -> None:
    """Do what ``gravac.kernels.step_aged`` does. ``others``: ages, and how many sent if it was not one for all."""
    n = others[0].numel()
    launch(
        _step_aged,
        -(-n // BLOCK),
        *map(raw, floats),
        others[0],
        others[-1].view(torch.uint8),
        table,
        rates,
        beta1,
        share,
        n,
        table.shape[1] - 1,
        WHOLE=len(others) == 1,
        STEP=STEP,
        OLDEST=OLDEST,
        SIZE=BLOCK,
    )
