"""Every element of a gradient in few bits, in a few launches: see ``gravac.kernels.device.rounded``."""

import struct
from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import bits_of, float_of, narrowed, raw, read, widened, write
from gravac.kernels.cuda.build import jit, launch
from gravac.kernels.cuda.draws import noise
from gravac.kernels.cuda.tables import (
    DTYPES,
    in_runs,
    member_of,
    number_at,
    part_of,
    row_of,
    table_of,
    tensor_at,
)
from gravac.kernels.nearest import FINE, GRIDS, SHIFT
from gravac.kernels.randomness import stream
from gravac.kernels.reference import MEMBERS

AT_ONCE = 4096
"""Elements that a program works on, at least: each ends with six atomics."""
_WARPS = 8

_LINES, _COLUMNS = tl.constexpr(1), tl.constexpr(29)
_G, _E, _P, _ROW, _OUT = (tl.constexpr(number) for number in range(5))
_MESSAGE, _PARTS, _MEAN, _LOST, _ARRIVED = (tl.constexpr(number) for number in range(5, 10))
_N, _SIZE, _STRIDE, _SCALES, _PROGRAMS, _CHUNK = (tl.constexpr(number) for number in range(10, 16))
_BASE, _DIGITS, _WHOLE, _STEPS, _FACTORS = (tl.constexpr(number) for number in range(16, 21))
_SIGNS, _VOICES, _SHARE, _OWN, _UNDONE, _SHARDS = (tl.constexpr(number) for number in range(23, 29))
"""Columns of a bucket's row. There are three factors."""
_FINE, _SHIFT, _HALF = tl.constexpr(float(FINE)), tl.constexpr(SHIFT), tl.constexpr(1 << SHIFT >> 1)
_TOP = tl.constexpr(torch.finfo(torch.bfloat16).max)
_EVEN = tl.constexpr(12582912.0)
"""Added to a small float32 and taken away again, it rounds to the nearest whole number, half to the even one."""


@jit()
def _nearest(value: tl.tensor, real: tl.tensor, cells: tl.tensor) -> tl.tensor:
    """Returns the spacing of each row, as bits of bfloat16: see ``kernels.nearest``."""
    top, steps = tl.max(tl.abs(value), 1), number_at(cells + _STEPS)
    usable = (top > 0.0) & (top < float("inf"))
    share = tl.div_rn(tl.where(usable[:, None], tl.abs(value), 0.0), tl.where(usable, top, 1.0)[:, None])
    fine = (share * _FINE + 0.5).to(tl.int32)
    ratio, best = tl.zeros_like(top), tl.zeros_like(top) - 1.0
    for number in range(3):
        level = tl.minimum((fine * number_at(cells + _FACTORS + number) + _HALF) >> _SHIFT, steps)
        product = tl.sum(level * fine, 1).to(tl.float32)
        square = tl.maximum(tl.sum(level * level, 1), 1).to(tl.float32)
        kept = tl.div_rn(product * product, square)
        ratio = tl.where(kept > best, tl.div_rn(product, square), ratio)
        best = tl.maximum(kept, best)
    mean = tl.div_rn(tl.sum(fine, 1).to(tl.float32), tl.maximum(real, 1).to(tl.float32))
    ratio = tl.where(number_at(cells + _SIGNS) != 0, mean, ratio)
    most = tl.div_rn(tl.zeros_like(top) + _TOP, tl.zeros_like(top) + steps.to(tl.float32))
    spacing = tl.div_rn(ratio, tl.zeros_like(top) + _FINE) * top
    spacing = tl.minimum(tl.minimum(spacing, top * 2.0), most)
    return bits_of(tl.where(top < float("inf"), spacing, top))


