"""Every element of a gradient in few bits, as messages that a device makes and reads in a few launches.

Ranks gather messages of whole gradients. Or they cut the gradient into shards of whole blocks and send each owner a
message of its shard; the owner averages what arrives, rounds the mean, and sends it to all.

A message, int32 words, begins with the codes. Elements come in groups of as many rows as a word has digits; a word has
those of one column, so that a program which goes from row to row writes and reads all memory in runs. It is a fraction
of 2^32: times the base, the first digit is what exceeds 2^32, and the rest is the fraction of the others. Then come the
scales of the blocks: float32, bfloat16, or none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gravac.kernels import backend
from gravac.kernels.nearest import dequantize_nearest, grid_of, quantize_nearest
from gravac.kernels.packing import DIGITS
from gravac.kernels.rounding import dequantize, quantize

Kind = Literal["bfloat16", "random", "nearest"]
ROW = 512
"""Elements of a row at most: whole blocks."""
MOST_ELEMENTS = 1 << 30
"""Elements of a gradient at most."""
FORMATS = (torch.float32, torch.bfloat16)
"""Formats of gradients."""
_KINDS: tuple[Kind, ...] = ("bfloat16", "random", "nearest")
_MOST_AGAIN = 8  # to encode, average and decode, with each of two buffers
_LOW = (1 << 32) - 1


class Rounding(NamedTuple):
    """How an element is rounded.

    Args:
        kind: To bfloat16; at random to levels of its block's largest magnitude, as ``kernels.quantize``; or to the
            nearest level of its block, as ``kernels.quantize_nearest``.
        levels: Levels that an element may have; 0: those of bfloat16.
        base: Codes are below it.
        digits: Codes of a word.
        block: Elements that share a scale.
        scale: The format of a scale; None: there is none.
    """

    kind: Kind
    levels: int
    base: int
    digits: int
    block: int
    scale: torch.dtype | None

    @property
    def number(self) -> int:
        """Number of the kind."""
        return _KINDS.index(self.kind)

    @property
    def steps(self) -> int:
        """Levels on each side of zero."""
        return self.levels // 2

    @property
    def zero(self) -> int:
        """The code of 0."""
        return 1 if self.levels == 2 else self.steps


BFLOAT16 = Rounding("bfloat16", 0, 1 << 16, 2, 64, None)
RANDOM = Rounding("random", 255, 256, 4, 256, torch.float32)


@cache
def nearest(levels: int) -> Rounding:
    """Return that to the nearest of so many levels."""
    base = grid_of(levels).base
    return Rounding("nearest", levels, base, DIGITS[base], 64, torch.bfloat16)


@dataclass(frozen=True)
class RoundedLayout:
    """The begins of the parts of a message, in words.

    Attributes:
        numel: Elements of the gradient.
        ranks: Ranks that exchange.
        shards: Whether each rank averages its shard; else messages are gathered.
        rounding: Rounding of the elements.
        row: Elements of a row at most.
    """

    numel: int
    ranks: int
    shards: bool
    rounding: Rounding
    row: int = ROW
    size: int = field(init=False)
    groups: int = field(init=False)
    scales: int = field(init=False)
    words: int = field(init=False)

    def __post_init__(self) -> None:
        if not 0 < self.numel <= MOST_ELEMENTS:
            raise ValueError(f"numel={self.numel} must be 1 to {MOST_ELEMENTS}")
        block, digits, scale = self.rounding.block, self.rounding.digits, self.rounding.scale
        blocks = -(-self.numel // (block * self.pieces))
        size, span = block * blocks, digits * self.row
        scales = size // span * self.row + block * -(-(size % span) // (digits * block))
        words = scales + (0 if scale is None else -(-scale.itemsize * blocks // 4))
        keep = object.__setattr__.__get__(self)
        keep("size", size)
        keep("groups", -(-size // span))
        keep("scales", scales)
        keep("words", words + -words % 4)  # so that every message begins at a multiple of 16 bytes

    def matches(self, numel: int, shards: bool, rounding: Rounding) -> bool:
        """Return whether it is that of such messages, of as many ranks."""
        return (self.numel, self.shards, self.rounding) == (numel, shards, rounding)

    @property
    def pieces(self) -> int:
        """Messages that a rank makes."""
        return self.ranks if self.shards else 1

    @property
    def nbytes(self) -> int:
        """Bytes of a message."""
        return 4 * self.words

    @property
    def payload_bytes(self) -> int:
        """Bytes that a rank hands to collectives."""
        return (self.ranks + 1) * self.nbytes if self.shards else self.nbytes

    @property
    def link_bytes(self) -> int:
        """Bytes that a rank puts on its link."""
        return (2 if self.shards else 1) * (self.ranks - 1) * self.nbytes


class RoundedBuffers:
    """What a bucket keeps on its device for such messages, allocated once. ``RoundedGroup`` has the messages.

    Args:
        layout: Layout of the messages.
        own: This rank.
        device: Device of the tensors.
    """

    message: Tensor
    """int32, a row for each piece. This and the next three are columns of its group's."""
    arrived: Tensor
    """What ``decode`` reads: a row from each rank."""
    parts: Tensor
    """What the ranks have for this one, a row each; without shards, nothing."""
    mean: Tensor
    """The mean of it, one row."""

    def __init__(self, layout: RoundedLayout, own: int, device: torch.device) -> None:
        self.layout, self.own, self.device = layout, own, device
        lost = layout.size if layout.shards else 0
        self.lost = torch.zeros(lost, dtype=torch.float32, device=device)
        """What rounding the mean has lost of this rank's shard, as many times as there are ranks."""
        self.in_flight: Any = None
        """The last collective of a message that is not decoded."""


