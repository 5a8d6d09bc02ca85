"""The largest elements of a gradient as one message, in a few launches: see ``gravac.kernels.device.tiled``.

A message's parts begin at whole words of 32 bits. Tiles take their slots in the order in which their programs get to
it; a tile's entry in the table says where its slots begin, and how many tiles were before it.
"""

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import aligned, begin_of, narrowed, raw, read, room, widened, write
from gravac.kernels.cuda.build import jit, launch
from gravac.kernels.reference import LEVEL_BINS

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


@jit()
def _bin(value: tl.tensor, level: tl.tensor) -> tl.tensor:
    """Returns which bin above the level a magnitude falls into; the last one has no end."""
    bits = tl.abs(value).to(tl.int32, bitcast=True) >> _SHIFT
    return tl.minimum(tl.maximum(bits - (level.to(tl.int32, bitcast=True) >> _SHIFT), 0), _BINS - 1)


@jit("g", "e", "p")
def _select(
    g: tl.tensor,
    e: tl.tensor,
    p: tl.tensor,
    message: tl.tensor,
    control: tl.tensor,
    level: tl.tensor,
    bins: tl.tensor,
    table: tl.tensor,
    places: tl.tensor,
    values: tl.tensor,
    row: tl.tensor,
    n: tl.int64,
    most: tl.int32,
    begin_words: tl.int32,
    words: tl.int32,
    share: tl.int32,
    RESIDUAL: tl.constexpr,
    SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """Adds the residual, and takes what reaches the level for candidates. Clears the program's share of words."""
    begin, at = begin_of(SIZE), tl.arange(0, SIZE)
    left, tile = room(n, begin, SIZE), tl.program_id(0)
    for word in range(0, share, AT_ONCE):
        where = begin_words + tile * share + word + tl.arange(0, AT_ONCE)
        inside = (word + tl.arange(0, AT_ONCE) < share) & (where < words)
        tl.store(message + where, tl.zeros([AT_ONCE], tl.int32), mask=inside)
    x = widened(read(g + begin, at, left, SIZE))
    value = tl.where(tl.abs(x) < float("inf"), x, 0.0)
    if RESIDUAL:
        value += read(e + begin, at, left, SIZE)
    wide, narrow = value.to(tl.float64), x.to(tl.float64)
    tl.atomic_add(row, tl.sum(narrow * narrow), sem="relaxed")
    tl.atomic_add(row + 1, tl.sum(wide * wide), sem="relaxed")
    tl.atomic_add(row + 4, tl.sum(wide * narrow), sem="relaxed")
    least = tl.load(level)
    hit = (tl.abs(value) >= least) & (value != 0.0) & (at < left)
    counted = tl.histogram(_bin(value, least), _BINS, mask=hit)
    tl.atomic_add(bins + tl.arange(0, _BINS), counted, mask=counted > 0, sem="relaxed")
    upto = tl.cumsum(hit.to(tl.int32), 0)
    count = tl.sum(hit.to(tl.int32))
    first = tl.atomic_add(control, count, sem="relaxed")
    slot = first + upto - 1
    taken = hit & (slot < most)
    tl.store(places + slot, (begin + at).to(tl.int32), mask=taken)
    tl.store(values + slot, value, mask=taken)
    write(p + begin, at, value, left, SIZE)
    tl.store(table + 2 * tile, first)
    tl.store(table + 2 * tile + 1, tl.maximum(0, tl.minimum(count, most - first)))


@jit()
def _place(
    p: tl.tensor,
    message: tl.tensor,
    control: tl.tensor,
    level: tl.tensor,
    bins: tl.tensor,
    table: tl.tensor,
    candidates: tl.tensor,
    sizes: tl.tensor,
    places: tl.tensor,
    values: tl.tensor,
    row: tl.tensor,
    n: tl.float64,
    capacity: tl.int32,
    high: tl.int32,
    low: tl.int32,
    low_bits: tl.int32,
    SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """Takes the largest candidates of one tile, as many as there are slots for, and writes their positions."""
    tile, number = tl.program_id(0), tl.arange(0, _BINS)
    least, counted = tl.load(level), tl.load(bins + number)
    total = tl.sum(counted)
    above = total - tl.cumsum(counted, 0) + counted  # in this bin and those above it
    chosen = tl.sum((above > capacity).to(tl.int32))  # the first bin of which all are sent
    edge = ((least.to(tl.int32, bitcast=True) >> _SHIFT) + chosen) << _SHIFT
    edge = tl.where(chosen > 0, edge, 0)
    # Of the bin below, each tile sends its share of what is left.
    bottom = edge - tl.where(chosen > 0, _BIN, 0)
    spare = (capacity - tl.sum(tl.where(number == chosen, above, 0))).to(tl.int64)
    middle = tl.maximum(tl.sum(tl.where(number == chosen - 1, counted, 0)), 1).to(tl.int64)
    first, count = tl.load(table + 2 * tile), tl.load(table + 2 * tile + 1)
    kept, between = 0, 0
    for begin in range(0, count, AT_ONCE):
        at = begin + tl.arange(0, AT_ONCE)
        size = tl.abs(tl.load(sizes + first + at, mask=at < count, other=0.0)).to(tl.int32, bitcast=True)
        kept += tl.sum(((at < count) & (size >= edge)).to(tl.int32))
        between += tl.sum(((at < count) & (size >= bottom) & (size < edge)).to(tl.int32))
    extra = tl.minimum(spare * between // middle, between).to(tl.int32)
    kept += extra
    before = tl.atomic_add(control + 1, tl.cast(kept, tl.int64) + _ONE, sem="relaxed")
    slots, order = (before & _SLOTS).to(tl.int32), (before >> _TILE).to(tl.int32)
    slots = tl.minimum(slots, capacity)
    kept = tl.minimum(kept, capacity - slots)  # less only where the level was far off
    base = slots.to(tl.int64) + order.to(tl.int64) * (SIZE >> low_bits)
    done, seen = 0, 0
    for begin in range(0, count, AT_ONCE):
        at = begin + tl.arange(0, AT_ONCE)
        value = tl.load(sizes + first + at, mask=at < count, other=0.0)
        size = tl.abs(value).to(tl.int32, bitcast=True)
        beside = ((at < count) & (size >= bottom) & (size < edge)).to(tl.int32)
        here = (at < count) & ((size >= edge) | ((beside > 0) & (seen + tl.cumsum(beside, 0) <= extra)))
        seen += tl.sum(beside)
        mine = done + tl.cumsum(here.to(tl.int32), 0) - 1
        done += tl.sum(here.to(tl.int32))
        here = here & (mine < kept)
        where = tl.load(candidates + first + at, mask=here, other=0)
        tl.store(places + slots + mine, where, mask=here)
        tl.store(values + slots + mine, value, mask=here)
        tl.store(p + where, tl.zeros([AT_ONCE], tl.float32), mask=here)
        place = where - tile * SIZE
        bit = base + (place >> low_bits) + mine
        one = tl.full([AT_ONCE], 1, tl.int32) << (bit & 31).to(tl.int32)
        tl.atomic_or(message + high + (bit >> 5), one, mask=here, sem="relaxed")
        bit = (slots + mine).to(tl.int64) * low_bits
        rest = (place & ((1 << low_bits) - 1)).to(tl.int64) << (bit & 31)
        word, under, over = message + low + (bit >> 5), rest.to(tl.int32), (rest >> 32).to(tl.int32)
        tl.atomic_or(word, under, mask=here & (under != 0), sem="relaxed")
        tl.atomic_or(word + 1, over, mask=here & (over != 0), sem="relaxed")
    tl.store(message + 2 * tile, slots)
    tl.store(message + 2 * tile + 1, (order << _COUNT) | kept)
    if tile == 0:
        energy = tl.load(row + 1)
        guess = tl.log(n / capacity) * tl.sqrt(energy / n * 0.5)  # as if magnitudes were exponential
        after = tl.where(chosen > 0, edge.to(tl.float32, bitcast=True), least * _LOWER)
        after = tl.where((total > 0) & (chosen < _BINS), after, guess.to(tl.float32)) * _LOWER
        tl.store(level + 1, tl.where((energy > 0.0) & (energy < float("inf")), after, least))


@jit()
def _mean(sizes: tl.tensor, part: tl.tensor) -> tl.tensor:
    """Returns the mean of a part of the sizes, 0 of none: a sum of whole multiples, in any order the same."""
    total = tl.sum(tl.where(part, (sizes * _FINE).to(tl.int32), 0).to(tl.int64))
    count = tl.maximum(tl.sum(part.to(tl.int64)), 1)
    return (total.to(tl.float64) / count.to(tl.float64) / _FINE).to(tl.float32)


@jit()
def _bits(value: tl.tensor) -> tl.tensor:
    """Returns a float32 rounded to bfloat16, as its 16 bits."""
    wide = value.to(tl.int32, bitcast=True)
    return ((wide + (0x7FFF + ((wide >> 16) & 1))) >> 16) & 0xFFFF


@jit()
def _float(bits: tl.tensor) -> tl.tensor:
    """Returns the float32 of 16 bits of a bfloat16."""
    return (bits << 16).to(tl.float32, bitcast=True)


@jit()
def _values(
    g: tl.tensor,
    p: tl.tensor,
    message: tl.tensor,
    control: tl.tensor,
    places: tl.tensor,
    values: tl.tensor,
    row: tl.tensor,
    capacity: tl.int32,
    kept: tl.int32,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Writes the values of one block of slots, and leaves in p what rounding them loses."""
    me, at = tl.program_id(0), tl.arange(0, BLOCK)
    slots = tl.minimum((tl.load(control + 1) & _SLOTS).to(tl.int32), capacity)
    slot = me * BLOCK + at
    inside = slot < slots
    value = tl.load(values + slot, mask=inside, other=0.0)
    place = tl.load(places + slot, mask=inside, other=0)
    if KIND == 0:  # float32
        sent = value
        tl.store(message + kept + slot, value.to(tl.int32, bitcast=True), mask=inside)
    elif KIND == 1:  # bfloat16
        half = _bits(value)
        sent = _float(half)
        pair = tl.reshape(half << (16 * (at % 2)), (BLOCK // 2, 2))
        word = me * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
        tl.store(message + kept + word, tl.sum(pair, 1), mask=2 * word < capacity)
    else:  # two bits
        top = tl.max(tl.abs(value))
        sizes = tl.minimum(tl.abs(tl.div_rn(value, tl.where(top > 0.0, top, 1.0))), 1.0)
        split = _mean(sizes, inside)
        split = (_mean(sizes, inside & (sizes <= split)) + _mean(sizes, inside & (sizes > split))) * 0.5
        large = sizes > split
        lower = _bits(_mean(sizes, inside & (sizes <= split)) * top)
        upper = _bits(_mean(sizes, inside & large) * top)
        size = tl.where(large, _float(upper), _float(lower))
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


@jit("g", "out", "e")
def _decode(
    g: tl.tensor,
    out: tl.tensor,
    counts: tl.tensor,
    messages: tl.tensor,
    control: tl.tensor,
    level: tl.tensor,
    bins: tl.tensor,
    e: tl.tensor,
    senders: tl.tensor,
    n: tl.int64,
    capacity: tl.int32,
    tiles: tl.int32,
    words: tl.int64,
    high: tl.int32,
    low: tl.int32,
    kept: tl.int32,
    ranks: tl.int32,
    low_bits: tl.int32,
    own: tl.int32,
    undo: tl.int32,
    counting: tl.int32,
    share: tl.float32,
    KIND: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """Writes one tile of the mean, in rank order; or NaN, and undoes the step, where it does not count."""
    begin, at = begin_of(SIZE), tl.arange(0, SIZE)
    left, tile = room(n, begin, SIZE), tl.program_id(0)
    if tile == 0:  # for the next step
        tl.store(level, tl.load(level + 1))
        tl.store(control + tl.arange(0, 2), tl.zeros([2], tl.int64))
        tl.store(bins + tl.arange(0, _BINS), tl.zeros([_BINS], tl.int32))
    counted = tl.load(counts) != 0
    undone = (undo != 0) & (counted == 0)
    x = widened(
        tl.load(g + begin + at, mask=(at < left) & undone, other=0)
    )  # before the mean takes its place
    nothing = tl.where(counted, 0.0, float("nan"))
    like = tl.load(g + begin)  # its type is that of the mean
    write(out + begin, at, narrowed(tl.zeros([SIZE], tl.float32) + nothing, like), left, SIZE)
    if counting != 0:
        write(senders + begin, at, tl.zeros([SIZE], tl.uint8), left, SIZE)
    tl.debug_barrier()
    blocks = (capacity + BLOCK - 1) // BLOCK
    for rank in range(ranks):
        message = messages + rank * words
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
            if KIND == 0:
                value = tl.load(message + kept + slot, mask=here, other=0).to(tl.float32, bitcast=True)
            elif KIND == 1:
                pair = tl.load(message + kept + (slot >> 1), mask=here, other=0)
                value = _float((pair >> (16 * (slot & 1))) & 0xFFFF)
            else:
                pair = tl.load(message + kept + slot // BLOCK, mask=here, other=0)
                quad = tl.load(message + kept + blocks + (slot >> 4), mask=here, other=0)
                code = (quad >> (2 * (slot & 15))) & 3
                size = _float((pair >> (16 * (code >> 1))) & 0xFFFF)
                value = tl.where((code & 1) == 1, size, -size)
            here = here & (place < left)
            target = begin + place
            mine = here & undone & (rank == own)
            tl.store(e + target, tl.load(e + target, mask=mine, other=0.0) + value, mask=mine)
            mean = widened(tl.load(out + target, mask=here, other=0)) + value * share
            tl.store(out + target, narrowed(mean, like), mask=here)
            heard = here & (counting != 0)
            tl.store(senders + target, tl.load(senders + target, mask=heard, other=0) + 1, mask=heard)
            done += tl.sum(set_)
        tl.debug_barrier()
        if not sound:
            write(out + begin, at, narrowed(tl.zeros([SIZE], tl.float32) + float("nan"), like), left, SIZE)
    if undone:
        x = tl.where(tl.abs(x) < float("inf"), x, 0.0)
        write(e + begin, at, read(e + begin, at, left, SIZE) - x, left, SIZE)


def encode(buffers: Any, g: Tensor, residual: Tensor | None, p: Tensor, row: Tensor) -> None:
    """Does what ``device.tiled.encode`` does, in three launches."""
    layout, message, gradient = buffers.layout, buffers.message, raw(aligned(g))
    key = gradient.dtype, residual is None, p.data_ptr(), row.data_ptr()
    again = buffers.again.get(key)
    if again is not None:
        select, place, values = again
        select(gradient)
        place()
        values(gradient)
        return
    control, level, bins, table = buffers.control, buffers.level, buffers.bins, buffers.table
    launched = (
        launch(
            _select,
            layout.tiles,
            *(gradient, p if residual is None else residual, p, message, control, level, bins, table),
            *(buffers.candidates, buffers.sizes, row, layout.numel, layout.most),
            *(layout.high, layout.words, -(-(layout.words - layout.high) // layout.tiles)),
            warps=16,
            RESIDUAL=residual is not None,
            SIZE=layout.tile,
            AT_ONCE=AT_ONCE,
        ),
        launch(
            _place,
            layout.tiles,
            *(p, message, control, level, bins, table, buffers.candidates, buffers.sizes),
            *(buffers.places, buffers.values, row, float(layout.numel)),
            *(layout.capacity, layout.high, layout.low, layout.low_bits),
            warps=8,
            SIZE=layout.tile,
            AT_ONCE=AT_ONCE,
        ),
        launch(
            _values,
            layout.blocks,
            *(gradient, p, message, control, buffers.places, buffers.values, row),
            *(layout.capacity, layout.kept),
            warps=1,
            KIND=layout.kind,
            BLOCK=layout.block,
        ),
    )
    found = [one.holding(first) for one, first in zip(launched, (1, 0, 1), strict=True) if one is not None]
    if len(found) == len(launched):
        buffers.remember(key, found)


def decode(
    buffers: Any,
    counts: Tensor,
    g: Tensor,
    out: Tensor,
    residual: Tensor | None,
    senders: Tensor | None,
    own: int,
) -> None:
    """Does what ``gravac.kernels.device.tiled.decode`` does, in one launch."""
    layout, arrived, changing = buffers.layout, buffers.arrived, (raw(g), raw(out), counts.view(torch.uint8))
    aligned_so = g.data_ptr() % 16, out.data_ptr() % 16, counts.data_ptr() % 16
    others = (
        None if residual is None else residual.data_ptr(),
        None if senders is None else senders.data_ptr(),
    )
    again = buffers.again.get((g.dtype, aligned_so, others))
    if again is not None:
        again(*changing)
        return
    launched = launch(
        _decode,
        layout.tiles,
        *(*changing, arrived, buffers.control, buffers.level, buffers.bins),
        buffers.values if residual is None else residual,
        arrived.view(torch.uint8) if senders is None else senders,
        *(layout.numel, layout.capacity, layout.tiles, layout.words, layout.high, layout.low, layout.kept),
        *(arrived.shape[0], layout.low_bits, own, int(residual is not None), int(senders is not None)),
        1.0 / arrived.shape[0],
        warps=8,
        KIND=layout.kind,
        SIZE=layout.tile,
        BLOCK=layout.block,
        AT_ONCE=AT_ONCE,
    )
    if launched is not None:
        buffers.remember((g.dtype, aligned_so, others), launched.holding(3))
