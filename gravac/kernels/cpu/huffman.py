"""Huffman coding of bytes, and back."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gravac.kernels.cpu.build import jit
from gravac.kernels.entropy import canonical
from gravac.kernels.entropy.canonical import (
    CODED,
    HEAD_BYTES,
    LENGTH_BYTES,
    LONGEST,
    SPARE,
    STREAMS,
    SYMBOLS,
    most_bytes,
)

_TABLES = 4
"""Counts kept apart, so that equal neighbors do not wait for each other."""

assign_lengths = jit("int64(int64[::1], int64[::1], int64[::1])")(canonical.assign_lengths)
assign_codes = jit("void(int64[::1], int64[::1])")(canonical.assign_codes)
fill_table = jit("int64(int64[::1], int64[::1], uint16[::1])")(canonical.fill_table)


def encode_bytes(symbols: Tensor) -> Tensor | None:
    """Encode bytes as ``huffman_encode`` does; None if codes would take more bytes.

    It uses NumPy, because a compressed all-reduce encodes and decodes many short messages. On those, an operation of
    NumPy takes a tenth of the time of torch's.
    """
    values, counts, lengths, codes = symbols.numpy(), *np.zeros((3, SYMBOLS), np.int64)
    count(values, counts)
    bits = assign_lengths(counts, lengths, np.zeros(SPARE, np.int64))
    if most_bytes(bits) > values.size:
        return None
    assign_codes(lengths, codes)
    words, ends = np.empty(bits // 32 + STREAMS, np.int32), np.empty(STREAMS, np.int64)
    encode(values, codes, lengths, words, ends)
    out = np.empty(HEAD_BYTES + 4 * int(ends[-1]), np.uint8)
    out[0] = CODED
    out[1 : 1 + LENGTH_BYTES] = lengths[::2] | lengths[1::2] << 4
    out[1 + LENGTH_BYTES : HEAD_BYTES] = ends.astype(np.int32).view(np.uint8)
    out[HEAD_BYTES:] = words[: ends[-1]].view(np.uint8)
    return torch.from_numpy(out)


def decode_bytes(packed: Tensor, count: int) -> tuple[Tensor, int] | None:
    """Decode as ``huffman_decode`` does; None if these are not the codes of so many bytes."""
    message, lengths, codes = packed.numpy(), *np.zeros((2, SYMBOLS), np.int64)
    pairs = message[1 : 1 + LENGTH_BYTES]
    lengths[::2], lengths[1::2] = pairs & 15, pairs >> 4
    assign_codes(lengths, codes)
    ends = message[1 + LENGTH_BYTES : HEAD_BYTES].copy().view(np.int32).astype(np.int64)
    begins, table = [0, *ends.tolist()], np.zeros(1 << LONGEST, np.uint16)
    taken = HEAD_BYTES + 4 * begins[-1]
    if begins != sorted(begins) or taken > message.size or not fill_table(lengths, codes, table):
        return None
    words = np.zeros(begins[-1] + 1, np.int32)  # the last is read ahead
    words.view(np.uint8)[:-4] = message[HEAD_BYTES:taken]
    symbols = np.empty(count, np.uint8)
    return (torch.from_numpy(symbols), taken) if decode(words, ends, table, symbols) else None


@jit("void(uint8[::1], int64[::1])")
def count(symbols: NDArray[np.uint8], out: NDArray[np.int64]) -> None:
    """Count each symbol."""
    found = np.zeros(1024, np.int64)  # four tables of 256
    whole = symbols.size - symbols.size % _TABLES
    for i in range(0, whole, _TABLES):
        for table in range(_TABLES):
            found[np.uint64(256 * table + symbols[np.uint64(i + table)])] += 1
    for i in range(whole, symbols.size):
        found[np.uint64(symbols[i])] += 1
    for symbol in range(256):
        out[symbol] = found[symbol] + found[256 + symbol] + found[512 + symbol] + found[768 + symbol]


@jit("void(uint8[::1], int64[::1], int64[::1], int32[::1], int64[::1])")
def encode(
    symbols: NDArray[np.uint8],
    codes: NDArray[np.int64],
    lengths: NDArray[np.int64],
    words: NDArray[np.int32],
    ends: NDArray[np.int64],
) -> None:
    """Write the code of each symbol after the last one, the first bit lowest. Each stream begins with a new word.

    Args:
        symbols: Equally many for each stream; the last streams have fewer or none.
        codes: The code of each symbol.
        lengths: The bits of each code.
        words: Room for all codes.
        ends: Receives the word at which each stream ends.
    """
    each = -(-symbols.size // ends.size)
    place = 0
    for stream in range(ends.size):
        held, filled = np.uint64(0), np.uint64(0)
        for i in range(stream * each, min((stream + 1) * each, symbols.size)):
            symbol = np.uint64(symbols[np.uint64(i)])
            held |= np.uint64(codes[symbol]) << filled
            filled += np.uint64(lengths[symbol])
            if filled >= np.uint64(32):
                words[np.uint64(place)] = np.int32(np.uint32(held & np.uint64(0xFFFFFFFF)))
                place += 1
                held >>= np.uint64(32)
                filled -= np.uint64(32)
        if filled > np.uint64(0):
            words[place] = np.int32(np.uint32(held & np.uint64(0xFFFFFFFF)))
            place += 1
        ends[stream] = place


@jit("int64(int32[::1], int64[::1], uint16[::1], uint8[::1])")
def decode(
    words: NDArray[np.int32], ends: NDArray[np.int64], table: NDArray[np.uint16], symbols: NDArray[np.uint8]
) -> int:
    """Read as many symbols as there is room for.

    Only a code's length tells where the next one begins, so each step waits for the one before. Four streams take
    turns, so that a processor works on all four at once, each in variables of its own.

    Args:
        words: All streams, and a word of zeros after the last.
        ends: The word at which each of the four streams ends.
        table: ``symbol << 4 | length`` by the next 12 bits.
        symbols: Room for the symbols.

    Returns:
        1, or 0 if these are not codes, or if a stream has more or fewer words than its symbols take.
    """
    each = -(-symbols.size // 4)
    turns = max(0, symbols.size - 3 * each)
    spare = np.int64(words.size - 1)
    mask, twelve, of = np.uint64(4095), np.uint64(12), np.uint64(15)
    at0, at1, at2, at3 = np.int64(0), ends[0], ends[1], ends[2]
    held0, held1, held2, held3 = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
    left0, left1, left2, left3 = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
    for i in range(turns):
        if left0 < twelve:
            held0 |= np.uint64(np.uint32(words[np.uint64(min(at0, spare))])) << left0
            at0 += 1
            left0 += np.uint64(32)
        if left1 < twelve:
            held1 |= np.uint64(np.uint32(words[np.uint64(min(at1, spare))])) << left1
            at1 += 1
            left1 += np.uint64(32)
        if left2 < twelve:
            held2 |= np.uint64(np.uint32(words[np.uint64(min(at2, spare))])) << left2
            at2 += 1
            left2 += np.uint64(32)
        if left3 < twelve:
            held3 |= np.uint64(np.uint32(words[np.uint64(min(at3, spare))])) << left3
            at3 += 1
            left3 += np.uint64(32)
        entry0, entry1 = np.uint64(table[held0 & mask]), np.uint64(table[held1 & mask])
        entry2, entry3 = np.uint64(table[held2 & mask]), np.uint64(table[held3 & mask])
        width0, width1, width2, width3 = entry0 & of, entry1 & of, entry2 & of, entry3 & of
        symbols[np.uint64(i)] = np.uint8(entry0 >> np.uint64(4))
        symbols[np.uint64(i + each)] = np.uint8(entry1 >> np.uint64(4))
        symbols[np.uint64(i + 2 * each)] = np.uint8(entry2 >> np.uint64(4))
        symbols[np.uint64(i + 3 * each)] = np.uint8(entry3 >> np.uint64(4))
        held0, held1, held2, held3 = held0 >> width0, held1 >> width1, held2 >> width2, held3 >> width3
        left0, left1, left2, left3 = left0 - width0, left1 - width1, left2 - width2, left3 - width3
        if width0 == 0 or width1 == 0 or width2 == 0 or width3 == 0:
            return 0
    for stream in range(4):
        at, held, left = at0, held0, left0
        if stream == 1:
            at, held, left = at1, held1, left1
        elif stream == 2:
            at, held, left = at2, held2, left2
        elif stream == 3:
            at, held, left = at3, held3, left3
        for i in range(stream * each + turns, min((stream + 1) * each, symbols.size)):
            if left < twelve:
                held |= np.uint64(np.uint32(words[np.uint64(min(at, spare))])) << left
                at += 1
                left += np.uint64(32)
            entry = np.uint64(table[held & mask])
            width = entry & of
            if width == 0:
                return 0
            symbols[np.uint64(i)] = np.uint8(entry >> np.uint64(4))
            held >>= width
            left -= width
        # Whole words that were read ahead are still unused.
        used = at - np.int64(left >> np.uint64(5))
        if used != ends[stream]:
            return 0
    return 1