class RoundedGroup:
    """Buckets whose messages are one, on their device.

    Args:
        members: What the buckets keep. Their layouts have one rounding, and all have shards or none.
    """

    def __init__(self, members: Sequence[RoundedBuffers]) -> None:
        self.members = tuple(members)
        layout, device = members[0].layout, members[0].device
        words = [one.layout.words for one in members]

        def rows(count: int) -> Tensor:
            return torch.zeros(count, sum(words), dtype=torch.int32, device=device)

        self.message, self.arrived = rows(layout.pieces), rows(layout.ranks)
        self.parts, self.mean = rows(layout.ranks if layout.shards else 0), rows(int(layout.shards))
        split = (one.split(words, 1) for one in (self.message, self.arrived, self.parts, self.mean))
        for one, message, arrived, parts, mean in zip(members, *split, strict=True):
            one.message, one.arrived, one.parts, one.mean = message, arrived, parts, mean
        self.again: dict[object, Any] = {}
        """Launches of a GPU that were made before."""

    def remember(self, key: object, launches: Any) -> None:
        """Keep launches. Those with a residual that was replaced would keep it, so all go when there are too many."""
        if len(self.again) >= _MOST_AGAIN:
            self.again.clear()
        self.again[key] = launches


class Member(NamedTuple):
    """A bucket of those whose work takes one launch. All have one kind of rounding and of gradients.

    Args:
        buffers: The bucket's.
        g: The gradient, float32 or bfloat16 of shape ``(n,)``.
        residual: float32, shape ``(n,)``; may be ``p`` itself; None if it is zero.
        p: float32, shape ``(n,)``.
        row: Its sums are added, float64; see ``step_sums``.
        out: Receives the mean, of the gradient's dtype; may be ``g`` itself.
        undone: Whether ``decode`` undoes in ``p`` a step that does not count.
    """

    buffers: RoundedBuffers
    g: Tensor
    residual: Tensor | None
    p: Tensor
    row: Tensor
    out: Tensor
    undone: bool


