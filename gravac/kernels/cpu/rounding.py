"""Blocks rounded at random to a few levels, and back."""

import numpy as np
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit, room

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_PIECE = 512
"""Elements whose draws are made together, an even number. They stay in the first-level cache (2 kB)."""


@jit("void(int64, int64, float32[::1])")
def draws(stream: np.int64, first: np.int64, out: NDArray[np.float32]) -> None:
    """Write the numbers from ``first`` (even) on of a stream, two from each word."""
    base = np.uint64(stream) + np.uint64(first >> 1) * _GOLDEN
    for i in range(out.size >> 1):
        word = base + np.uint64(i + 1) * _GOLDEN
        word = (word ^ (word >> np.uint64(30))) * _FIRST
        word = (word ^ (word >> np.uint64(27))) * _SECOND
        word ^= word >> np.uint64(31)
        out[2 * i] = np.float32(np.int32(word >> np.uint64(40))) * np.float32(2.0**-24)
        out[2 * i + 1] = np.float32(np.int32((word >> np.uint64(8)) & np.uint64(0xFFFFFF))) * np.float32(
            2.0**-24
        )


@jit(noise="void(int64, float32[n])")
def noise(stream: np.int64, out: NDArray[np.float32]) -> None:
    """Write the first numbers of a stream."""
    whole = out.size & ~1
    draws(stream, np.int64(0), out[:whole])
    if whole < out.size:
        last = room(np.float32, 2)
        draws(stream, np.int64(whole), last)
        out[whole] = last[0]


@jit("void(float32[::1], int64, int64, float32, float32, float32[::1], int64, uint8[::1])")
def round_piece(
    x: NDArray[np.float32],
    begin: int,
    size: int,
    scale: np.float32,
    steps: np.float32,
    drawn: NDArray[np.float32],
    first: int,
    codes: NDArray[np.uint8],
) -> None:
    """Write ``floor(a)`` or one more for ``a = x / scale · steps``, plus ``steps`` so that no code is negative."""
    for i in range(size):
        a = x[np.uint64(begin + i)] / scale * steps
        low = np.floor(a)
        up = np.float32(1.0) if drawn[np.uint64(first + i)] < a - low else np.float32(0.0)
        codes[np.uint64(begin + i)] = np.uint8(np.int32(low + up + steps))


@jit(quantize="void(float32[n], int64, int64, int64, float32[blocks], uint8[n])")
def quantize(
    x: NDArray[np.float32],
    block: int,
    steps: int,
    stream: np.int64,
    scales: NDArray[np.float32],
    codes: NDArray[np.uint8],
) -> None:
    """Find the largest magnitude of each block and the code of each element."""
    bits = x.view(np.int32)
    drawn = room(np.float32, _PIECE)
    top = room(np.int32, 1)
    for piece in range(0, x.size, _PIECE):
        draws(stream, np.int64(piece), drawn)
        end = min(piece + _PIECE, x.size)
        begin = piece
        while begin < end:
            number = begin // block
            stop = min((number + 1) * block, end)
            # A piece may begin inside a block, whose scale was found where the block began.
            if begin % block == 0:
                largest = np.int32(0)
                for i in range(begin, min(begin + block, x.size)):
                    largest = max(largest, bits[i] & np.int32(0x7FFFFFFF))
                top[0] = largest
                scales[number] = top.view(np.float32)[0]
            scale = scales[number]
            if scale > 0.0 and scale < np.inf:
                size = stop - begin
                round_piece(x, begin, size, scale, np.float32(steps), drawn, begin - piece, codes)
            else:  # the code of zero; a scale that is not finite makes the block so when it is decoded
                for i in range(begin, stop):
                    codes[i] = np.uint8(steps)
            begin = stop


@jit("void(float32[::1], int64, int64, float32, float32, float32[::1], int64, uint8[::1])")
def clip_piece(
    x: NDArray[np.float32],
    begin: int,
    size: int,
    spacing: np.float32,
    steps: np.float32,
    drawn: NDArray[np.float32],
    first: int,
    codes: NDArray[np.uint8],
) -> None:
    """Write codes as ``round_piece`` does, for ``a = x / spacing`` clipped to ``steps`` on each side."""
    for i in range(size):
        a = min(max(x[np.uint64(begin + i)] / spacing, -steps), steps)
        low = np.floor(a)
        up = np.float32(1.0) if drawn[np.uint64(first + i)] < a - low else np.float32(0.0)
        codes[np.uint64(begin + i)] = np.uint8(np.int32(low + up + steps))


