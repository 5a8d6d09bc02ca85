"""Operations on a block of elements or bits that several kernels share."""

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.build import jit


def raw(values: Tensor) -> Tensor:
    """Returns what ``widened`` takes: bfloat16 as bits, because Triton's interpreter gets the smallest numbers
    wrong.
    """
    return values.view(torch.int16) if values.dtype == torch.bfloat16 else values


def aligned(values: Tensor) -> Tensor:
    """Return a tensor that begins at a multiple of 16 bytes: a slice of a message may not, and would take a variant of
    the kernel that nobody has compiled.
    """
    return values.clone() if values.data_ptr() % 16 else values


@jit()
def begin_of(size: tl.tensor) -> tl.tensor:
    """Returns the first element of this program, 64-bit: the last program's elements may end beyond 2^31."""
    return tl.program_id(0).to(tl.int64) * size


@jit()
def room(total: tl.tensor, begin: tl.tensor, size: tl.tensor) -> tl.tensor:
    """Returns how many of the ``size`` elements from ``begin`` exist, 32-bit."""
    return tl.minimum(total - begin, size).to(tl.int32)


@jit()
def read(base: tl.tensor, at: tl.tensor, left: tl.tensor, size: tl.tensor) -> tl.tensor:
    """Loads the elements ``base[at]`` below ``left``, zero beyond; without a mask, so in wide loads, where all
    exist.
    """
    return tl.load(base + at) if left == size else tl.load(base + at, mask=at < left, other=0)


@jit()
def write(base: tl.tensor, at: tl.tensor, values: tl.tensor, left: tl.tensor, size: tl.tensor) -> tl.tensor:
    """Stores ``base[at] = values`` below ``left``."""
    if left == size:
        tl.store(base + at, values)
    else:
        tl.store(base + at, values, mask=at < left)


@jit()
def widened(values: tl.tensor) -> tl.tensor:
    """Returns as float32, exactly, what ``raw`` gave: floats, or the bits of bfloat16, a float32's upper ones."""
    if values.dtype == tl.int16:
        wide = (values.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        wide = values.to(tl.float32)
    return wide


@jit()
def narrowed(values: tl.tensor, like: tl.tensor) -> tl.tensor:
    """Returns float32 rounded to the nearest number of the type of ``like``, which ``widened`` takes."""
    if like.dtype == tl.int16:
        bits = values.to(tl.int32, bitcast=True)
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        narrow = tl.where(values == values, rounded, 0x7FC0).to(tl.int16)
    else:
        narrow = values.to(like.dtype)
    return narrow


@jit()
def bits_of(value: tl.tensor) -> tl.tensor:
    """Returns a float32 rounded to bfloat16, as its 16 bits."""
    wide = value.to(tl.int32, bitcast=True)
    return ((wide + (0x7FFF + ((wide >> 16) & 1))) >> 16) & 0xFFFF


@jit()
def float_of(bits: tl.tensor) -> tl.tensor:
    """Returns the float32 of 16 bits of a bfloat16."""
    return (bits << 16).to(tl.float32, bitcast=True)


@jit()
def ones(word: tl.tensor) -> tl.tensor:
    """Returns the bits set in each 32-bit word."""
    word = word.to(tl.uint32, bitcast=True)
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@jit()
def number(bit: tl.tensor) -> tl.tensor:
    """Returns which bit is set, 0 to 31, of words with one bit set: the exponent of the float of that size."""
    size = bit.to(tl.uint32, bitcast=True).to(tl.float32)
    return (size.to(tl.int32, bitcast=True) >> 23) - 127


@jit()
def some(words: tl.tensor) -> tl.tensor:
    """Returns whether any word has a bit set."""
    return tl.max((words != 0).to(tl.int32)) > 0
