"""Canonical Huffman codes of bytes: the layout of a message, the codes, and the table that decodes them.

Plain loops over lists, which ``gravac.kernels.cpu.huffman`` compiles for arrays: both backends give the same codes.
"""

from typing import Any, TypeAlias

SYMBOLS = 256
"""Different bytes."""
SPARE = 7 * SYMBOLS
"""Numbers that ``assign_lengths`` needs room for."""
LONGEST = 12
"""Bits of the longest code, so that a table of 4,096 entries decodes every code at once."""
RAW, CODED = 0, 1
"""First byte of what is sent: the bytes as they are, or the lengths of all codes and then the codes."""
STREAMS = 4
"""Codes are sent in so many parts, which a processor decodes at the same time."""
LENGTH_BYTES = SYMBOLS // 2
"""Bytes that the lengths take, two in each."""
HEAD_BYTES = 1 + LENGTH_BYTES + 4 * STREAMS
"""Bytes before the codes: the first, the lengths, and where each stream ends, in words of 32 bits."""

Numbers: TypeAlias = Any
"""A list of whole numbers, or an array of them."""


def most_bytes(bits: int) -> int:
    """Return the most bytes that codes of so many bits take, since each stream fills its last word."""
    return HEAD_BYTES + bits // 8 + 4 * STREAMS


def assign_lengths(counts: Numbers, lengths: Numbers, spare: Numbers) -> int:
    """Write the bits of each symbol's code: 0 where it does not occur, at most ``LONGEST``.

    Huffman's tree (1952) from two queues: symbols by frequency, and pairs in the order in which they are made. Where a
    code gets too long, frequencies are halved, which brings them closer together, and the tree is made again.

    Args:
        counts: How often each of the 256 symbols occurs.
        lengths: Receives the bits of each code.
        spare: Room for ``SPARE`` numbers.

    Returns:
        The bits that all symbols take together.
    """
    present = 0
    for symbol in range(SYMBOLS):
        lengths[symbol] = 0
        if counts[symbol] > 0:  # sorted by frequency, equal ones by symbol
            place = present
            while place > 0 and counts[spare[place - 1]] > counts[symbol]:
                spare[place] = spare[place - 1]
                place -= 1
            spare[place] = symbol
            present += 1
    halvings = 0
    while True:
        # spare holds symbols by frequency, then the weights, parents and depths of nodes: first those of the symbols
        for node in range(present):
            spare[SYMBOLS + node] = ((counts[spare[node]] - 1) >> halvings) + 1
        leaf, pair = 0, present
        for made in range(present, 2 * present - 1):
            weight = 0
            for _ in range(2):
                if leaf < present and (pair >= made or spare[SYMBOLS + leaf] <= spare[SYMBOLS + pair]):
                    node = leaf
                    leaf += 1
                else:
                    node = pair
                    pair += 1
                weight += spare[SYMBOLS + node]
                spare[3 * SYMBOLS + node] = made
            spare[SYMBOLS + made] = weight
        deepest = 0
        root = 2 * present - 2
        for back in range(2 * present - 1):
            node = root - back
            depth = 0 if node == root else spare[5 * SYMBOLS + spare[3 * SYMBOLS + node]] + 1
            spare[5 * SYMBOLS + node] = depth
            if node < present:
                deepest = max(deepest, depth)
        if deepest <= LONGEST:
            break
        halvings += 1
    bits = 0
    for node in range(present):
        length = max(1, spare[5 * SYMBOLS + node])
        lengths[spare[node]] = length
        bits += length * counts[spare[node]]
    return bits


def assign_codes(lengths: Numbers, codes: Numbers) -> None:
    """Write the code of each symbol, its first bit lowest. Codes of one length ascend with the symbols."""
    code = 0
    for length in range(1, LONGEST + 1):
        code <<= 1
        for symbol in range(SYMBOLS):
            if lengths[symbol] == length:
                turned = 0
                for place in range(length):
                    turned |= ((code >> place) & 1) << (length - 1 - place)
                codes[symbol] = turned
                code += 1


def fill_table(lengths: Numbers, codes: Numbers, table: Numbers) -> int:
    """Write ``symbol << 4 | length`` for what the next 12 bits may be, into 4,096 zeros.

    Returns:
        0 if there is no code of such lengths, else 1.
    """
    used = 0
    for symbol in range(SYMBOLS):
        if lengths[symbol] > LONGEST:
            return 0
        if lengths[symbol] > 0:
            used += 1 << (LONGEST - lengths[symbol])
    if used == 0 or used > 1 << LONGEST:
        return 0
    for symbol in range(SYMBOLS):
        if lengths[symbol] > 0:
            step = 1 << lengths[symbol]
            for place in range(codes[symbol], 1 << LONGEST, step):
                table[place] = symbol * 16 + lengths[symbol]
    return 1
