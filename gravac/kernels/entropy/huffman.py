"""Huffman coding of bytes: lossless, and shorter the more uneven their frequencies are."""

import torch
from torch import Tensor

from gravac.kernels import backend
from gravac.kernels.entropy import canonical
from gravac.kernels.entropy.canonical import (
    CODED,
    HEAD_BYTES,
    LENGTH_BYTES,
    LONGEST,
    RAW,
    STREAMS,
    SYMBOLS,
    most_bytes,
)
from gravac.kernels.entropy.elias import chain
from gravac.kernels.packing import pack, unpack


def huffman_encode(symbols: Tensor) -> Tensor:
    """Encode bytes by a canonical Huffman code, made for their frequencies and sent with them.

    Args:
        symbols: uint8 of shape ``(n,)``. Those of a GPU are encoded on the host, which waits.

    Returns:
        uint8 on the same device, at most n + 1.
    """
    device, symbols = symbols.device, symbols.cpu()
    coded = None
    if symbols.numel() > HEAD_BYTES:
        coded = _encode(symbols)
    if coded is None:
        return torch.cat((symbols.new_tensor([RAW]), symbols)).to(device)
    return coded.to(device)


def huffman_decode(packed: Tensor, count: int) -> tuple[Tensor, int]:
    """Decode what ``huffman_encode`` made.

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
        found = _decode(packed, count)
        if found is not None:
            symbols, taken = found
            return symbols.to(device), taken
    raise ValueError(f"{packed.numel()} bytes do not begin with a Huffman code of {count} bytes")


def _encode(symbols: Tensor) -> Tensor | None:
    """Return None if codes would take more bytes."""
    if symbols.dtype == torch.uint8 and backend.compiled(symbols):
        size = symbols.numel()
        coded, words = (
            torch.empty_like(symbols),
            torch.empty(size // 4 + STREAMS, dtype=torch.int32, device="cpu"),
        )
        taken = backend.host.encode_bytes(
            symbols.data_ptr(), coded.data_ptr(), words.data_ptr(), size, words.numel()
        )
        return coded[:taken] if taken else None
    counts = torch.bincount(symbols, minlength=SYMBOLS).tolist()
    bits_of, code_of = [0] * SYMBOLS, [0] * SYMBOLS
    bits = canonical.assign_lengths(counts, bits_of, [0] * canonical.SPARE)
    if most_bytes(bits) > symbols.numel():
        return None
    canonical.assign_codes(bits_of, code_of)
    lengths, codes = (
        torch.tensor(bits_of, dtype=torch.int64, device="cpu"),
        torch.tensor(code_of, dtype=torch.int64, device="cpu"),
    )
    streams: list[Tensor] = []
    ends = torch.zeros(STREAMS, dtype=torch.int32, device="cpu")
    for number, stream in enumerate(symbols.split(-(-symbols.numel() // STREAMS))):
        each = lengths[stream.long()]
        owner = torch.repeat_interleave(each)
        place = torch.arange(owner.numel(), dtype=torch.int64, device="cpu") - (each.cumsum(0) - each)[owner]
        found = ((codes[stream.long()][owner] >> place) & 1).to(torch.uint8)
        streams.append(pack(torch.nn.functional.pad(found, (0, -found.numel() % 32)), 1).view(torch.int32))
        ends[number:] = sum(stream.numel() for stream in streams)
    head = (symbols.new_tensor([CODED]), pack(lengths, 4), ends.view(torch.uint8))
    return torch.cat((*head, torch.cat(streams).view(torch.uint8)))


def _decode(packed: Tensor, count: int) -> tuple[Tensor, int] | None:
    """Decode as ``huffman_decode`` does; None if these are not the codes of so many bytes."""
    if packed.dtype == torch.uint8 and backend.compiled(packed):
        size = packed.numel()
        symbols, words = (
            torch.empty(count, dtype=torch.uint8, device="cpu"),
            torch.empty(size // 4 + 1, dtype=torch.int32, device="cpu"),
        )
        given = packed.data_ptr(), symbols.data_ptr(), words.data_ptr()
        taken = backend.host.decode_bytes(*given, count, size, words.numel())
        return (symbols, taken) if taken else None
    lengths = unpack(packed[1 : 1 + LENGTH_BYTES], SYMBOLS, 4).tolist()
    codes, table = [0] * SYMBOLS, [0] * (1 << LONGEST)
    canonical.assign_codes(lengths, codes)
    ends = packed[1 + LENGTH_BYTES : HEAD_BYTES].clone().view(torch.int32).tolist()
    taken, begin = HEAD_BYTES + 4 * ends[-1], 0
    if sorted((0, *ends)) != [0, *ends] or taken > packed.numel():
        return None
    if not canonical.fill_table(lengths, codes, table):
        return None
    words, entries = (
        packed[HEAD_BYTES:taken].clone().view(torch.int32),
        torch.tensor(table, dtype=torch.int64, device="cpu"),
    )
    symbols, each = torch.empty(count, dtype=torch.uint8, device="cpu"), max(1, -(-count // STREAMS))
    for number, end in enumerate(ends):
        part = symbols[number * each : (number + 1) * each]
        if not _decode_stream(words[begin:end], entries, part):
            return None
        begin = end
    return symbols, taken


def _decode_stream(words: Tensor, table: Tensor, symbols: Tensor) -> bool:
    """Decode in plain torch: find what would begin at each bit, then follow the chain of those that do."""
    t = 32 * words.numel()
    windows = torch.cat(
        (unpack(words.view(torch.uint8), t, 1).long(), torch.zeros(LONGEST, dtype=torch.int64, device="cpu"))
    )
    ahead = torch.zeros(t, dtype=torch.int64, device="cpu")
    for place in range(LONGEST):
        ahead |= windows[place : t + place] << place
    entries = table[ahead]
    following = torch.arange(t, dtype=torch.int64, device="cpu") + (entries & 15)
    lost = (entries == 0) | (following > t)
    following = torch.cat(
        (torch.where(lost, t + 1, following), torch.tensor([t, t + 1], dtype=torch.int64, device="cpu"))
    )
    starts = chain(following)[: symbols.numel()]
    if starts.numel() < symbols.numel():
        return False
    symbols.copy_((entries[starts] >> 4).to(torch.uint8))
    end = int(following[starts[-1]]) if starts.numel() else 0
    return -(-end // 32) == words.numel()
