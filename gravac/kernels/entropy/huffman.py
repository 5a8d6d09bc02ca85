"""Huffman coding of bytes: lossless, and shorter the more uneven their frequencies are."""

from typing import Any

import torch
from torch import Tensor

from gravac.kernels import backend
from gravac.kernels.entropy import canonical
from gravac.kernels.entropy.canonical import LONGEST, SYMBOLS
from gravac.kernels.entropy.elias import chain
from gravac.kernels.packing import pack, unpack

RAW, CODED = 0, 1
"""First byte of what is sent: the bytes as they are, or the lengths of all codes and then the codes."""
STREAMS = 4
"""Codes are sent in so many parts, which a processor decodes at the same time."""
LENGTH_BYTES = SYMBOLS // 2
"""Bytes that the lengths take, two in each."""
HEAD_BYTES = 1 + LENGTH_BYTES + 4 * STREAMS
"""Bytes before the codes: the first, the lengths, and where each stream ends, in words of 32 bits."""
_SPARE = 7 * SYMBOLS


def huffman_encode(symbols: Tensor) -> Tensor:
    """Encodes bytes by a canonical Huffman code, made for their frequencies and sent with them.

    Args:
        symbols: uint8 of shape ``(n,)``. Those of a GPU are encoded on the host, which waits.

    Returns:
        uint8 on the same device, at most n + 1.
    """
    device, symbols = symbols.device, symbols.cpu()
    counts = _counts(symbols)
    lengths, codes = torch.zeros(SYMBOLS, dtype=torch.int64), torch.zeros(SYMBOLS, dtype=torch.int64)
    bits = _run("assign_lengths", counts, lengths, torch.zeros(_SPARE, dtype=torch.int64))
    if HEAD_BYTES + bits // 8 + 4 * STREAMS > symbols.numel():  # each stream fills its last word
        return torch.cat((symbols.new_tensor([RAW]), symbols)).to(device)
    _run("assign_codes", lengths, codes)
    words, ends = _encode(symbols, codes, lengths, bits)
    head = (symbols.new_tensor([CODED]), pack(lengths, 4), ends.int().view(torch.uint8))
    return torch.cat((*head, words.view(torch.uint8))).to(device)


def huffman_decode(packed: Tensor, count: int) -> tuple[Tensor, int]:
    """Decodes what ``huffman_encode`` made.

    Args:
        packed: uint8, which may go on behind the codes.
        count: Bytes to decode.

    Returns:
        uint8 of shape ``(count,)`` on the same device, and how many bytes of ``packed`` that took.

    Raises:
        ValueError: ``packed`` does not begin with the code of so many bytes.
    """
    device, packed = packed.device, packed.cpu()
    kind = int(packed[0]) if packed.numel() else -1
    if kind == RAW and packed.numel() > count:
        return packed[1 : 1 + count].to(device), 1 + count
    if kind == CODED and packed.numel() >= HEAD_BYTES:
        table = torch.zeros(1 << LONGEST, dtype=torch.uint16)
        lengths = unpack(packed[1 : 1 + LENGTH_BYTES], SYMBOLS, 4).long()
        codes = torch.zeros(SYMBOLS, dtype=torch.int64)
        _run("assign_codes", lengths, codes)
        ends = packed[1 + LENGTH_BYTES : HEAD_BYTES].clone().view(torch.int32).long()
        begins = [0, *ends.tolist()]
        taken = HEAD_BYTES + 4 * begins[-1]
        if begins == sorted(begins) and taken <= packed.numel() and _run("fill_table", lengths, codes, table):
            words = torch.zeros(begins[-1] + 1, dtype=torch.int32)  # the last is read ahead
            words.view(torch.uint8)[:-4] = packed[HEAD_BYTES:taken]
            symbols = torch.empty(count, dtype=torch.uint8)
            if _decode(words, ends, table, symbols):
                return symbols.to(device), taken
    raise ValueError(f"{packed.numel()} bytes do not begin with a Huffman code of {count} bytes")


