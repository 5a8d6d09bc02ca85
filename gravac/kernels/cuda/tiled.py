"""The largest elements of gradients as one message, in a few launches: see ``gravac.kernels.device.tiled``; or as one
for each owner of a shard, and of the sums: see ``gravac.kernels.device.owned``.

A message's parts begin at whole words of 32 bits. Tiles take their slots in the order in which their programs get to
it; a tile's entry in the message's table says where its slots begin, and how many tiles were before it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import bits_of, float_of, narrowed, read, room, widened, write
from gravac.kernels.cuda.build import Again, jit, launch
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
_COLUMNS = tl.constexpr(38)
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
    _ENERGY,
    _CAME,
    _STRIDE,
    _RANKS,
    _OWN,
    _SEED,
    _FROM,
    _MORE,
    _EACH,
) = (tl.constexpr(column) for column in range(38))
"""Columns of the table: addresses, numbers, and whether there is a residual, an undo, and somebody to count senders.
The last nine are for shards: their energies, what came for the own one, words from one message to the next, the ranks,
this one, the hash's seed, which shards a launch has (``_shard_of``), and the blocks of each."""


@jit()
def _bin(value: tl.tensor, level: tl.tensor) -> tl.tensor:
    """Returns which bin above the level a magnitude falls into; the last one has no end."""
    bits = tl.abs(value).to(tl.int32, bitcast=True) >> _SHIFT
    return tl.minimum(tl.maximum(bits - (level.to(tl.int32, bitcast=True) >> _SHIFT), 0), _BINS - 1)


@jit()
def _turns(cell: tl.tensor, row: tl.tensor) -> tl.tensor:
    """Returns by how many ranks the owners of a row are turned: see ``kernels.reference``."""
    mixed = ((row + number_at(cell + _SEED)) & 0x7FFFFFFF).to(tl.uint32) * 0x9E3779B1
    return (((mixed >> 16) * number_at(cell + _RANKS).to(tl.uint32)) >> 16).to(tl.int32)


@jit()
def _owner_of(cell: tl.tensor, tile: tl.tensor, OWNED: tl.constexpr) -> tl.tensor:
    """Returns whose shard a tile of the gradient belongs to, and which tile of it. Without owners there is one."""
    if OWNED:
        ranks = number_at(cell + _RANKS)
        inner = tile // ranks
        shard = (tile % ranks + _turns(cell, inner)) % ranks
    else:
        inner, shard = tile, tile * 0
    return shard, inner


@jit()
def _shard_of(cell: tl.tensor, part: tl.tensor, each: tl.tensor, OWNED: tl.constexpr) -> tl.tensor:
    """Returns which shard a launch of so many programs for each works on, and which part of it: all but one, or one."""
    if OWNED:
        shard = part // each
        shard += tl.where(shard >= number_at(cell + _FROM), number_at(cell + _MORE), 0)
        inner = part % each
    else:
        shard, inner = part * 0, part
    return shard, inner


@jit()
def _tile_of(cell: tl.tensor, shard: tl.tensor, inner: tl.tensor, OWNED: tl.constexpr) -> tl.tensor:
    """Returns which tile of the gradient a tile of a shard is."""
    tile = inner
    if OWNED:
        ranks = number_at(cell + _RANKS)
        tile = inner * ranks + (shard + ranks - _turns(cell, inner)) % ranks
    return tile


@jit()
def _message_of(cell: tl.tensor, column: tl.constexpr, shard: tl.tensor, OWNED: tl.constexpr) -> tl.tensor:
    """Returns where a message begins, of those to owners or of those that arrived."""
    message = tensor_at(cell + column, tl.int32, False)
    if OWNED:
        message += shard * tl.load(cell + _STRIDE)
    return message


