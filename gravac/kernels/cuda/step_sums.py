"""Sums of a step that stay on the device: of buckets, and of their rows into the tick."""

import math

import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import aligned, begin_of, raw, read, room, widened
from gravac.kernels.cuda.build import jit, launch
from gravac.kernels.reference import SUM_BLOCK

ROWS_AT_ONCE = 64
"""Rows that a program adds up together: one after the other they would take it about as many microseconds."""
SIGNS_AT_ONCE = 512
"""Elements of a row that a program reads together."""


@jit("x")
def _squares(x: tl.tensor, row: tl.tensor, n: tl.int64, SIZE: tl.constexpr) -> None:
    begin, at, all_of = begin_of(SIZE), tl.arange(0, SIZE), tl.arange(0, 8)
    value = widened(read(x + begin, at, room(n, begin, SIZE), SIZE)).to(tl.float64)
    total = tl.zeros([8], tl.float64) + tl.sum(value * value)
    tl.atomic_add(row + all_of, total, mask=all_of < 6, sem="relaxed")


@jit()
def _add_rows(
    rows: tl.tensor,
    vector: tl.tensor,
    count: tl.int32,
    names: tl.int32,
    last_flag: tl.int32,
    SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    at = tl.arange(0, SIZE)
    total = tl.load(vector + at, mask=at < names, other=0.0)
    for begin in range(0, count, AT_ONCE):
        number = begin + tl.arange(0, AT_ONCE)
        row, inside = rows + number * 6, number < count
        gradient = tl.load(row, mask=inside, other=0.0)
        both = tl.load(row + 1, mask=inside, other=0.0)
        sent = tl.load(row + 2, mask=inside, other=0.0)
        inner = tl.load(row + 3, mask=inside, other=0.0)
        dot = tl.load(row + 4, mask=inside, other=0.0)
        sent_dot = tl.load(row + 5, mask=inside, other=0.0)
        kept = tl.where(sent > 0.0, inner * inner / tl.where(sent > 0.0, sent, 1.0), 0.0)
        finite = (gradient < float("inf")) & (both < float("inf"))
        total += tl.where(at == 0, tl.sum(gradient), 0.0)
        total += tl.where(at == 1, tl.sum(both), 0.0)
        total += tl.where(at == 2, tl.sum(sent), 0.0)
        total += tl.where((at == 3) | (at == 4), tl.sum(kept), 0.0)
        total += tl.where(at == 5, tl.sum(tl.maximum(both - 2.0 * inner + sent, 0.0)), 0.0)
        total += tl.where(at == 6, tl.sum(dot - sent_dot), 0.0)
        total += tl.where(at == 7, tl.sum(tl.where(finite, 0.0, 1.0)), 0.0)
        for part in range(6):
            tl.store(row + part, tl.zeros([AT_ONCE], tl.float64), mask=inside)
    bad = tl.sum(tl.where(at == 7, total, 0.0))
    total = tl.where((at < 7) | (at > last_flag), tl.where(bad > 0.0, 0.0, total), total)
    tl.store(vector + at, tl.where(at == 7, tl.minimum(total, 1.0), total), mask=at < names)


@jit()
def _signed(
    x: tl.tensor,
    signs: tl.tensor,
    sums: tl.tensor,
    n: tl.int64,
    every: tl.int64,
    columns: tl.int32,
    share: tl.float64,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    row, total, square = tl.program_id(0), tl.zeros([SIZE], tl.float64), tl.zeros([SIZE], tl.float64)
    for begin in range(0, columns, SIZE):
        column = begin + tl.arange(0, SIZE)
        at = row.to(tl.int64) * columns + column
        inside = (column < columns) & (at * every < n)
        value = widened(tl.load(x + at * every, mask=inside, other=0)).to(tl.float64)
        total += value * tl.load(signs + at, mask=inside, other=0.0).to(tl.float64)
        square += value * value
    tl.store(sums + row, tl.load(sums + row) + share * tl.sum(total))
    tl.atomic_add(sums + ROWS, every * tl.sum(square), sem="relaxed")


def signed(x: Tensor, signs: Tensor, every: int, sums: Tensor) -> None:
    """Does what ``device.step_sums.signed`` does, in one launch."""
    rows, columns = signs.shape
    launch(
        _signed,
        rows,
        *(raw(x), signs, sums, x.numel(), every, columns, math.sqrt(every)),
        warps=4,
        ROWS=rows,
        SIZE=SIGNS_AT_ONCE,
    )


def square(x: Tensor, row: Tensor) -> None:
    """Does what ``gravac.kernels.device.step_sums.square`` does, in one launch."""
    n = x.numel()
    launch(_squares, -(-n // SUM_BLOCK), raw(aligned(x)), row, n, warps=8, SIZE=SUM_BLOCK)


def add_rows(rows: Tensor, vector: Tensor, names: int, last_flag: int) -> None:
    """Does what ``gravac.kernels.device.step_sums.add_rows`` does, in one launch."""
    launch(
        _add_rows, 1, rows, vector, rows.shape[0], names, last_flag, warps=2, SIZE=16, AT_ONCE=ROWS_AT_ONCE
    )