def encode(group: RoundedGroup, members: Sequence[Member], seeds: Sequence[int]) -> None:
    """Write the messages, leave in ``p`` what is not sent of gradient + residual, and measure. ``decode`` follows.

    Elements of the gradient that are not finite count as 0, except in its energy.

    Args:
        group: The buckets.
        members: All or some of them. The others' messages stay.
        seeds: Seeds of the random numbers of each.
    """
    if not members:
        return
    if backend.on_gpu(*(one.g for one in members)):
        from gravac.kernels.cuda import rounded as on_gpu

        on_gpu.encode(group, members, seeds)
        return
    for one, seed in zip(members, seeds, strict=True):
        layout, raw = one.buffers.layout, one.g.float()
        value = torch.where(raw.isfinite(), raw, 0.0)
        if one.residual is not None:
            value = value + one.residual
        codes, scales, sent = _rounded(layout.rounding, value, seed)
        _write(layout, one.buffers.message, codes, scales)
        one.p.copy_(value - sent)
        x, v, s = raw.double(), value.double(), sent.double()
        one.row.add_(torch.stack([x.dot(x), v.dot(v), s.dot(s), s.dot(v), v.dot(x), s.dot(x)]))


def average(group: RoundedGroup, members: Sequence[Member], seeds: Sequence[int]) -> None:
    """Average the shards that arrived, in rank order, and write the messages of the means.

    What rounding a mean loses was not sent, as many times as there are ranks, because what the residual sends later is
    divided by them. ``decode`` adds it; the sums count it now.

    Args:
        group: The buckets, of layouts with shards.
        members: All of them, after ``encode``.
        seeds: Seeds of the random numbers of each.
    """
    if backend.on_gpu(*(one.g for one in members)):
        from gravac.kernels.cuda import rounded as on_gpu

        on_gpu.average(group, members, seeds)
        return
    for one, seed in zip(members, seeds, strict=True):
        buffers, layout = one.buffers, one.buffers.layout
        here = _shard(buffers)
        share = 1.0 / layout.ranks
        total = torch.zeros(here.stop - here.start, dtype=torch.float32, device=one.g.device)
        for row in buffers.parts:
            total += _read(layout, row)[: total.numel()] * share
        codes, scales, sent = _rounded(layout.rounding, total, seed)
        _write(layout, buffers.mean, codes, scales)
        lost = (total - sent) * layout.ranks
        buffers.lost[: lost.numel()] = lost
        before = _read(layout, buffers.message[buffers.own])[: total.numel()]
        rest, less = one.p[here] + before, lost.double()
        zero = torch.zeros((), dtype=torch.float64, device=one.g.device)
        square = less.dot(less - 2.0 * before.double())
        dots = less.dot(rest.double()), less.dot(one.g[here].double())
        one.row.add_(torch.stack([zero, zero, square, -dots[0], zero, -dots[1]]))


def decode(group: RoundedGroup, members: Sequence[Member], counts: Tensor) -> None:
    """Write the means of what arrived, summed in rank order; NaN if the step does not count.

    Args:
        group: The buckets.
        members: All or some of them, as they were given to ``encode``.
        counts: Whether the step counts, bool of shape ``()``.
    """
    if backend.on_gpu(*(one.g for one in members)):
        from gravac.kernels.cuda import rounded as on_gpu

        on_gpu.decode(group, members, counts)
        return
    for one in members:
        buffers, layout = one.buffers, one.buffers.layout
        if not bool(counts):
            if one.undone:
                _undo(one)
            one.out.fill_(math.nan)
            continue
        if layout.shards:
            here = _shard(buffers)
            one.p[here] += buffers.lost[: here.stop - here.start]
            total = torch.cat([_read(layout, row) for row in buffers.arrived])[: layout.numel]
        else:
            total, share = torch.zeros_like(one.p), 1.0 / layout.ranks
            for row in buffers.arrived:
                total += _read(layout, row)[: layout.numel] * share
        one.out.copy_(total)


def undo(group: RoundedGroup, one: Member) -> None:
    """Undo a step whose message may not have arrived anywhere.

    Args:
        group: The bucket's.
        one: The bucket, as it was given to ``encode``.
    """
    never = torch.zeros((), dtype=torch.bool, device=one.g.device)
    decode(group, [one._replace(out=torch.empty_like(one.g))], never)


def _undo(one: Member) -> None:
    layout = one.buffers.layout
    sent = torch.cat([_read(layout, row) for row in one.buffers.message])[: layout.numel]
    raw = one.g.float()
    one.p.add_(sent).sub_(torch.where(raw.isfinite(), raw, 0.0))