@jit()
def _select(
    tensors: tl.tensor,
    DTYPE: tl.constexpr,
    RUNS: tl.constexpr,
    SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    OWNED: tl.constexpr,
) -> None:
    """Adds the residual, and takes what reaches the level for candidates. Clears the program's share of words."""
    # Addresses are read where they are needed: all of them at once would not fit into registers.
    member = member_of(tensors)
    cell, tile = row_of(tensors, member, _LINES, _COLUMNS), part_of(tensors, member)
    shard, inner = _owner_of(cell, tile, OWNED)
    _clear(cell, shard, inner, AT_ONCE, OWNED)
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
    if OWNED:
        if shard != number_at(cell + _OWN):
            _candidates(cell, shard, inner, value, begin, left, SIZE, OWNED)
    else:
        _candidates(cell, shard, inner, value, begin, left, SIZE, OWNED)


@jit()
def _candidates(
    cell: tl.tensor,
    shard: tl.tensor,
    inner: tl.tensor,
    value: tl.tensor,
    begin: tl.tensor,
    left: tl.tensor,
    SIZE: tl.constexpr,
    OWNED: tl.constexpr,
) -> None:
    """Takes what reaches the level of a tile."""
    at = tl.arange(0, SIZE)
    if OWNED:
        energy = tensor_at(cell + _ENERGY, tl.float64, False) + shard
        wide = value.to(tl.float64)
        tl.atomic_add(energy, tl.sum(wide * wide), sem="relaxed")
    least = tl.load(tensor_at(cell + _LEVEL, tl.float32, False) + 2 * shard)
    hit = (tl.abs(value) >= least) & (value != 0.0) & (at < left)
    bins = tensor_at(cell + _HISTOGRAM, tl.int32, False) + shard * _BINS
    counted = tl.histogram(_bin(value, least), _BINS, mask=hit)
    tl.atomic_add(bins + tl.arange(0, _BINS), counted, mask=counted > 0, sem="relaxed")
    count, most = tl.sum(hit.to(tl.int32)), number_at(cell + _MOST)
    first = tl.atomic_add(tensor_at(cell + _CONTROL, tl.int64, False) + 2 * shard, count, sem="relaxed")
    slot = first + tl.cumsum(hit.to(tl.int32), 0) - 1
    taken = hit & (slot < most)
    places, values = (
        tensor_at(cell + _CANDIDATES, tl.int32, False) + shard * most,
        tensor_at(cell + _SIZES, tl.float32, False) + shard * most,
    )
    tl.store(places + slot, (begin + at).to(tl.int32), mask=taken)
    tl.store(values + slot, value, mask=taken)
    table = tensor_at(cell + _TABLE, tl.int32, False) + 2 * (shard * number_at(cell + _TILES) + inner)
    tl.store(table, first)
    tl.store(table + 1, tl.maximum(0, tl.minimum(count, most - first)))


@jit()
def _clear(
    cell: tl.tensor, shard: tl.tensor, inner: tl.tensor, AT_ONCE: tl.constexpr, OWNED: tl.constexpr
) -> None:
    """Clears the tile's share of the message's words behind its table."""
    message, words = _message_of(cell, _MESSAGE, shard, OWNED), number_at(cell + _WORDS)
    share = number_at(cell + _CLEARED)
    begin = number_at(cell + _HIGH) + inner * share
    for word in range(0, share, AT_ONCE):
        at = word + tl.arange(0, AT_ONCE)
        tl.store(
            message + begin + at, tl.zeros([AT_ONCE], tl.int32), mask=(at < share) & (begin + at < words)
        )


