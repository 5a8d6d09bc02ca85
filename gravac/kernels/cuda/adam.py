"""A step of Adam in which only some elements of the gradient arrived."""

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import begin_of, narrowed, raw, room, widened
from gravac.kernels.cuda.build import jit, launch
from gravac.kernels.reference import AGE_ROWS, FINE, HALF_STEP, OLDEST, STEP, TO_STEPS

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
    growth: tl.float32,
    n: tl.int64,
    WHOLE: tl.constexpr,
    NONZERO: tl.constexpr,
    STEP: tl.constexpr,
    OLDEST: tl.constexpr,
    FINE: tl.constexpr,
    HALF_STEP: tl.constexpr,
    TO_STEPS: tl.constexpr,
    AGE_ROWS: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    begin, at = begin_of(SIZE), tl.arange(0, SIZE)
    inside = at < room(n, begin, SIZE)
    wait = tl.load(age + begin + at, mask=inside, other=STEP).to(tl.int32)
    if growth != 1.0:
        older = (wait - STEP).to(tl.float32) * growth + 0.5
        wait = tl.minimum(older, OLDEST - STEP).to(tl.int32) + STEP
    if tl.load(rates + 4) == 0:
        sent = inside.to(tl.int32)
        if not WHOLE:
            sent = tl.load(senders + begin + at, mask=inside, other=0).to(tl.int32)
        come, part = sent > 0, sent.to(tl.float32) * share
        g = widened(tl.load(grad + begin + at, mask=inside if NONZERO else come, other=0))
        if NONZERO:
            part = tl.where(g != 0, tl.where(come, part, 1.0), 0.0)
            come = g != 0
        a = (wait.to(tl.float32) * part + 0.5).to(tl.int32)
        late = table + tl.minimum(wait, FINE + ((wait - FINE + HALF_STEP) >> TO_STEPS)) * 2
        row = table + (AGE_ROWS + tl.minimum(a, FINE + ((a - FINE + HALF_STEP) >> TO_STEPS))) * 2
        was = tl.load(param + begin + at, mask=inside, other=0)
        p = widened(was)
        kept = widened(tl.load(exp_avg + begin + at, mask=inside, other=0)) * beta1
        v = widened(tl.load(exp_avg_sq + begin + at, mask=inside, other=0))
        u = g + a.to(tl.float32) * (1 / STEP) * tl.load(rates + 3) * p
        way = tl.where(come, kept + u * tl.load(late + 1, mask=come, other=0), kept)
        m = tl.where(come, kept + u * tl.load(late, mask=come, other=0), kept)
        fresh = v * tl.load(row, mask=come, other=0) + u * tl.load(row + 1, mask=come, other=0) * u
        v = tl.where(come, fresh, v)
        p = p * tl.load(rates + 2) - tl.div_rn(way * tl.load(rates), tl.sqrt_rn(v) + tl.load(rates + 1))
        tl.store(param + begin + at, narrowed(p, was), mask=inside)
        tl.store(exp_avg + begin + at, narrowed(m, was), mask=inside)
        tl.store(exp_avg_sq + begin + at, narrowed(v, was), mask=come)
        wait = tl.minimum(wait - a, OLDEST - STEP) + STEP
    tl.store(age + begin + at, wait.to(tl.int16), mask=inside)


def step_aged(
    floats: list[Tensor],
    others: list[Tensor],
    table: Tensor,
    rates: Tensor,
    beta1: float,
    share: float,
    growth: float,
    nonzero: bool,
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
        growth,
        n,
        warps=8,  # with four, what a thread computes does not fit into its registers on an A100
        WHOLE=len(others) == 1,
        NONZERO=nonzero,
        STEP=STEP,
        OLDEST=OLDEST,
        FINE=FINE,
        HALF_STEP=HALF_STEP,
        TO_STEPS=TO_STEPS,
        AGE_ROWS=AGE_ROWS,
        SIZE=BLOCK,
    )