def _run(name: str, *arrays: Tensor) -> int:
    """Calls a function of ``canonical``, compiled where that is possible, with arrays that it may change."""
    if backend.compiled(*arrays):
        from gravac.kernels.cpu import huffman

        return int(getattr(huffman, name)(*(array.numpy() for array in arrays)) or 0)
    lists: list[Any] = [array.tolist() for array in arrays]
    found = getattr(canonical, name)(*lists)
    for array, numbers in zip(arrays, lists, strict=True):
        array.copy_(torch.tensor(numbers, dtype=torch.int64))
    return int(found or 0)


def _counts(symbols: Tensor) -> Tensor:
    if backend.compiled(symbols):
        from gravac.kernels.cpu.huffman import count

        found = torch.empty(SYMBOLS, dtype=torch.int64)
        count(symbols.numpy(), found.numpy())
        return found
    return torch.bincount(symbols, minlength=SYMBOLS)


def _encode(symbols: Tensor, codes: Tensor, lengths: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Returns the codes of each stream, one after the other, the first bit lowest, and where each stream ends."""
    ends = torch.zeros(STREAMS, dtype=torch.int64)
    if backend.compiled(symbols):
        from gravac.kernels.cpu.huffman import encode

        words = torch.empty(bits // 32 + STREAMS, dtype=torch.int32)
        encode(symbols.numpy(), codes.numpy(), lengths.numpy(), words.numpy(), ends.numpy())
        return words[: int(ends[-1])], ends
    streams: list[Tensor] = []
    for number, stream in enumerate(symbols.split(max(1, -(-symbols.numel() // STREAMS)))):
        each = lengths[stream.long()]
        owner = torch.repeat_interleave(each)
        place = torch.arange(owner.numel()) - (each.cumsum(0) - each)[owner]
        found = ((codes[stream.long()][owner] >> place) & 1).to(torch.uint8)
        streams.append(pack(torch.nn.functional.pad(found, (0, -found.numel() % 32)), 1).view(torch.int32))
        ends[number:] = sum(each.numel() for each in streams)
    return torch.cat(streams), ends


def _decode(words: Tensor, ends: Tensor, table: Tensor, symbols: Tensor) -> bool:
    """Writes the symbols of all streams; False if these are no codes of so many."""
    if backend.compiled(words):
        from gravac.kernels.cpu.huffman import decode

        return bool(decode(words.numpy(), ends.numpy(), table.numpy(), symbols.numpy()))
    begin, each = 0, max(1, -(-symbols.numel() // STREAMS))
    for number, end in enumerate(ends.tolist()):
        part = symbols[number * each : (number + 1) * each]
        if not _decode_stream(words[begin:end], table.long(), part):
            return False
        begin = end
    return True


def _decode_stream(words: Tensor, table: Tensor, symbols: Tensor) -> bool:
    """Decodes in plain torch: what each bit would begin, then the chain of those that follow each other."""
    t = 32 * words.numel()
    windows = torch.cat(
        (unpack(words.view(torch.uint8), t, 1).long(), torch.zeros(LONGEST, dtype=torch.int64))
    )
    ahead = torch.zeros(t, dtype=torch.int64)
    for place in range(LONGEST):
        ahead |= windows[place : t + place] << place
    entries = table[ahead]
    following = torch.arange(t) + (entries & 15)
    lost = (entries == 0) | (following > t)
    following = torch.cat((torch.where(lost, t + 1, following), torch.tensor([t, t + 1])))
    starts = chain(following)[: symbols.numel()]
    if starts.numel() < symbols.numel():
        return False
    symbols.copy_((entries[starts] >> 4).to(torch.uint8))
    end = int(following[starts[-1]]) if starts.numel() else 0
    return -(-end // 32) == words.numel()