@jit()
def _restored(code: tl.tensor, scale: tl.tensor, cells: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """Returns the values that codes stand for. Scales are bits."""
    if KIND == 0:
        value = float_of(code)
    elif KIND == 1:
        level = (code - 127).to(tl.float32)
        value = tl.div_rn(level, tl.zeros_like(level) + 127.0) * scale.to(tl.float32, bitcast=True)
    else:
        signs = number_at(cells + _SIGNS)
        level = code * (1 + signs) - number_at(cells + _STEPS)
        value = level.to(tl.float32) * float_of(scale)
    return value


@jit()
def _rounded(
    value: tl.tensor,
    real: tl.tensor,
    draws: tl.int64,
    begin: tl.int64,
    cells: tl.tensor,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Returns the codes of some blocks, and their scales as bits."""
    if KIND == 0:
        capped = tl.minimum(tl.maximum(value, -_TOP), _TOP)
        code = bits_of(tl.where(tl.abs(value) < float("inf"), capped, value))
        scale = tl.zeros([ROWS], tl.int32)
    elif KIND == 1:
        top = tl.max(tl.abs(value), 1)
        usable = (top > 0.0) & (top < float("inf"))
        share = tl.where(usable[:, None], value, 0.0)
        share = tl.div_rn(share, tl.where(usable, top, 1.0)[:, None]) * 127.0
        low = tl.floor(share)
        drawn = tl.reshape(noise(draws, begin, ROWS * BLOCK), (ROWS, BLOCK))
        code = low.to(tl.int32) + (drawn < share - low).to(tl.int32) + 127
        scale = top.to(tl.int32, bitcast=True)
    else:
        scale = _nearest(value, real, cells)
        spacing, steps = float_of(scale), number_at(cells + _STEPS)
        usable = (spacing > 0.0) & (spacing < float("inf"))
        share = tl.where(usable[:, None], value, 0.0)
        share = tl.div_rn(share, tl.where(usable, spacing, 1.0)[:, None])
        share = tl.minimum(tl.maximum(share, -steps.to(tl.float32)), steps.to(tl.float32))
        code = ((share + _EVEN) - _EVEN).to(tl.int32) + steps
        code = tl.where(number_at(cells + _SIGNS) != 0, (value >= 0.0).to(tl.int32), code)
    return code, scale


@jit()
def _fractions(word: tl.tensor, cells: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """Returns whole numbers of so many digits as fractions of 2^32."""
    if KIND == 2:
        whole = tl.load(cells + _WHOLE).to(tl.uint64)
        word = (((word.to(tl.uint64) << 32) + (whole - 1)) // whole).to(tl.uint32)
    return word.to(tl.int32, bitcast=True)


@jit()
def _digit(word: tl.tensor, power: tl.tensor, base: tl.tensor) -> tl.tensor:
    """Returns the digit that ``power``, of the base, brings out in front."""
    rest = (word.to(tl.uint32, bitcast=True) * power).to(tl.uint64)
    return ((rest * base.to(tl.uint64)) >> 32).to(tl.int32)


@jit()
def _scale_at(
    words: tl.tensor,
    halves: tl.tensor,
    scales: tl.tensor,
    block: tl.tensor,
    inside: tl.tensor,
    KIND: tl.constexpr,
) -> tl.tensor:
    """Returns the scales of blocks, as bits."""
    if KIND == 0:
        found = tl.zeros_like(block)
    elif KIND == 1:
        found = tl.load(words + scales + block, mask=inside, other=0)
    else:
        found = tl.load(halves + 2 * scales + block, mask=inside, other=0).to(tl.int32) & 0xFFFF
    return found


@jit()
def _keep_scale(
    words: tl.tensor,
    halves: tl.tensor,
    scales: tl.tensor,
    block: tl.tensor,
    scale: tl.tensor,
    inside: tl.tensor,
    KIND: tl.constexpr,
) -> None:
    if KIND == 1:
        tl.store(words + scales + block, scale, mask=inside)
    elif KIND == 2:
        tl.store(halves + 2 * scales + block, scale.to(tl.int16), mask=inside)


@jit()
def _width(group: tl.tensor, cells: tl.tensor, BLOCK: tl.constexpr, SIZE: tl.constexpr) -> tl.tensor:
    """Returns the elements of a row of a group: fewer in the last one."""
    digits = number_at(cells + _DIGITS)
    rest = number_at(cells + _SIZE) - group * digits * SIZE
    each = digits * BLOCK
    return tl.minimum((rest + each - 1) // each * BLOCK, SIZE)


@jit()
def _stream(
    first: tl.int64, second: tl.int64, third: tl.int64, fourth: tl.int64, member: tl.tensor
) -> tl.tensor:
    """Returns where the random numbers of a member begin."""
    return tl.where(member == 0, first, tl.where(member == 1, second, tl.where(member == 2, third, fourth)))


@jit()
def _encode(
    table: tl.tensor,
    first: tl.int64,
    second: tl.int64,
    third: tl.int64,
    fourth: tl.int64,
    KIND: tl.constexpr,
    DTYPE: tl.constexpr,
    RUNS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Adds the residual, rounds, and measures: some groups of one piece."""
    SIZE: tl.constexpr = ROWS * BLOCK
    member = member_of(table)
    cells, part = row_of(table, member, _LINES, _COLUMNS), part_of(table, member)
    g, e, p = (
        tensor_at(cells + _G, DTYPE, RUNS),
        tensor_at(cells + _E, tl.float32, RUNS),
        tensor_at(cells + _P, tl.float32, RUNS),
    )
    waits = tl.load(cells + _E) != 0
    digits, base = number_at(cells + _DIGITS), number_at(cells + _BASE).to(tl.uint32)
    size, scales, programs = (
        number_at(cells + _SIZE),
        number_at(cells + _SCALES),
        number_at(cells + _PROGRAMS),
    )
    piece, chunk = part // programs, number_at(cells + _CHUNK)
    origin = piece.to(tl.int64) * size
    end = tl.minimum(tl.load(cells + _N), origin + size)
    offset = tl.multiple_of(piece.to(tl.int64) * number_at(cells + _STRIDE), 4)
    words = tensor_at(cells + _MESSAGE, tl.int32, RUNS) + offset
    halves = tensor_at(cells + _MESSAGE, tl.int16, RUNS) + 2 * offset
    draws = _stream(first, second, third, fourth, member)
    lane = tl.arange(0, ROWS)
    at = lane[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    zero = tl.zeros([ROWS, BLOCK], tl.float64)
    gg, pp, ss, sp, pg, sg = zero, zero, zero, zero, zero, zero
    until = tl.minimum((part % programs + 1) * chunk, (size + digits * SIZE - 1) // (digits * SIZE))
    for group in range(part % programs * chunk, until):
        width = _width(group, cells, BLOCK, SIZE)
        word = tl.zeros([ROWS, BLOCK], tl.uint32)
        for digit in range(digits):
            place = group * digits * SIZE + digit * width
            begin = tl.multiple_of(origin + place, BLOCK)
            left = tl.maximum(tl.minimum(end - begin, width), 0).to(tl.int32)
            x = widened(read(g + begin, at, left, SIZE))
            value = tl.where(tl.abs(x) < float("inf"), x, 0.0)
            if waits:
                value += read(e + begin, at, left, SIZE)
            real = tl.minimum(tl.maximum(left - lane * BLOCK, 0), BLOCK)
            code, scale = _rounded(value, real, draws, begin, cells, KIND, ROWS, BLOCK)
            sent = _restored(code, scale[:, None], cells, KIND)
            write(p + begin, at, value - sent, left, SIZE)
            kept = (lane * BLOCK < width) & (place + lane * BLOCK < size)
            _keep_scale(words, halves, scales, place // BLOCK + lane, scale, kept, KIND)
            word = word * base + code.to(tl.uint32)
            wide, both = x.to(tl.float64), value.to(tl.float64)
            gone = tl.where(at < left, sent, 0.0).to(tl.float64)
            gg += wide * wide
            pp += both * both
            ss += gone * gone
            sp += gone * both
            pg += both * wide
            sg += gone * wide
        tl.store(words + group * SIZE + at, _fractions(word, cells, KIND), mask=at < width)
    row = tensor_at(cells + _ROW, tl.float64, False)
    tl.atomic_add(row, tl.sum(gg), sem="relaxed")
    tl.atomic_add(row + 1, tl.sum(pp), sem="relaxed")
    tl.atomic_add(row + 2, tl.sum(ss), sem="relaxed")
    tl.atomic_add(row + 3, tl.sum(sp), sem="relaxed")
    tl.atomic_add(row + 4, tl.sum(pg), sem="relaxed")
    tl.atomic_add(row + 5, tl.sum(sg), sem="relaxed")


@jit()
def _heard(
    base: tl.tensor,
    halves: tl.tensor,
    word: tl.tensor,
    block: tl.tensor,
    at: tl.tensor,
    width: tl.tensor,
    inside: tl.tensor,
    power: tl.tensor,
    cells: tl.tensor,
    KIND: tl.constexpr,
) -> tl.tensor:
    """Returns a row of values of a message."""
    found = tl.load(base + word + at, mask=at < width, other=0)
    code = _digit(found, power, number_at(cells + _BASE).to(tl.uint32))
    scale = _scale_at(base, halves, number_at(cells + _SCALES), block, inside, KIND)
    return _restored(code, scale[:, None], cells, KIND)


@jit()
def _average(
    table: tl.tensor,
    first: tl.int64,
    second: tl.int64,
    third: tl.int64,
    fourth: tl.int64,
    KIND: tl.constexpr,
    DTYPE: tl.constexpr,
    RUNS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Averages and rounds some groups of this rank's shard."""
    SIZE: tl.constexpr = ROWS * BLOCK
    member = member_of(table)
    cells, part = row_of(table, member, _LINES, _COLUMNS), part_of(table, member)
    g, p = tensor_at(cells + _G, DTYPE, RUNS), tensor_at(cells + _P, tl.float32, RUNS)
    lost = tensor_at(cells + _LOST, tl.float32, RUNS)
    digits, base = number_at(cells + _DIGITS), number_at(cells + _BASE).to(tl.uint32)
    size, scales, chunk = number_at(cells + _SIZE), number_at(cells + _SCALES), number_at(cells + _CHUNK)
    length, own = number_at(cells + _STRIDE).to(tl.int64), number_at(cells + _OWN).to(tl.int64)
    voices, share = number_at(cells + _VOICES), number_at(cells + _SHARE).to(tl.float32, bitcast=True)
    origin = own * size
    end = tl.minimum(tl.load(cells + _N), origin + size)
    parts, narrow = tensor_at(cells + _PARTS, tl.int32, RUNS), tensor_at(cells + _PARTS, tl.int16, RUNS)
    words, halves = tensor_at(cells + _MEAN, tl.int32, RUNS), tensor_at(cells + _MEAN, tl.int16, RUNS)
    draws = _stream(first, second, third, fourth, member)
    lane = tl.arange(0, ROWS)
    at = lane[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    zero = tl.zeros([ROWS, BLOCK], tl.float64)
    ss, sp, sg = zero, zero, zero
    until = tl.minimum((part + 1) * chunk, (size + digits * SIZE - 1) // (digits * SIZE))
    for group in range(part * chunk, until):
        width = _width(group, cells, BLOCK, SIZE)
        word, power = tl.zeros([ROWS, BLOCK], tl.uint32), base * 0 + 1
        for digit in range(digits):
            place = group * digits * SIZE + digit * width
            begin = tl.multiple_of(origin + place, BLOCK)
            left = tl.maximum(tl.minimum(end - begin, width), 0).to(tl.int32)
            kept = (lane * BLOCK < width) & (place + lane * BLOCK < size)
            block = place // BLOCK + lane
            total = tl.zeros([ROWS, BLOCK], tl.float32)
            for voice in range(voices):
                offset = tl.multiple_of(voice * length, 4)
                value = _heard(
                    parts + offset,
                    narrow + 2 * offset,
                    group * SIZE,
                    block,
                    at,
                    width,
                    kept,
                    power,
                    cells,
                    KIND,
                )
                total += value * share
            total = tl.where(at < left, total, 0.0)
            real = tl.minimum(tl.maximum(left - lane * BLOCK, 0), BLOCK)
            code, scale = _rounded(total, real, draws, tl.cast(place, tl.int64), cells, KIND, ROWS, BLOCK)
            less = (total - _restored(code, scale[:, None], cells, KIND)) * voices.to(tl.float32)
            less = tl.where(at < left, less, 0.0)
            write(lost + place, at, less, left, SIZE)
            _keep_scale(words, halves, scales, block, scale, kept, KIND)
            word = word * base + code.to(tl.uint32)
            mine = tl.multiple_of(own * length, 4)
            before = _heard(
                parts + mine, narrow + 2 * mine, group * SIZE, block, at, width, kept, power, cells, KIND
            )
            before = tl.where(at < left, before, 0.0)
            power *= base
            gone, rest = less.to(tl.float64), read(p + begin, at, left, SIZE) + before
            ss += gone * (gone - 2.0 * before.to(tl.float64))
            sp -= gone * rest.to(tl.float64)
            sg -= gone * widened(read(g + begin, at, left, SIZE)).to(tl.float64)
        tl.store(words + group * SIZE + at, _fractions(word, cells, KIND), mask=at < width)
    row = tensor_at(cells + _ROW, tl.float64, False)
    tl.atomic_add(row + 2, tl.sum(ss), sem="relaxed")
    tl.atomic_add(row + 3, tl.sum(sp), sem="relaxed")
    tl.atomic_add(row + 5, tl.sum(sg), sem="relaxed")


@jit()
def _decode(
    table: tl.tensor,
    counts: tl.tensor,
    KIND: tl.constexpr,
    DTYPE: tl.constexpr,
    RUNS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Writes some groups of the mean, in rank order; or NaN, and undoes the step, where it does not count."""
    SIZE: tl.constexpr = ROWS * BLOCK
    member = member_of(table)
    cells, part = row_of(table, member, _LINES, _COLUMNS), part_of(table, member)
    g, p = tensor_at(cells + _G, DTYPE, RUNS), tensor_at(cells + _P, tl.float32, RUNS)
    out, lost = tensor_at(cells + _OUT, DTYPE, RUNS), tensor_at(cells + _LOST, tl.float32, RUNS)
    counted = tl.load(counts) != 0
    undone = (number_at(cells + _UNDONE) != 0) & (counted == 0)
    digits, base = number_at(cells + _DIGITS), number_at(cells + _BASE).to(tl.uint32)
    size, programs, chunk = (
        number_at(cells + _SIZE),
        number_at(cells + _PROGRAMS),
        number_at(cells + _CHUNK),
    )
    piece, length = part // programs, number_at(cells + _STRIDE).to(tl.int64)
    origin = piece.to(tl.int64) * size
    end = tl.minimum(tl.load(cells + _N), origin + size)
    sharded = number_at(cells + _SHARDS) != 0
    voices = tl.where(sharded, 1, number_at(cells + _VOICES))
    share = tl.where(sharded, 1.0, number_at(cells + _SHARE).to(tl.float32, bitcast=True))
    adds = sharded & counted & (piece == number_at(cells + _OWN))
    mine = tl.multiple_of(piece * length, 4)
    words = tensor_at(cells + _MESSAGE, tl.int32, RUNS) + mine
    halves = tensor_at(cells + _MESSAGE, tl.int16, RUNS) + 2 * mine
    arrived, narrow = tensor_at(cells + _ARRIVED, tl.int32, RUNS), tensor_at(cells + _ARRIVED, tl.int16, RUNS)
    lane = tl.arange(0, ROWS)
    at = lane[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    like = tl.load(g)  # its type is that of the mean
    until = tl.minimum((part % programs + 1) * chunk, (size + digits * SIZE - 1) // (digits * SIZE))
    for group in range(part % programs * chunk, until):
        width, power = _width(group, cells, BLOCK, SIZE), base * 0 + 1
        for digit in range(digits):
            place = group * digits * SIZE + digit * width
            begin = tl.multiple_of(origin + place, BLOCK)
            left = tl.maximum(tl.minimum(end - begin, width), 0).to(tl.int32)
            kept = (lane * BLOCK < width) & (place + lane * BLOCK < size)
            block = place // BLOCK + lane
            if undone:
                x = widened(read(g + begin, at, left, SIZE))  # before the mean takes its place
                sent = _heard(words, halves, group * SIZE, block, at, width, kept, power, cells, KIND)
                rest = read(p + begin, at, left, SIZE) + sent
                write(p + begin, at, rest - tl.where(tl.abs(x) < float("inf"), x, 0.0), left, SIZE)
            if adds:
                rest = read(p + begin, at, left, SIZE) + read(lost + place, at, left, SIZE)
                write(p + begin, at, rest, left, SIZE)
            total = tl.zeros([ROWS, BLOCK], tl.float32)
            for voice in range(voices):
                offset = tl.multiple_of((piece + voice) * length, 4)
                value = _heard(
                    arrived + offset,
                    narrow + 2 * offset,
                    group * SIZE,
                    block,
                    at,
                    width,
                    kept,
                    power,
                    cells,
                    KIND,
                )
                total = tl.where(sharded, value, total + value * share)
            power *= base
            tl.debug_barrier()
            mean = tl.where(counted, total, float("nan"))
            write(out + begin, at, narrowed(mean, like), left, SIZE)


def encode(group: Any, members: Sequence[Any], seeds: Sequence[int]) -> None:
    """Does what ``device.rounded.encode`` does, in one launch."""
    _launch(_encode, group, members, seeds=seeds)


def average(group: Any, members: Sequence[Any], seeds: Sequence[int]) -> None:
    """Does what ``device.rounded.average`` does, in one launch."""
    _launch(_average, group, members, seeds=seeds)


def decode(group: Any, members: Sequence[Any], counts: Tensor) -> None:
    """Does what ``device.rounded.decode`` does, in one launch."""
    _launch(_decode, group, members, counts=counts.view(torch.uint8))


def _launch(
    kernel: Any,
    group: Any,
    members: Sequence[Any],
    seeds: Sequence[int] = (),
    counts: Tensor | None = None,
) -> None:
    """Launch a kernel for all members; again, without looking at them, where it was launched so before."""
    key = (kernel, *map(_key, members))
    # Only where elements are rounded at random there is another number in each step.
    streams = [stream(one) if one else 0 for one in seeds]
    changing = [*streams, *[0] * (MEMBERS - len(seeds))] if counts is None else [counts]
    if (known := group.again.get(key)) is not None:
        again, table = known
        again(table, *changing)
        return
    layout = members[0].buffers.layout
    each = [
        _programs(one.buffers.layout, 1 if kernel is _average else one.buffers.layout.pieces)
        for one in members
    ]
    table = table_of([each], [_row(one) for one in members], group.message.device)
    tensors = [tensor for one in members for tensor in _tensors(one)]
    block = layout.rounding.block
    launched = launch(
        kernel,
        sum(each),
        table,
        *changing,
        warps=_WARPS,
        KIND=layout.rounding.number,
        DTYPE=DTYPES[members[0].g.dtype],
        RUNS=in_runs(tensors),
        ROWS=layout.row // block,
        BLOCK=block,
    )
    if launched is not None:
        group.remember(key, (launched.holding(1 + len(changing)), table))


def _key(one: Any) -> tuple[int | bool, ...]:
    """Return what a launch depends on."""
    e = 0 if one.residual is None else one.residual.data_ptr()
    places = one.g.data_ptr(), e, one.p.data_ptr(), one.row.data_ptr(), one.out.data_ptr()
    return (*places, one.undone, one.g.dtype == torch.bfloat16)


def _tensors(one: Any) -> list[Tensor]:
    """Return what is read and written in runs."""
    buffers = one.buffers
    own = [buffers.message, buffers.parts, buffers.mean, buffers.lost, buffers.arrived]
    return [one.g, one.p, one.out, *own, *([] if one.residual is None else [one.residual])]


def _programs(layout: Any, pieces: int) -> int:
    groups: int = layout.groups
    return pieces * -(-groups // _chunk(layout))


def _chunk(layout: Any) -> int:
    """Return the groups of a program."""
    elements: int = layout.rounding.digits * layout.row
    return max(1, AT_ONCE // elements)


def _row(one: Any) -> list[Tensor | int]:
    """Return a bucket's row of the table."""
    buffers, layout, rounding = one.buffers, one.buffers.layout, one.buffers.layout.rounding
    factors = list(GRIDS[rounding.levels].factors) if rounding.number == 2 else []
    share: int = struct.unpack("<i", struct.pack("<f", 1.0 / layout.ranks))[0]
    return [
        *(raw(one.g), 0 if one.residual is None else one.residual, one.p, one.row, raw(one.out)),
        *(buffers.message, buffers.parts, buffers.mean, buffers.lost, buffers.arrived),
        *(
            layout.numel,
            layout.size,
            buffers.arrived.stride(0),
            layout.scales,
            _programs(layout, 1),
            _chunk(layout),
        ),
        *(rounding.base, rounding.digits, rounding.base**rounding.digits, rounding.steps),
        *(factors or [0, 0, 0]),
        *(int(rounding.levels == 2), layout.ranks, share, buffers.own, int(one.undone), int(layout.shards)),
    ]
