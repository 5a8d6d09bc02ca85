"""Elias omega codes of whole arrays, several numbers joined to one symbol (Elias 1975, Universal codeword sets)."""

import torch
from torch import Tensor

_GROUPS = 5
"""Length groups in the code of a number below 2^31: 31 bits, 5, 3, 2 and the end."""


def omega(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Elias omega code of each number.

    Args:
        numbers: int64, 1 to 2^31 - 1.

    Returns:
        The bits of each code as an integer, and how many there are.
    """
    code, length = torch.zeros_like(numbers), torch.ones_like(numbers)  # the closing 0
    left = numbers.clone()
    while bool((left > 1).any()):
        width = _width(left)
        more = left > 1
        code = torch.where(more, code | (left << length), code)
        length = torch.where(more, length + width, length)
        left = torch.where(more, width - 1, left)
    return code, length


def glue(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Join two symbols to one, with ``first`` ahead. Together they have at most 63 bits."""
    return (first[0] << second[1]) | second[0], first[1] + second[1]


def stream(symbols: tuple[Tensor, Tensor]) -> Tensor:
    """Write all symbols one after the other, highest bit first.

    Args:
        symbols: Codes and their lengths.

    Returns:
        uint8 bits of shape ``(total,)``, padded with ones to whole bytes (no code ends in them).
    """
    code, length = symbols
    owner = torch.repeat_interleave(torch.arange(code.numel(), device=code.device, dtype=torch.int64), length)
    ends = length.cumsum(0)
    # Bits of the same symbol that come after each bit.
    behind = ends[owner] - 1 - torch.arange(owner.numel(), device=code.device, dtype=torch.int64)
    bits = ((code[owner] >> behind) & 1).to(torch.uint8)
    return torch.cat((bits, bits.new_ones(-bits.numel() % 8)))


def omega_at_every_bit(bits: Tensor) -> tuple[Tensor, Tensor]:
    """Decode a code at every bit: the number it would be, and where the next symbol begins.

    Where a code begins is known only when the one before was decoded, which only a loop can follow. A table of all bits
    needs none.

    Args:
        bits: Shape ``(t,)``.

    Returns:
        Two int64 tensors of shape ``(t + 2,)``. Position t is the proper end, and t + 1 stands for codes that go on
        past it. Both lead to themselves.
    """
    t = bits.numel()
    # windows[p]: the 32 bits from p on as a number, from windows of half the width.
    windows = torch.cat((bits.long(), bits.new_ones(33, dtype=torch.int64)))
    for half in (1, 2, 4, 8, 16):
        windows = (windows[:-half] << half) | windows[half:]
    number = torch.ones(t + 2, dtype=torch.int64, device=bits.device)
    place = torch.arange(t + 2, device=bits.device, dtype=torch.int64)
    for _ in range(_GROUPS):
        window = windows[place]
        goes_on = ((window >> 31) & 1).bool() & (number < 32) & (place < t)
        width = torch.where(goes_on, number + 1, 1)
        number = torch.where(goes_on, window >> (32 - width), number)
        place = torch.where(goes_on, (place + width).clamp(max=t + 1), place)
    ended = (place < t) & ((windows[place] >> 31) == 0)
    following = torch.where(ended, place + 1, t + 1)
    following[t] = t
    return number, following


def chain(following: Tensor) -> Tensor:
    """Return the walk that begins at 0 and goes from p to ``following[p]`` until it reaches t or beyond.

    Doubles the known part in each round, so it takes as many rounds as the count has binary digits.

    Args:
        following: Shape ``(t + 2,)``, from ``omega_at_every_bit``.
    """
    end = following.numel() - 2
    places = torch.zeros(1, dtype=torch.int64, device=following.device)
    stride = following
    while int(places[-1]) < end:
        places = torch.cat((places, stride[places]))
        stride = stride[stride]
    return places[places < end]


def _width(numbers: Tensor) -> Tensor:
    """Return the binary digits of each number >= 1."""
    return torch.frexp(numbers.double())[1].long()
