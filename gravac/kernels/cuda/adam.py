"""A step of Adam in which only some elements of the gradients arrived."""

from collections.abc import Sequence
from functools import lru_cache
from struct import pack, unpack
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.backend import placed
from gravac.kernels.cuda.blocks import narrowed, room, widened
from gravac.kernels.cuda.build import jit, launch
from gravac.kernels.cuda.tables import DTYPES, number_at, tensor_at
from gravac.kernels.reference import AGE_ROWS, FINE, HALF_STEP, OLDEST, STEP, TO_STEPS

BLOCK = 1024
"""Elements per program."""
_PARAM, _GRAD, _FIRST, _SECOND, _AGE, _SENDERS, _N, _ROW, _SHARE, _GROWTH = (
    tl.constexpr(number) for number in range(10)
)
_COLUMNS = tl.constexpr(10)
"""Numbers of a parameter: addresses, elements, its row of ``rates``, and the bits of two floats."""


@jit()
def _step_aged(
    places: tl.tensor,
    cells: tl.tensor,
    table: tl.tensor,
    rates: tl.tensor,
    beta1: tl.float32,
    DTYPE: tl.constexpr,
    NONZERO: tl.constexpr,
    STEP: tl.constexpr,
    OLDEST: tl.constexpr,
    FINE: tl.constexpr,
    HALF_STEP: tl.constexpr,
    TO_STEPS: tl.constexpr,
    AGE_ROWS: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    place = tl.load(places + tl.program_id(0))
    cell = cells + (place >> 32) * _COLUMNS
    n, begin = tl.load(cell + _N), (place & 0xFFFFFFFF) * SIZE
    rates += number_at(cell + _ROW) * 5
    share = number_at(cell + _SHARE).to(tl.float32, bitcast=True)
    growth = number_at(cell + _GROWTH).to(tl.float32, bitcast=True)
    whole = tl.load(cell + _SENDERS) == 0
    skips = tl.load(rates + 4) != 0
    at = tl.arange(0, SIZE)
    inside = at < room(n, begin, SIZE)
    age = tensor_at(cell + _AGE, tl.int16, False) + begin + at
    wait = tl.load(age, mask=inside, other=STEP).to(tl.int32)
    if growth != 1.0:
        older = (wait - STEP).to(tl.float32) * growth + 0.5
        wait = tl.minimum(older, OLDEST - STEP).to(tl.int32) + STEP
    if not skips:
        sent = inside.to(tl.int32)
        if not whole:
            senders = tensor_at(cell + _SENDERS, tl.uint8, False) + begin + at
            sent = tl.load(senders, mask=inside, other=0).to(tl.int32)
        come, part = sent > 0, sent.to(tl.float32) * share
        grad = tensor_at(cell + _GRAD, DTYPE, False) + begin + at
        g = widened(tl.load(grad, mask=inside if NONZERO else come, other=0))
        if NONZERO:
            part = tl.where(g != 0, tl.where(come, part, 1.0), 0.0)
            come = g != 0
        a = (wait.to(tl.float32) * part + 0.5).to(tl.int32)
        late = table + tl.minimum(wait, FINE + ((wait - FINE + HALF_STEP) >> TO_STEPS)) * 2
        row = table + (AGE_ROWS + tl.minimum(a, FINE + ((a - FINE + HALF_STEP) >> TO_STEPS))) * 2
        param = tensor_at(cell + _PARAM, DTYPE, False) + begin + at
        first = tensor_at(cell + _FIRST, DTYPE, False) + begin + at
        second = tensor_at(cell + _SECOND, DTYPE, False) + begin + at
        was = tl.load(param, mask=inside, other=0)
        p = widened(was)
        kept = widened(tl.load(first, mask=inside, other=0)) * beta1
        v = widened(tl.load(second, mask=inside, other=0))
        u = g + a.to(tl.float32) * (1 / STEP) * tl.load(rates + 3) * p
        way = tl.where(come, kept + u * tl.load(late + 1, mask=come, other=0), kept)
        m = tl.where(come, kept + u * tl.load(late, mask=come, other=0), kept)
        fresh = v * tl.load(row, mask=come, other=0) + u * tl.load(row + 1, mask=come, other=0) * u
        v = tl.where(come, fresh, v)
        p = p * tl.load(rates + 2) - tl.div_rn(way * tl.load(rates), tl.sqrt_rn(v) + tl.load(rates + 1))
        tl.store(param, narrowed(p, was), mask=inside)
        tl.store(first, narrowed(m, was), mask=inside)
        tl.store(second, narrowed(v, was), mask=come)
        wait = tl.minimum(wait - a, OLDEST - STEP) + STEP
    tl.store(age, wait.to(tl.int16), mask=inside)


def step_aged(
    steps: Sequence[tuple[int, list[Tensor], list[Tensor], Any]],
    table: Tensor,
    rates: Tensor,
    beta1: float,
    nonzero: bool,
) -> None:
    """Do what ``gravac.kernels.step_aged`` does, in one launch.

    Args:
        steps: Of each parameter, all of one dtype: its row of ``rates``; parameter, gradient and moments; ages, and how
            many sent if it was not one for all; and the ``AgedStep``.
        table: As there, and so the next two.
        rates: See there.
        beta1: See there.
        nonzero: Of all.
    """
    cells: list[int] = []
    for row, floats, others, step in steps:
        senders = others[1].data_ptr() if len(others) > 1 else 0
        cells += [one.data_ptr() for one in floats]
        cells += [others[0].data_ptr(), senders, floats[0].numel(), row, *_bits(step.share, step.growth)]
    device = table.device
    places = _places(tuple(floats[0].numel() for _, floats, _, _ in steps), BLOCK, device)
    launch(
        _step_aged,
        places.numel(),
        places,
        placed(torch.tensor(cells, dtype=torch.int64, device="cpu"), device),
        table,
        rates,
        beta1,
        warps=8,  # with four, what a thread computes does not fit into its registers on an A100
        DTYPE=DTYPES[steps[0][1][0].dtype],
        NONZERO=nonzero,
        STEP=STEP,
        OLDEST=OLDEST,
        FINE=FINE,
        HALF_STEP=HALF_STEP,
        TO_STEPS=TO_STEPS,
        AGE_ROWS=AGE_ROWS,
        SIZE=BLOCK,
    )


def _bits(*values: float) -> tuple[int, ...]:
    return unpack(f"{len(values)}i", pack(f"{len(values)}f", *values))


@lru_cache(maxsize=8)
def _places(sizes: tuple[int, ...], part: int, device: torch.device) -> Tensor:
    """Return what each program works on: a parameter, and in the lower 32 bits which part of it."""
    parts = torch.tensor([-(-size // part) for size in sizes], dtype=torch.int64, device="cpu")
    members = torch.repeat_interleave(torch.arange(len(sizes), dtype=torch.int64, device="cpu"), parts)
    firsts = parts.cumsum(0) - parts
    within = torch.arange(members.numel(), dtype=torch.int64, device="cpu") - firsts[members]
    return placed((members << 32) | within, device)
