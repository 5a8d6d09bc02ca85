"""Huffman coding of bytes, and back."""

import numpy as np
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit, room
from gravac.kernels.entropy import canonical
from gravac.kernels.entropy.canonical import (
    CODED,
    HEAD_BYTES,
    LENGTH_BYTES,
    LONGEST,
    SPARE,
    STREAMS,
    SYMBOLS,
)

_TABLES = 4
"""Counts kept apart, so that equal neighbors do not wait for each other."""
_ENTRIES = 1 << LONGEST

assign_lengths = jit("int64(int64[::1], int64[::1], int64[::1])")(canonical.assign_lengths)
assign_codes = jit("void(int64[::1], int64[::1])")(canonical.assign_codes)
fill_table = jit("int64(int64[::1], int64[::1], uint16[::1])")(canonical.fill_table)
most_bytes = jit("int64(int64)")(canonical.most_bytes)


@jit("void(uint8[::1], int64[::1])")
def count(symbols: NDArray[np.uint8], out: NDArray[np.int64]) -> None:
    """Count each symbol."""
    found = room(np.int64, 1024)  # four tables of 256
    for i in range(1024):
        found[i] = 0
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


@jit(encode_bytes="int64(uint8[n], uint8[n], int32[words])")
def encode_bytes(symbols: NDArray[np.uint8], out: NDArray[np.uint8], words: NDArray[np.int32]) -> int:
    """Encode bytes as ``huffman_encode`` does.

    Args:
        symbols: The bytes.
        out: Room for as many.
        words: Spare room: a quarter as many words, and one for each stream.

    Returns:
        The bytes written; 0 if codes would take more than the bytes themselves.
    """
    counts, lengths, codes = room(np.int64, SYMBOLS), room(np.int64, SYMBOLS), room(np.int64, SYMBOLS)
    spare, ends = room(np.int64, SPARE), room(np.int64, STREAMS)
    count(symbols, counts)
    if most_bytes(assign_lengths(counts, lengths, spare)) > symbols.size:
        return 0
    assign_codes(lengths, codes)
    encode(symbols, codes, lengths, words, ends)
    out[0] = CODED
    for pair in range(LENGTH_BYTES):
        out[1 + pair] = np.uint8(lengths[2 * pair] | lengths[2 * pair + 1] << 4)
    for stream in range(STREAMS):
        for byte in range(4):
            out[1 + LENGTH_BYTES + 4 * stream + byte] = np.uint8(ends[stream] >> 8 * byte)
    for place in range(ends[STREAMS - 1]):
        for byte in range(4):
            out[HEAD_BYTES + 4 * place + byte] = np.uint8(words[place] >> 8 * byte)
    return HEAD_BYTES + 4 * ends[STREAMS - 1]  # type: ignore[no-any-return]


@jit(decode_bytes="int64(uint8[size], uint8[n], int32[words])")
def decode_bytes(message: NDArray[np.uint8], symbols: NDArray[np.uint8], words: NDArray[np.int32]) -> int:
    """Decode as many bytes as there is room for, as ``huffman_decode`` does.

    Args:
        message: Codes, which begin with their head.
        symbols: Room for the bytes.
        words: Spare room: a quarter as many words as ``message`` has bytes, and one more.

    Returns:
        The bytes that the codes take; 0 if these are not the codes of so many bytes.
    """
    lengths, codes, ends = room(np.int64, SYMBOLS), room(np.int64, SYMBOLS), room(np.int64, STREAMS)
    table = room(np.uint16, _ENTRIES)
    for pair in range(LENGTH_BYTES):
        lengths[2 * pair] = message[1 + pair] & 15
        lengths[2 * pair + 1] = message[1 + pair] >> 4
    assign_codes(lengths, codes)
    last = np.int64(0)
    for stream in range(STREAMS):
        end = np.int64(0)
        for byte in range(4):
            end |= np.int64(message[1 + LENGTH_BYTES + 4 * stream + byte]) << 8 * byte
        if end < last or HEAD_BYTES + 4 * end > message.size:
            return 0
        ends[stream] = last = end
    for entry in range(_ENTRIES):
        table[entry] = 0
    if not fill_table(lengths, codes, table):
        return 0
    for place in range(last):
        word = np.uint32(0)
        for byte in range(4):
            word |= np.uint32(message[HEAD_BYTES + 4 * place + byte]) << np.uint32(8 * byte)
        words[place] = np.int32(word)
    words[last] = 0  # it is read ahead
    return np.int64(decode(words[: last + 1], ends, table, symbols) * (HEAD_BYTES + 4 * last))  # type: ignore[return-value]
