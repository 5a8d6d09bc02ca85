"""The largest elements of gradients as one message, in a few launches: see ``gravac.kernels.device.tiled``.

A message's parts begin at whole words of 32 bits. Tiles take their slots in the order in which their programs get to
it; a tile's entry in the message's table says where its slots begin, and how many tiles were before it.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import bits_of, float_of, narrowed, read, room, widened, write
from gravac.kernels.cuda.build import jit, launch
from gravac.kernels.cuda.tables import (
    in_runs,
    member_of,
    number_at,
    part_of,
    row_of,
    table_of,
    tensor_at,
)
from gravac.kernels.reference import LEVEL_BINS, MEMBERS

AT_ONCE = 256
"""Slots, or bits, of a tile that a program looks at together."""

_FINE = tl.constexpr(float(1 << 23))
_TILE, _ONE = tl.constexpr(40), tl.constexpr(1 << 40)
"""Bits of a control word below the number of tiles, and one tile."""
_SLOTS = tl.constexpr((1 << 40) - 1)
_COUNT = tl.constexpr(13)
"""Bits of a table's second word below the number of tiles before."""
_COUNTS = tl.constexpr((1 << 13) - 1)
_SHIFT = tl.constexpr(17)
"""Bits of a float32 below those of its bin: 64 bins for twice the magnitude."""
_BINS, _BIN = tl.constexpr(LEVEL_BINS), tl.constexpr(1 << 17)
_LOWER = tl.constexpr(0.8)
"""The next level, as a share of what the last element sent has. If magnitudes are exponential and k of n are sent, it
lets (n/k)^0.2 times as many pass."""
_LINES, _BLOCKS = tl.constexpr(2), tl.constexpr(MEMBERS)
"""Lines of a group's table, one for launches over tiles and one over blocks, and where the second one begins."""
_COLUMNS = tl.constexpr(29)
(
    _G,
    _OUT,
    _E,
    _P,
    _SENDERS,
    _ROW,
    _MESSAGE,
    _ARRIVED,
    _CONTROL,
    _LEVEL,
    _HISTOGRAM,
    _TABLE,
    _CANDIDATES,
    _SIZES,
    _PLACES,
    _VALUES,
    _N,
    _MOST,
    _CAPACITY,
    _TILES,
    _HIGH,
    _LOW,
    _KEPT,
    _WORDS,
    _CLEARED,
    _LOW_BITS,
    _ADDED,
    _UNDONE,
    _COUNTED,
) = (tl.constexpr(column) for column in range(29))
"""Columns of the table: addresses, numbers, and whether there is a residual, an undo, and somebody to count senders."""


@jit()
def _bin(value: tl.tensor, level: tl.tensor) -> tl.tensor:
    """Returns which bin above the level a magnitude falls into; the last one has no end."""
    bits = tl.abs(value).to(tl.int32, bitcast=True) >> _SHIFT
    return tl.minimum(tl.maximum(bits - (level.to(tl.int32, bitcast=True) >> _SHIFT), 0), _BINS - 1)