@jit()
def _place(tensors: tl.tensor, SIZE: tl.constexpr, AT_ONCE: tl.constexpr, OWNED: tl.constexpr) -> None:
    """Takes the largest candidates of one tile, as many as there are slots for, and writes their positions."""
    member = member_of(tensors)
    cell, part = row_of(tensors, member, _LINES, _COLUMNS), part_of(tensors, member)
    shard, inner = _shard_of(cell, part, number_at(cell + _TILES), OWNED)
    capacity, most = number_at(cell + _CAPACITY), number_at(cell + _MOST)
    least = tl.load(tensor_at(cell + _LEVEL, tl.float32, False) + 2 * shard)
    number = tl.arange(0, _BINS)
    counted = tl.load(tensor_at(cell + _HISTOGRAM, tl.int32, False) + shard * _BINS + number)
    total = tl.sum(counted)
    above = total - tl.cumsum(counted, 0) + counted  # in this bin and those above it
    chosen = tl.sum((above > capacity).to(tl.int32))  # the first bin of which all are sent
    edge = ((least.to(tl.int32, bitcast=True) >> _SHIFT) + chosen) << _SHIFT
    edge = tl.where(chosen > 0, edge, 0)
    if inner == 0:
        _next_level(cell, shard, least, edge, total, chosen, capacity, SIZE, OWNED)
    # Of the bin below, each tile sends its share of what is left.
    bottom = edge - tl.where(chosen > 0, _BIN, 0)
    spare = (capacity - tl.sum(tl.where(number == chosen, above, 0))).to(tl.int64)
    middle = tl.maximum(tl.sum(tl.where(number == chosen - 1, counted, 0)), 1).to(tl.int64)
    table = tensor_at(cell + _TABLE, tl.int32, False) + 2 * (shard * number_at(cell + _TILES) + inner)
    first, count = tl.load(table), tl.load(table + 1)
    sizes = tensor_at(cell + _SIZES, tl.float32, False) + shard * most + first
    kept, between = 0, 0
    for begin in range(0, count, AT_ONCE):
        at = begin + tl.arange(0, AT_ONCE)
        size = tl.abs(tl.load(sizes + at, mask=at < count, other=0.0)).to(tl.int32, bitcast=True)
        kept += tl.sum(((at < count) & (size >= edge)).to(tl.int32))
        between += tl.sum(((at < count) & (size >= bottom) & (size < edge)).to(tl.int32))
    extra = tl.minimum(spare * between // middle, between).to(tl.int32)
    kept += extra
    control = tensor_at(cell + _CONTROL, tl.int64, False) + 2 * shard
    before = tl.atomic_add(control + 1, tl.cast(kept, tl.int64) + _ONE, sem="relaxed")
    slots, order = (before & _SLOTS).to(tl.int32), (before >> _TILE).to(tl.int32)
    slots = tl.minimum(slots, capacity)
    kept = tl.minimum(kept, capacity - slots)  # less only where the level was far off
    message, low_bits = _message_of(cell, _MESSAGE, shard, OWNED), number_at(cell + _LOW_BITS)
    tl.store(message + 2 * inner, slots)
    tl.store(message + 2 * inner + 1, (order << _COUNT) | kept)
    high, low = message + number_at(cell + _HIGH), message + number_at(cell + _LOW)
    base = slots.to(tl.int64) + order.to(tl.int64) * (SIZE >> low_bits)
    candidates = tensor_at(cell + _CANDIDATES, tl.int32, False) + shard * most + first
    places = tensor_at(cell + _PLACES, tl.int32, False) + shard * capacity + slots
    values = tensor_at(cell + _VALUES, tl.float32, False) + shard * capacity + slots
    p, begins = tensor_at(cell + _P, tl.float32, False), _tile_of(cell, shard, inner, OWNED) * SIZE
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
        place = where - begins
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
    shard: tl.tensor,
    least: tl.tensor,
    edge: tl.tensor,
    total: tl.tensor,
    chosen: tl.tensor,
    capacity: tl.tensor,
    SIZE: tl.constexpr,
    OWNED: tl.constexpr,
) -> None:
    """Writes the level of the next step."""
    if OWNED:
        n = (number_at(cell + _TILES) * SIZE).to(tl.float64)
        energy = tl.load(tensor_at(cell + _ENERGY, tl.float64, False) + shard)
    else:
        n = tl.load(cell + _N).to(tl.float64)
        energy = tl.load(tensor_at(cell + _ROW, tl.float64, False) + 1)
    guess = tl.log(n / capacity) * tl.sqrt(energy / n * 0.5)  # as if magnitudes were exponential
    after = tl.where(chosen > 0, edge.to(tl.float32, bitcast=True), least * _LOWER)
    after = tl.where((total > 0) & (chosen < _BINS), after, guess.to(tl.float32)) * _LOWER
    level = tensor_at(cell + _LEVEL, tl.float32, False) + 2 * shard
    tl.store(level + 1, tl.where((energy > 0.0) & (energy < float("inf")), after, least))