def _shard(buffers: RoundedBuffers) -> slice:
    """Return which elements this rank averages."""
    numel, size = buffers.layout.numel, buffers.layout.size
    return slice(min(numel, buffers.own * size), min(numel, (buffers.own + 1) * size))


def _rounded(rounding: Rounding, x: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes (int64), scales as bits (int64), and the values as sent."""
    if rounding.kind == "bfloat16":
        top = torch.finfo(torch.bfloat16).max
        half = torch.where(x.isinf(), x, x.clamp(-top, top)).bfloat16()
        return half.view(torch.int16).long() & 0xFFFF, x.new_empty(0, dtype=torch.int64), half.float()
    if not x.numel():
        nothing = x.new_empty(0, dtype=torch.int64)
        return nothing, nothing, x
    if rounding.kind == "random":
        scales, packed = quantize(x, rounding.block, 8, seed)
        sent = dequantize(scales, packed, x.numel(), rounding.block, 8)
        return packed.long(), scales.view(torch.int32).long(), sent
    spacings, packed = quantize_nearest(x, rounding.block, rounding.levels)
    sent = dequantize_nearest(spacings, packed, rounding.block, rounding.levels)
    return packed.long(), spacings.view(torch.int16).long(), sent


def _write(layout: RoundedLayout, messages: Tensor, codes: Tensor, scales: Tensor) -> None:
    """Write codes and scales into messages of equally many elements, the last ones filled up with zeros."""
    rounding, pieces = layout.rounding, messages.shape[0]
    base, digits, row = rounding.base, rounding.digits, layout.row
    every = codes.new_full((pieces * layout.size,), rounding.zero)
    every[: codes.numel()] = codes
    every = every.view(pieces, layout.size)
    full = layout.size // (digits * row)
    edge = full * digits * row
    rest = torch.nn.functional.pad(
        every[:, edge:], (0, digits * (layout.scales - full * row) - layout.size + edge), value=rounding.zero
    )
    words = [_fractions(every[:, :edge].view(pieces, full, digits, row), base)]
    words.append(_fractions(rest.reshape(pieces, 1, digits, -1), base))
    messages[:, : layout.scales] = torch.cat([one.flatten(1) for one in words], 1).to(torch.int32)
    if rounding.scale is None:
        return
    form = torch.int32 if rounding.scale.itemsize == 4 else torch.int16
    blocks = layout.size // rounding.block
    known = torch.zeros(pieces * blocks, dtype=form, device=messages.device)
    known[: scales.numel()] = scales.to(form)
    for message, own in zip(messages, known.view(pieces, blocks), strict=True):
        message[layout.scales :].view(form)[:blocks] = own


def _fractions(codes: Tensor, base: int) -> Tensor:
    """Return a word for each column of codes, int64 of the 32 bits."""
    whole, word = base ** codes.shape[2], codes.new_zeros(codes.shape[0], codes.shape[1], codes.shape[3])
    for digit in range(codes.shape[2]):
        word = word * base + codes[:, :, digit]
    high = word << 30
    words: Tensor = high // whole * 4 + (high % whole * 4 + whole - 1) // whole
    return words


def _read(layout: RoundedLayout, message: Tensor) -> Tensor:
    """Return the values of a message, float32 of shape ``(size,)``."""
    rounding, row = layout.rounding, layout.row
    base, digits = rounding.base, rounding.digits
    words = message[: layout.scales].long() & _LOW
    edge = layout.size // (digits * row) * row
    found = [
        torch.stack([((part * (base**digit & _LOW)) & _LOW) * base >> 32 for digit in range(digits)], 1)
        for part in (words[:edge].view(-1, row), words[edge:].view(1, -1))
    ]
    codes = torch.cat([one.flatten() for one in found])[: layout.size]
    if rounding.kind == "bfloat16":
        return (codes << 16).to(torch.int32).view(torch.float32)
    assert rounding.scale is not None
    codes, blocks = codes.to(torch.uint8), layout.size // rounding.block
    scales = message[layout.scales :].view(rounding.scale)[:blocks]
    if rounding.kind == "random":
        return dequantize(scales, codes, layout.size, rounding.block, 8)
    return dequantize_nearest(scales, codes, rounding.block, rounding.levels)