@jit()
def _select(
    tensors: tl.tensor,
    DTYPE: tl.constexpr,
    RUNS: tl.constexpr,
    SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """Adds the residual, and takes what reaches the level for candidates. Clears the program's share of words."""
    # Addresses are read where they are needed: all of them at once would not fit into registers.
    member = member_of(tensors)
    cell, tile = row_of(tensors, member, _LINES, _COLUMNS), part_of(tensors, member)
    _clear(cell, tile, AT_ONCE)
    begin, at = tile.to(tl.int64) * SIZE, tl.arange(0, SIZE)
    left = room(tl.load(cell + _N), begin, SIZE)
    x = widened(read(tensor_at(cell + _G, DTYPE, RUNS) + begin, at, left, SIZE))
    value = tl.where(tl.abs(x) < float("inf"), x, 0.0)
    if number_at(cell + _ADDED) != 0:
        value += read(tensor_at(cell + _E, tl.float32, RUNS) + begin, at, left, SIZE)
    write(tensor_at(cell + _P, tl.float32, RUNS) + begin, at, value, left, SIZE)
    wide, narrow = value.to(tl.float64), x.to(tl.float64)
    row = tensor_at(cell + _ROW, tl.float64, False)
    tl.atomic_add(row, tl.sum(narrow * narrow), sem="relaxed")
    tl.atomic_add(row + 1, tl.sum(wide * wide), sem="relaxed")
    tl.atomic_add(row + 4, tl.sum(wide * narrow), sem="relaxed")
    least = tl.load(tensor_at(cell + _LEVEL, tl.float32, False))
    hit = (tl.abs(value) >= least) & (value != 0.0) & (at < left)
    bins = tensor_at(cell + _HISTOGRAM, tl.int32, False)
    counted = tl.histogram(_bin(value, least), _BINS, mask=hit)
    tl.atomic_add(bins + tl.arange(0, _BINS), counted, mask=counted > 0, sem="relaxed")
    count, most = tl.sum(hit.to(tl.int32)), number_at(cell + _MOST)
    first = tl.atomic_add(tensor_at(cell + _CONTROL, tl.int64, False), count, sem="relaxed")
    slot = first + tl.cumsum(hit.to(tl.int32), 0) - 1
    taken = hit & (slot < most)
    places, values = (
        tensor_at(cell + _CANDIDATES, tl.int32, False),
        tensor_at(cell + _SIZES, tl.float32, False),
    )
    tl.store(places + slot, (begin + at).to(tl.int32), mask=taken)
    tl.store(values + slot, value, mask=taken)
    table = tensor_at(cell + _TABLE, tl.int32, False) + 2 * tile
    tl.store(table, first)
    tl.store(table + 1, tl.maximum(0, tl.minimum(count, most - first)))


@jit()
def _clear(cell: tl.tensor, tile: tl.tensor, AT_ONCE: tl.constexpr) -> None:
    """Clears the tile's share of the message's words behind its table."""
    message, words = tensor_at(cell + _MESSAGE, tl.int32, False), number_at(cell + _WORDS)
    share = number_at(cell + _CLEARED)
    begin = number_at(cell + _HIGH) + tile * share
    for word in range(0, share, AT_ONCE):
        at = word + tl.arange(0, AT_ONCE)
        tl.store(
            message + begin + at, tl.zeros([AT_ONCE], tl.int32), mask=(at < share) & (begin + at < words)
        )


@jit()
def _place(tensors: tl.tensor, SIZE: tl.constexpr, AT_ONCE: tl.constexpr) -> None:
    """Takes the largest candidates of one tile, as many as there are slots for, and writes their positions."""
    member = member_of(tensors)
    cell, tile = row_of(tensors, member, _LINES, _COLUMNS), part_of(tensors, member)
    capacity, least = number_at(cell + _CAPACITY), tl.load(tensor_at(cell + _LEVEL, tl.float32, False))
    number = tl.arange(0, _BINS)
    counted = tl.load(tensor_at(cell + _HISTOGRAM, tl.int32, False) + number)
    total = tl.sum(counted)
    above = total - tl.cumsum(counted, 0) + counted  # in this bin and those above it
    chosen = tl.sum((above > capacity).to(tl.int32))  # the first bin of which all are sent
    edge = ((least.to(tl.int32, bitcast=True) >> _SHIFT) + chosen) << _SHIFT
    edge = tl.where(chosen > 0, edge, 0)
    if tile == 0:
        _next_level(cell, least, edge, total, chosen, capacity)
    # Of the bin below, each tile sends its share of what is left.
    bottom = edge - tl.where(chosen > 0, _BIN, 0)
    spare = (capacity - tl.sum(tl.where(number == chosen, above, 0))).to(tl.int64)
    middle = tl.maximum(tl.sum(tl.where(number == chosen - 1, counted, 0)), 1).to(tl.int64)
    table = tensor_at(cell + _TABLE, tl.int32, False) + 2 * tile
    first, count = tl.load(table), tl.load(table + 1)
    sizes = tensor_at(cell + _SIZES, tl.float32, False) + first
    kept, between = 0, 0
    for begin in range(0, count, AT_ONCE):
        at = begin + tl.arange(0, AT_ONCE)
        size = tl.abs(tl.load(sizes + at, mask=at < count, other=0.0)).to(tl.int32, bitcast=True)
        kept += tl.sum(((at < count) & (size >= edge)).to(tl.int32))
        between += tl.sum(((at < count) & (size >= bottom) & (size < edge)).to(tl.int32))
    extra = tl.minimum(spare * between // middle, between).to(tl.int32)
    kept += extra
    control = tensor_at(cell + _CONTROL, tl.int64, False)
    before = tl.atomic_add(control + 1, tl.cast(kept, tl.int64) + _ONE, sem="relaxed")
    slots, order = (before & _SLOTS).to(tl.int32), (before >> _TILE).to(tl.int32)
    slots = tl.minimum(slots, capacity)
    kept = tl.minimum(kept, capacity - slots)  # less only where the level was far off
    message, low_bits = tensor_at(cell + _MESSAGE, tl.int32, False), number_at(cell + _LOW_BITS)
    tl.store(message + 2 * tile, slots)
    tl.store(message + 2 * tile + 1, (order << _COUNT) | kept)
    high, low = message + number_at(cell + _HIGH), message + number_at(cell + _LOW)
    base = slots.to(tl.int64) + order.to(tl.int64) * (SIZE >> low_bits)
    candidates = tensor_at(cell + _CANDIDATES, tl.int32, False) + first
    places = tensor_at(cell + _PLACES, tl.int32, False) + slots
    values = tensor_at(cell + _VALUES, tl.float32, False) + slots
    p = tensor_at(cell + _P, tl.float32, False)
    done, seen = 0, 0
    for begin in range(0, count, AT_ONCE):
        at = begin + tl.arange(0, AT_ONCE)
        value = tl.load(sizes + at, mask=at < count, other=0.0)
        size = tl.abs(value).to(tl.int32, bitcast=True)
        beside = ((at < count) & (size >= bottom) & (size < edge)).to(tl.int32)
        here = (at < count) & ((size >= edge) | ((beside > 0) & (seen + tl.cumsum(beside, 0) <= extra)))
        seen += tl.sum(beside)
        mine = done + tl.cumsum(here.to(tl.int32), 0) - 1
        done += tl.sum(here.to(tl.int32))
        here = here & (mine < kept)
        where = tl.load(candidates + at, mask=here, other=0)
        tl.store(places + mine, where, mask=here)
        tl.store(values + mine, value, mask=here)
        tl.store(p + where, tl.zeros([AT_ONCE], tl.float32), mask=here)
        place = where - tile * SIZE
        bit = base + (place >> low_bits) + mine
        one = tl.full([AT_ONCE], 1, tl.int32) << (bit & 31).to(tl.int32)
        tl.atomic_or(high + (bit >> 5), one, mask=here, sem="relaxed")
        bit = (slots + mine).to(tl.int64) * low_bits
        rest = (place & ((1 << low_bits) - 1)).to(tl.int64) << (bit & 31)
        word, under, over = low + (bit >> 5), rest.to(tl.int32), (rest >> 32).to(tl.int32)
        tl.atomic_or(word, under, mask=here & (under != 0), sem="relaxed")
        tl.atomic_or(word + 1, over, mask=here & (over != 0), sem="relaxed")


@jit()
def _next_level(
    cell: tl.tensor,
    least: tl.tensor,
    edge: tl.tensor,
    total: tl.tensor,
    chosen: tl.tensor,
    capacity: tl.tensor,
) -> None:
    """Writes the level of the next step."""
    n = tl.load(cell + _N).to(tl.float64)
    energy = tl.load(tensor_at(cell + _ROW, tl.float64, False) + 1)
    guess = tl.log(n / capacity) * tl.sqrt(energy / n * 0.5)  # as if magnitudes were exponential
    after = tl.where(chosen > 0, edge.to(tl.float32, bitcast=True), least * _LOWER)
    after = tl.where((total > 0) & (chosen < _BINS), after, guess.to(tl.float32)) * _LOWER
    level = tensor_at(cell + _LEVEL, tl.float32, False)
    tl.store(level + 1, tl.where((energy > 0.0) & (energy < float("inf")), after, least))


@jit()
def _mean(sizes: tl.tensor, part: tl.tensor) -> tl.tensor:
    """Returns the mean of a part of the sizes, 0 of none: a sum of whole multiples, in any order the same."""
    total = tl.sum(tl.where(part, (sizes * _FINE).to(tl.int32), 0).to(tl.int64))
    count = tl.maximum(tl.sum(part.to(tl.int64)), 1)
    return (total.to(tl.float64) / count.to(tl.float64) / _FINE).to(tl.float32)


@jit()
def _values(tensors: tl.tensor, DTYPE: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Writes the values of one block of slots, and leaves in p what rounding them loses."""
    member = member_of(tensors + _BLOCKS)
    cell, me = row_of(tensors, member, _LINES, _COLUMNS), part_of(tensors + _BLOCKS, member)
    g, p = tensor_at(cell + _G, DTYPE, False), tensor_at(cell + _P, tl.float32, False)
    row, message = tensor_at(cell + _ROW, tl.float64, False), tensor_at(cell + _MESSAGE, tl.int32, False)
    control, places = (
        tensor_at(cell + _CONTROL, tl.int64, False),
        tensor_at(cell + _PLACES, tl.int32, False),
    )
    values, capacity = tensor_at(cell + _VALUES, tl.float32, False), number_at(cell + _CAPACITY)
    kept, at = number_at(cell + _KEPT), tl.arange(0, BLOCK)
    slots = tl.minimum((tl.load(control + 1) & _SLOTS).to(tl.int32), capacity)
    slot = me * BLOCK + at
    inside = slot < slots
    value = tl.load(values + slot, mask=inside, other=0.0)
    place = tl.load(places + slot, mask=inside, other=0)
    if KIND == 0:  # float32
        sent = value
        tl.store(message + kept + slot, value.to(tl.int32, bitcast=True), mask=inside)
    elif KIND == 1:  # bfloat16
        half = bits_of(value)
        sent = float_of(half)
        pair = tl.reshape(half << (16 * (at % 2)), (BLOCK // 2, 2))
        word = me * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
        tl.store(message + kept + word, tl.sum(pair, 1), mask=2 * word < capacity)
    else:  # two bits
        top = tl.max(tl.abs(value))
        sizes = tl.minimum(tl.abs(tl.div_rn(value, tl.where(top > 0.0, top, 1.0))), 1.0)
        split = _mean(sizes, inside)
        split = (_mean(sizes, inside & (sizes <= split)) + _mean(sizes, inside & (sizes > split))) * 0.5
        large = sizes > split
        lower = bits_of(_mean(sizes, inside & (sizes <= split)) * top)
        upper = bits_of(_mean(sizes, inside & large) * top)
        size = tl.where(large, float_of(upper), float_of(lower))
        sent = tl.where(value >= 0.0, size, -size)
        blocks = (capacity + BLOCK - 1) // BLOCK
        tl.store(message + kept + me, lower | (upper << 16))
        code = (value >= 0.0).to(tl.int32) + 2 * large.to(tl.int32)
        code = tl.where(inside, code, 0)
        quad = tl.reshape(code << (2 * (at % 16)), (BLOCK // 16, 16))
        word = me * (BLOCK // 16) + tl.arange(0, BLOCK // 16)
        tl.store(message + kept + blocks + word, tl.sum(quad, 1), mask=16 * word < capacity)
    if KIND > 0:
        tl.store(p + place, value - sent, mask=inside)
    wide = tl.where(inside, sent, 0.0).to(tl.float64)
    x = widened(tl.load(g + place, mask=inside, other=0)).to(tl.float64)
    tl.atomic_add(row + 2, tl.sum(wide * wide), sem="relaxed")
    tl.atomic_add(row + 3, tl.sum(wide * value.to(tl.float64)), sem="relaxed")
    tl.atomic_add(row + 5, tl.sum(wide * x), sem="relaxed")
    # Where fewer were sent, a reader of all places finds the first one again.
    tl.store(places + slot, tl.load(places), mask=(slot >= slots) & (slot < capacity) & (slots > 0))


@jit()
def _decode(
    tensors: tl.tensor,
    counts: tl.tensor,
    stride: tl.int64,
    ranks: tl.int32,
    own: tl.int32,
    share: tl.float32,
    DTYPE: tl.constexpr,
    RUNS: tl.constexpr,
    KIND: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """Writes one tile of the mean, in rank order; or NaN, and undoes the step, where it does not count."""
    member = member_of(tensors)
    cell, tile = row_of(tensors, member, _LINES, _COLUMNS), part_of(tensors, member)
    if tile == 0:
        _begin_again(cell)
    begin, at = tile.to(tl.int64) * SIZE, tl.arange(0, SIZE)
    left = room(tl.load(cell + _N), begin, SIZE)
    g, out = tensor_at(cell + _G, DTYPE, RUNS) + begin, tensor_at(cell + _OUT, DTYPE, RUNS) + begin
    counted, counting = tl.load(counts) != 0, number_at(cell + _COUNTED) != 0
    undone = (number_at(cell + _UNDONE) != 0) & (counted == 0)
    if undone:
        # Before the mean takes the gradient's place. It is rare, so in small parts, which need few registers.
        e = tensor_at(cell + _P, tl.float32, RUNS) + begin
        for part in range(0, left, AT_ONCE):
            here = part + tl.arange(0, AT_ONCE)
            x = widened(tl.load(g + here, mask=here < left, other=0))
            rest = tl.load(e + here, mask=here < left, other=0.0)
            tl.store(e + here, rest - tl.where(tl.abs(x) < float("inf"), x, 0.0), mask=here < left)
    nothing = tl.where(counted, 0.0, float("nan"))
    like = tl.load(g)  # its type is that of the mean
    write(out, at, narrowed(tl.zeros([SIZE], tl.float32) + nothing, like), left, SIZE)
    senders = tensor_at(cell + _SENDERS, tl.uint8, RUNS) + begin
    if counting:
        write(senders, at, tl.zeros([SIZE], tl.uint8), left, SIZE)
    tl.debug_barrier()
    capacity, tiles = number_at(cell + _CAPACITY), number_at(cell + _TILES)
    low_bits, blocks = number_at(cell + _LOW_BITS), (capacity + BLOCK - 1) // BLOCK
    messages = tensor_at(cell + _ARRIVED, tl.int32, False)
    high, low, kept = number_at(cell + _HIGH), number_at(cell + _LOW), number_at(cell + _KEPT)
    for rank in range(ranks):
        message = messages + rank * stride
        first, entry = tl.load(message + 2 * tile), tl.load(message + 2 * tile + 1)
        count, order = entry & _COUNTS, entry >> _COUNT
        sound = (first >= 0) & (first + count <= capacity) & (order >= 0) & (order < tiles)
        count = tl.where(sound, count, 0)
        bits = tl.where(count > 0, count + (SIZE >> low_bits), 0)
        base = first.to(tl.int64) + order.to(tl.int64) * (SIZE >> low_bits)
        done = 0
        for bit in range(0, bits, AT_ONCE):
            step = bit + tl.arange(0, AT_ONCE)
            inside = step < bits
            word = tl.load(message + high + ((base + step) >> 5), mask=inside, other=0)
            set_ = ((word >> ((base + step) & 31).to(tl.int32)) & 1) * inside.to(tl.int32)
            number = done + tl.cumsum(set_, 0) - 1
            slot = first + number
            here = (set_ == 1) & (number < count)
            where = slot.to(tl.int64) * low_bits
            lower = tl.load(message + low + (where >> 5), mask=here & (low_bits > 0), other=0)
            over = here & (((where & 31) + low_bits) > 32)
            upper = tl.load(message + low + (where >> 5) + 1, mask=over, other=0)
            both = lower.to(tl.uint32, bitcast=True).to(tl.int64) | (upper.to(tl.int64) << 32)
            rest = ((both >> (where & 31)) & ((1 << low_bits) - 1)).to(tl.int32)
            place = ((step - number) << low_bits) | rest
            value = _kept(message + kept, slot, blocks, here, KIND, BLOCK)
            here = here & (place < left)
            mean = widened(tl.load(out + place, mask=here, other=0)) + value * share
            tl.store(out + place, narrowed(mean, like), mask=here)
            heard = here & counting
            tl.store(senders + place, tl.load(senders + place, mask=heard, other=0) + 1, mask=heard)
            if undone:
                e = tensor_at(cell + _P, tl.float32, RUNS) + begin + place
                mine = here & (rank == own)
                tl.store(e, tl.load(e, mask=mine, other=0.0) + value, mask=mine)
            done += tl.sum(set_)
        tl.debug_barrier()
        if not sound:
            write(out, at, narrowed(tl.zeros([SIZE], tl.float32) + float("nan"), like), left, SIZE)


@jit()
def _begin_again(cell: tl.tensor) -> None:
    """Makes a bucket ready for the next step."""
    level, control = tensor_at(cell + _LEVEL, tl.float32, False), tensor_at(cell + _CONTROL, tl.int64, False)
    tl.store(level, tl.load(level + 1))
    tl.store(control + tl.arange(0, 2), tl.zeros([2], tl.int64))
    bins = tensor_at(cell + _HISTOGRAM, tl.int32, False)
    tl.store(bins + tl.arange(0, _BINS), tl.zeros([_BINS], tl.int32))


@jit()
def _kept(
    kept: tl.tensor,
    slot: tl.tensor,
    blocks: tl.tensor,
    here: tl.tensor,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Returns the values of slots."""
    if KIND == 0:
        value = tl.load(kept + slot, mask=here, other=0).to(tl.float32, bitcast=True)
    elif KIND == 1:
        pair = tl.load(kept + (slot >> 1), mask=here, other=0)
        value = float_of((pair >> (16 * (slot & 1))) & 0xFFFF)
    else:
        pair = tl.load(kept + slot // BLOCK, mask=here, other=0)
        quad = tl.load(kept + blocks + (slot >> 4), mask=here, other=0)
        code = (quad >> (2 * (slot & 15))) & 3
        size = float_of((pair >> (16 * (code >> 1))) & 0xFFFF)
        value = tl.where((code & 1) == 1, size, -size)
    return value


def encode(group: Any, steps: Sequence[Any]) -> None:
    """Does what ``device.tiled.encode`` does, in three launches."""
    gradient, layout = steps[0].gradient, steps[0].buffers.layout
    key = "encode", gradient.dtype, *map(_addresses, steps)
    again = group.again.get(key)
    if again is None:
        tensors, dtype = _table(steps), _DTYPES[gradient.dtype]
        runs = in_runs([one for step in steps for one in (step.gradient, step.residual, step.rest)])
        tiles, blocks = (
            sum(getattr(step.buffers.layout, name) for step in steps) for name in ("tiles", "blocks")
        )
        size, at_once = layout.tile, AT_ONCE
        again = [
            launch(_select, tiles, tensors, warps=16, DTYPE=dtype, RUNS=runs, SIZE=size, AT_ONCE=at_once),
            launch(_place, tiles, tensors, warps=8, SIZE=size, AT_ONCE=at_once),
            launch(_values, blocks, tensors, warps=1, DTYPE=dtype, KIND=layout.kind, BLOCK=layout.block),
        ]
        if None not in again:
            group.remember(key, again)
        return
    for one in again:
        one()


def decode(group: Any, counts: Tensor, steps: Sequence[Any], own: int) -> None:
    """Does what ``device.tiled.decode`` does, in one launch."""
    gradient, layout = steps[0].gradient, steps[0].buffers.layout
    key = "decode", gradient.dtype, counts.data_ptr(), *map(_addresses, steps)
    again = group.again.get(key)
    if again is not None:
        again()
        return
    ranks = group.arrived.shape[0]
    again = launch(
        _decode,
        sum(step.buffers.layout.tiles for step in steps),
        *(_table(steps), counts.view(torch.uint8), group.arrived.stride(0), ranks, own, 1.0 / ranks),
        warps=8,
        DTYPE=_DTYPES[gradient.dtype],
        RUNS=in_runs([one for step in steps for one in (step.gradient, step.out, step.rest, step.senders)]),
        KIND=layout.kind,
        SIZE=layout.tile,
        BLOCK=layout.block,
        AT_ONCE=AT_ONCE,
    )
    if again is not None:
        group.remember(key, again)


def _addresses(step: Any) -> tuple[int, ...]:
    """Return what may change from step to step of a table's row."""
    return (
        step.gradient.data_ptr(),
        step.out.data_ptr(),
        0 if step.residual is None else step.residual.data_ptr(),
        step.rest.data_ptr(),
        step.row.data_ptr(),
        step.undone is not None,
        0 if step.senders is None else step.senders.data_ptr(),
    )


def _table(steps: Sequence[Any]) -> Tensor:
    layouts = [step.buffers.layout for step in steps]
    programs = [one.tiles for one in layouts], [one.blocks for one in layouts]
    return table_of(programs, [_row(step) for step in steps], steps[0].gradient.device)


def _row(step: Any) -> Sequence[Tensor | int]:
    """Return a row of the table; what there is not is the address of something else, and never read."""
    buffers, layout, rest = step.buffers, step.buffers.layout, step.rest
    return (
        *(step.gradient, step.out, rest if step.residual is None else step.residual, rest),
        *(rest if step.senders is None else step.senders, step.row, buffers.message, buffers.arrived),
        *(buffers.control, buffers.level, buffers.bins, buffers.table, buffers.candidates, buffers.sizes),
        *(buffers.places, buffers.values, layout.numel, layout.most, layout.capacity, layout.tiles),
        *(layout.high, layout.low, layout.kept, layout.words),
        *(-(-(layout.words - layout.high) // layout.tiles), layout.low_bits),
        *(int(step.residual is not None), int(step.undone is not None), int(step.senders is not None)),
    )


_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.int16}
"""How gradients are read: bfloat16 as bits, see ``blocks.raw``."""