@jit()
def _mean(sizes: tl.tensor, part: tl.tensor) -> tl.tensor:
    """Returns the mean of a part of the sizes, 0 of none: a sum of whole multiples, in any order the same."""
    total = tl.sum(tl.where(part, (sizes * _FINE).to(tl.int32), 0).to(tl.int64))
    count = tl.maximum(tl.sum(part.to(tl.int64)), 1)
    return (total.to(tl.float64) / count.to(tl.float64) / _FINE).to(tl.float32)


@jit()
def _values(
    tensors: tl.tensor,
    DTYPE: tl.constexpr,
    KIND: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    OWNED: tl.constexpr,
) -> None:
    """Writes the values of one block of slots, and leaves in p what rounding them loses."""
    member = member_of(tensors + _BLOCKS)
    cell, part = row_of(tensors, member, _LINES, _COLUMNS), part_of(tensors + _BLOCKS, member)
    shard, me = _shard_of(cell, part, number_at(cell + _EACH), OWNED)
    g, p = tensor_at(cell + _G, DTYPE, False), tensor_at(cell + _P, tl.float32, False)
    row, message = tensor_at(cell + _ROW, tl.float64, False), _message_of(cell, _MESSAGE, shard, OWNED)
    capacity = number_at(cell + _CAPACITY)
    control, places = (
        tensor_at(cell + _CONTROL, tl.int64, False) + 2 * shard,
        tensor_at(cell + _PLACES, tl.int32, False) + shard * capacity,
    )
    values = tensor_at(cell + _VALUES, tl.float32, False) + shard * capacity
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
    wide, whole = tl.where(inside, sent, 0.0).to(tl.float64), value.to(tl.float64)
    x = widened(tl.load(g + place, mask=inside, other=0)).to(tl.float64)
    square = wide * wide
    if OWNED:
        # Of a sum, the rank has sent what exceeds that which came for it: ``_add_up`` has measured the rest.
        inner, mine = place // SIZE // number_at(cell + _RANKS), inside & (shard == number_at(cell + _OWN))
        came = tensor_at(cell + _CAME, tl.float32, False) + inner * SIZE + place % SIZE
        other = tl.load(came, mask=mine, other=0.0).to(tl.float64)
        square -= 2.0 * wide * other
        whole -= other
    tl.atomic_add(row + 2, tl.sum(square), sem="relaxed")
    tl.atomic_add(row + 3, tl.sum(wide * whole), sem="relaxed")
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
        _begin_again(cell, tile)
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
    messages = tensor_at(cell + _ARRIVED, tl.int32, False)
    for rank in range(ranks):
        message = messages + rank * stride
        first, count, base, bits, sound = _entry(cell, message, tile, SIZE)
        done = 0
        for bit in range(0, bits, AT_ONCE):
            place, value, here, found = _heard(
                cell, message, first, count, base, bits, bit, done, KIND, BLOCK, AT_ONCE
            )
            done += found
            here = here & (place < left)
            mean = widened(tl.load(out + place, mask=here, other=0)) + value * share
            tl.store(out + place, narrowed(mean, like), mask=here)
            heard = here & counting
            tl.store(senders + place, tl.load(senders + place, mask=heard, other=0) + 1, mask=heard)
            if undone:
                e = tensor_at(cell + _P, tl.float32, RUNS) + begin + place
                mine = here & (rank == own)
                tl.store(e, tl.load(e, mask=mine, other=0.0) + value, mask=mine)
        tl.debug_barrier()
        if not sound:
            write(out, at, narrowed(tl.zeros([SIZE], tl.float32) + float("nan"), like), left, SIZE)