@jit(clip_and_round="void(float32[n], int64, int64, int64, float32[blocks], uint8[n])")
def clip_and_round(
    x: NDArray[np.float32],
    block: int,
    steps: int,
    stream: np.int64,
    spacings: NDArray[np.float32],
    codes: NDArray[np.uint8],
) -> None:
    """Find each element's code by the spacing of its block."""
    drawn = room(np.float32, _PIECE)
    for piece in range(0, x.size, _PIECE):
        draws(stream, np.int64(piece), drawn)
        end = min(piece + _PIECE, x.size)
        begin = piece
        while begin < end:
            number = begin // block
            stop = min((number + 1) * block, end)
            spacing = spacings[number]
            if spacing > 0.0 and spacing < np.inf:
                size = stop - begin
                clip_piece(x, begin, size, spacing, np.float32(steps), drawn, begin - piece, codes)
            else:
                for i in range(begin, stop):
                    codes[i] = np.uint8(steps)
            begin = stop


@jit(mark_subtractive="void(float32[n], int64, int64, float32[blocks])")
def mark_subtractive(x: NDArray[np.float32], block: int, steps: int, spacings: NDArray[np.float32]) -> None:
    """Negate the spacing of each block that errs less if the draws are subtracted.

    With f the fraction of an element's level, it errs by 1/12 instead of ``f (1 - f)``. Blocks with a zero stay as they
    are, so that zeros stay zeros, and so do blocks whose decoded elements could be infinite.
    """
    most, fine = np.float32(steps), np.float32(256.0)
    for number in range(spacings.size):
        spacing, begin = spacings[number], number * block
        if not (spacing > 0.0 and (most + np.float32(1.0)) * spacing < np.inf):
            continue
        size, total, zeros = min(block, x.size - begin), np.int32(0), False
        for i in range(size):
            a = min(max(x[np.uint64(begin + i)] / spacing, -most), most)
            zeros |= x[np.uint64(begin + i)] == 0.0
            fraction = np.int32((a - np.floor(a)) * fine)
            total = np.int32(total + fraction * (np.int32(256) - fraction))
        if not zeros and 12 * np.int64(total) > np.int64(size) << 16:
            spacings[number] = -spacing


@jit(dequantize_subtractive="void(float32[blocks], uint8[n], int64, int64, int64, float32[n])")
def dequantize_subtractive(
    spacings: NDArray[np.float32],
    codes: NDArray[np.uint8],
    block: int,
    steps: int,
    stream: np.int64,
    out: NDArray[np.float32],
) -> None:
    """Compute ``(code - steps) · spacing``; if the spacing is negative, ``(code - steps + draw - 1/2) · -spacing``."""
    drawn = room(np.float32, _PIECE)
    less = np.int32(steps)
    for piece in range(0, out.size, _PIECE):
        draws(stream, np.int64(piece), drawn)
        end = min(piece + _PIECE, out.size)
        begin = piece
        while begin < end:
            number = begin // block
            stop = min((number + 1) * block, end)
            spacing, first, size = spacings[number], begin - piece, stop - begin
            if spacing < 0.0:
                for i in range(size):
                    level = np.float32(np.int32(codes[np.uint64(begin + i)]) - less)
                    off = drawn[np.uint64(first + i)] - np.float32(0.5)
                    out[np.uint64(begin + i)] = (level + off) * -spacing
            else:
                for i in range(size):
                    level = np.float32(np.int32(codes[np.uint64(begin + i)]) - less)
                    out[np.uint64(begin + i)] = level * spacing
            begin = stop


@jit(dequantize="void(float32[blocks], uint8[n], int64, int64, float32[n])")
def dequantize(
    scales: NDArray[np.float32],
    codes: NDArray[np.uint8],
    block: int,
    steps: int,
    out: NDArray[np.float32],
) -> None:
    """Compute ``(code - steps) / steps · scale``."""
    shares = room(np.float32, 256)
    for code in range(256):
        shares[code] = np.float32(code - steps) / np.float32(steps)
    for number in range(scales.size):
        begin, scale = number * block, scales[number]
        for i in range(min(block, out.size - begin)):
            out[np.uint64(begin + i)] = shares[np.uint64(codes[np.uint64(begin + i)])] * scale