@jit()
def _add_up(
    tensors: tl.tensor,
    DTYPE: tl.constexpr,
    RUNS: tl.constexpr,
    KIND: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """Adds what arrived for one tile of the own shard, in rank order."""
    member = member_of(tensors)
    cell, inner = row_of(tensors, member, _LINES, _COLUMNS), part_of(tensors, member)
    own, at = number_at(cell + _OWN), tl.arange(0, SIZE)
    begin = _tile_of(cell, own, inner, True).to(tl.int64) * SIZE
    left = room(tl.load(cell + _N), begin, SIZE)
    came = tensor_at(cell + _CAME, tl.float32, RUNS) + inner * SIZE
    tl.store(came + at, tl.zeros([SIZE], tl.float32))
    tl.debug_barrier()
    damaged = False
    for rank in range(number_at(cell + _RANKS)):
        message = _message_of(cell, _ARRIVED, rank, True)
        first, count, base, bits, sound = _entry(cell, message, inner, SIZE)
        bits = tl.where(rank == own, 0, bits)
        damaged = damaged | ((sound == 0) & (rank != own))
        done = 0
        for bit in range(0, bits, AT_ONCE):
            place, value, here, found = _heard(
                cell, message, first, count, base, bits, bit, done, KIND, BLOCK, AT_ONCE
            )
            done += found
            here = here & (place < left)
            tl.store(came + place, tl.load(came + place, mask=here, other=0.0) + value, mask=here)
        tl.debug_barrier()
    g, p = tensor_at(cell + _G, DTYPE, RUNS) + begin, tensor_at(cell + _P, tl.float32, RUNS) + begin
    zero = tl.zeros([AT_ONCE], tl.float64)
    ss, sp, sg = zero, zero, zero
    for part in range(0, left, AT_ONCE):  # in small parts, which need few registers
        here = part + tl.arange(0, AT_ONCE)
        before = tl.load(p + here, mask=here < left, other=0.0)
        more = tl.load(came + here, mask=here < left, other=0.0)
        tl.store(p + here, before + more, mask=here < left)
        wide = more.to(tl.float64)
        ss += wide * wide
        sp -= wide * before.to(tl.float64)
        sg -= wide * widened(tl.load(g + here, mask=here < left, other=0)).to(tl.float64)
    row = tensor_at(cell + _ROW, tl.float64, False)
    tl.atomic_add(row + 2, tl.sum(ss), sem="relaxed")
    tl.atomic_add(row + 3, tl.sum(sp), sem="relaxed")
    tl.atomic_add(row + 5, tl.sum(sg), sem="relaxed")
    if damaged:  # no rank keeps a step with a gradient like that
        tl.atomic_add(row, float("nan"), sem="relaxed")


@jit()
def _seek(tensors: tl.tensor, RUNS: tl.constexpr, SIZE: tl.constexpr) -> None:
    """Takes what reaches the level of the sums for candidates: of one tile of the own shard."""
    member = member_of(tensors)
    cell, inner = row_of(tensors, member, _LINES, _COLUMNS), part_of(tensors, member)
    own, at = number_at(cell + _OWN), tl.arange(0, SIZE)
    begin = _tile_of(cell, own, inner, True).to(tl.int64) * SIZE
    left = room(tl.load(cell + _N), begin, SIZE)
    value = read(tensor_at(cell + _P, tl.float32, RUNS) + begin, at, left, SIZE)
    _candidates(cell, own, inner, value, begin, left, SIZE, True)


@jit()
def _deliver(
    tensors: tl.tensor,
    counts: tl.tensor,
    share: tl.float32,
    DTYPE: tl.constexpr,
    RUNS: tl.constexpr,
    KIND: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """Writes one tile of the mean, of which its owner has sent the sums; or NaN, and undoes the step, where it does not
    count."""
    member = member_of(tensors)
    cell, tile = row_of(tensors, member, _LINES, _COLUMNS), part_of(tensors, member)
    shard, inner = _owner_of(cell, tile, True)
    if inner == 0:
        _begin_again(cell, shard)
        tl.store(tensor_at(cell + _ENERGY, tl.float64, False) + shard, 0.0)
    begin, at = tile.to(tl.int64) * SIZE, tl.arange(0, SIZE)
    left = room(tl.load(cell + _N), begin, SIZE)
    g, out = tensor_at(cell + _G, DTYPE, RUNS) + begin, tensor_at(cell + _OUT, DTYPE, RUNS) + begin
    p = tensor_at(cell + _P, tl.float32, RUNS) + begin
    counted, counting = tl.load(counts) != 0, number_at(cell + _COUNTED) != 0
    if (number_at(cell + _UNDONE) != 0) & (counted == 0):
        # Before the mean takes the gradient's place. Its own shard has lost what it sent all, and got what came for it.
        came = tensor_at(cell + _CAME, tl.float32, RUNS) + inner * SIZE
        mine = shard == number_at(cell + _OWN)
        for part in range(0, left, AT_ONCE):
            here = part + tl.arange(0, AT_ONCE)
            x = widened(tl.load(g + here, mask=here < left, other=0))
            rest = tl.load(p + here, mask=here < left, other=0.0) - tl.where(tl.abs(x) < float("inf"), x, 0.0)
            more = tl.load(came + here, mask=(here < left) & mine, other=0.0)
            tl.store(p + here, rest - more, mask=here < left)
        tl.debug_barrier()
        message = _message_of(cell, _MESSAGE, shard, True)
        first, count, base, bits, sound = _entry(cell, message, inner, SIZE)
        done = 0
        for bit in range(0, bits, AT_ONCE):
            place, value, here, found = _heard(
                cell, message, first, count, base, bits, bit, done, KIND, BLOCK, AT_ONCE
            )
            done += found
            here = here & (place < left)
            tl.store(p + place, tl.load(p + place, mask=here, other=0.0) + value, mask=here)
    nothing = tl.where(counted, 0.0, float("nan"))
    like = tl.load(tensor_at(cell + _G, DTYPE, RUNS))  # its type is that of the mean
    message = _message_of(cell, _ARRIVED, shard, True)
    first, count, base, bits, sound = _entry(cell, message, inner, SIZE)
    empty = tl.where(sound, nothing, float("nan"))
    write(out, at, narrowed(tl.zeros([SIZE], tl.float32) + empty, like), left, SIZE)
    senders = tensor_at(cell + _SENDERS, tl.uint8, RUNS) + begin
    if counting:
        write(senders, at, tl.zeros([SIZE], tl.uint8), left, SIZE)
    tl.debug_barrier()
    done = 0
    for bit in range(0, bits, AT_ONCE):
        place, value, here, found = _heard(
            cell, message, first, count, base, bits, bit, done, KIND, BLOCK, AT_ONCE
        )
        done += found
        here = here & (place < left)
        tl.store(out + place, narrowed(value * share + nothing, like), mask=here)
        tl.store(senders + place, tl.full([AT_ONCE], 1, tl.uint8), mask=here & counting)


@jit()
def _entry(cell: tl.tensor, message: tl.tensor, inner: tl.tensor, SIZE: tl.constexpr) -> tl.tensor:
    """Returns what a message's table says of a tile: first slot, elements, first bit, bits, and whether it can be."""
    capacity, low_bits = number_at(cell + _CAPACITY), number_at(cell + _LOW_BITS)
    first, entry = tl.load(message + 2 * inner), tl.load(message + 2 * inner + 1)
    count, order = entry & _COUNTS, entry >> _COUNT
    sound = (first >= 0) & (first + count <= capacity) & (order >= 0) & (order < number_at(cell + _TILES))
    count = tl.where(sound, count, 0)
    bits = tl.where(count > 0, count + (SIZE >> low_bits), 0)
    return first, count, first.to(tl.int64) + order.to(tl.int64) * (SIZE >> low_bits), bits, sound


@jit()
def _heard(
    cell: tl.tensor,
    message: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    base: tl.tensor,
    bits: tl.tensor,
    bit: tl.tensor,
    done: tl.tensor,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> tl.tensor:
    """Reads some bits of a tile's positions. Returns the places in the tile and the values that they stand for, where
    there is one, and how many."""
    high, low, kept = number_at(cell + _HIGH), number_at(cell + _LOW), number_at(cell + _KEPT)
    low_bits, blocks = number_at(cell + _LOW_BITS), (number_at(cell + _CAPACITY) + BLOCK - 1) // BLOCK
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
    return place, _kept(message + kept, slot, blocks, here, KIND, BLOCK), here, tl.sum(set_)


@jit()
def _begin_again(cell: tl.tensor, shard: tl.tensor) -> None:
    """Makes a shard, or a bucket, ready for the next step."""
    level = tensor_at(cell + _LEVEL, tl.float32, False) + 2 * shard
    control = tensor_at(cell + _CONTROL, tl.int64, False) + 2 * shard
    tl.store(level, tl.load(level + 1))
    tl.store(control + tl.arange(0, 2), tl.zeros([2], tl.int64))
    bins = tensor_at(cell + _HISTOGRAM, tl.int32, False) + shard * _BINS
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
    """Does what ``device.tiled.encode``, or ``device.owned.encode``, does, in three launches."""
    owned = steps[0].buffers.whole is not None

    def launches() -> list[Again | None]:
        layout, every = steps[0].buffers.layout, _table(steps, "all")
        select = launch(
            _select,
            every[1],
            every[0],
            warps=16,
            DTYPE=DTYPES[steps[0].gradient.dtype],
            RUNS=in_runs([one for step in steps for one in (step.gradient, step.residual, step.rest)]),
            SIZE=layout.tile,
            AT_ONCE=AT_ONCE,
            OWNED=owned,
        )
        return [select, *_place_all(steps, *(_table(steps, "others") if owned else every), owned)]

    _run(group, "encode", steps, launches)


def add_up(group: Any, steps: Sequence[Any]) -> None:
    """Does what ``device.owned.add_up`` does, in four launches."""

    def launches() -> list[Again | None]:
        table, tiles, blocks = _table(steps, "own")
        runs = in_runs([one for step in steps for one in (step.gradient, step.rest)])
        added = launch(_add_up, tiles, table, warps=8, RUNS=runs, **_reading(steps))
        # In the same launch this would take more registers than there are.
        seek = launch(_seek, tiles, table, warps=16, RUNS=runs, SIZE=steps[0].buffers.layout.tile)
        return [added, seek, *_place_all(steps, table, tiles, blocks, True)]

    _run(group, "add up", steps, launches)


def decode(group: Any, counts: Tensor, steps: Sequence[Any], own: int) -> None:
    """Does what ``device.tiled.decode`` does, in one launch."""

    def launches() -> list[Again | None]:
        (table, tiles, _), ranks = _table(steps, "all"), group.arrived.shape[0]
        others = counts.view(torch.uint8), group.arrived.stride(0), ranks, own, 1.0 / ranks
        return [
            launch(_decode, tiles, table, *others, warps=8, RUNS=_written_in_runs(steps), **_reading(steps))
        ]

    _run(group, counts.data_ptr(), steps, launches)


def deliver(group: Any, counts: Tensor, steps: Sequence[Any]) -> None:
    """Does what ``device.owned.decode`` does, in one launch."""

    def launches() -> list[Again | None]:
        (table, tiles, _), share = _table(steps, "all"), 1.0 / group.arrived.shape[0]
        others = counts.view(torch.uint8), share
        return [
            launch(_deliver, tiles, table, *others, warps=8, RUNS=_written_in_runs(steps), **_reading(steps))
        ]

    _run(group, counts.data_ptr(), steps, launches)


def _run(group: Any, what: object, steps: Sequence[Any], launches: Callable[[], list[Again | None]]) -> None:
    """Launch what was launched before with these tensors, or else for the first time."""
    key = what, steps[0].gradient.dtype, *map(_addresses, steps)
    again = group.again.get(key)
    if again is None:
        again = launches()
        if None not in again:
            group.remember(key, again)
        return
    for one in again:
        one()


def _place_all(
    steps: Sequence[Any], table: Tensor, tiles: int, blocks: int, owned: bool
) -> list[Again | None]:
    """Write messages of the candidates, in two launches."""
    layout, dtype = steps[0].buffers.layout, DTYPES[steps[0].gradient.dtype]
    values = {"DTYPE": dtype, "KIND": layout.kind, "SIZE": layout.tile, "BLOCK": layout.block}
    return [
        launch(_place, tiles, table, warps=8, SIZE=layout.tile, AT_ONCE=AT_ONCE, OWNED=owned),
        launch(_values, blocks, table, warps=1, OWNED=owned, **values),
    ]


def _reading(steps: Sequence[Any]) -> dict[str, Any]:
    """Return the constants of a kernel that reads messages."""
    layout, dtype = steps[0].buffers.layout, DTYPES[steps[0].gradient.dtype]
    sizes = {"SIZE": layout.tile, "BLOCK": layout.block, "AT_ONCE": AT_ONCE}
    return {"DTYPE": dtype, "KIND": layout.kind, **sizes}


def _written_in_runs(steps: Sequence[Any]) -> bool:
    return in_runs([one for step in steps for one in (step.gradient, step.out, step.rest, step.senders)])


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


OfShards = Literal["all", "others", "own"]
"""Shards of which a launch makes or reads messages."""


def _table(steps: Sequence[Any], which: OfShards) -> tuple[Tensor, int, int]:
    """Return the table of a launch, and its programs over tiles and over blocks."""
    counts = [_count_of(step.buffers, which) for step in steps]
    tiles, blocks = (
        [count * getattr(step.buffers.layout, name) for count, step in zip(counts, steps, strict=True)]
        for name in ("tiles", "blocks")
    )
    rows = [_row(step, which) for step in steps]
    return table_of((tiles, blocks), rows, steps[0].gradient.device), sum(tiles), sum(blocks)


def _count_of(buffers: Any, which: OfShards) -> int:
    ranks: int = 1 if buffers.whole is None else buffers.whole.ranks
    return {"all": ranks, "others": ranks - 1, "own": 1}[which]


def _row(step: Any, which: OfShards) -> Sequence[Tensor | int]:
    """Return a row of the table; what there is not is the address of something else, and never read."""
    buffers, layout, rest = step.buffers, step.buffers.layout, step.rest
    return (
        *(step.gradient, step.out, rest if step.residual is None else step.residual, rest),
        *(rest if step.senders is None else step.senders, step.row, buffers.message, buffers.arrived),
        *(buffers.control, buffers.level, buffers.bins, buffers.table, buffers.candidates, buffers.sizes),
        *(buffers.places, buffers.values, step.gradient.numel(), layout.most, layout.capacity, layout.tiles),
        *(layout.high, layout.low, layout.kept, layout.words),
        *(-(-(layout.words - layout.high) // layout.tiles), layout.low_bits),
        *(int(step.residual is not None), int(step.undone is not None), int(step.senders is not None)),
        *([0] * 9 if buffers.whole is None else _shards_of(buffers, which)),
    )


def _shards_of(buffers: Any, which: OfShards) -> Sequence[Tensor | int]:
    whole, own = buffers.whole, buffers.own
    return (
        *(buffers.energy, buffers.came, buffers.arrived.stride(0), whole.ranks, own, whole.seed),
        *((0, own) if which == "own" else (own, 1)),
        buffers.layout.blocks,
    )
