"""The inner of two levels of links: the ranks of a host divide each bucket, and each exchanges its piece with others.

It is what HSDP does, for gradients that DDP has made: the mean over a host of this rank's piece goes to the ranks that
have the same piece on other hosts, and what comes back goes to the other ranks of the host. A piece consists of a part
of each parameter, some of its rows and padding, as FSDP2 shards it. So it depends on no bucket, and DDP may regroup.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from gravac.collectives import AllReduce, Communicator, Work
from gravac.memories import Bucket
from gravac_agent.devices import Device
from gravac_agent.exchange.step import SubmittedBucket
from gravac_agent.network.metered import Metered


def piece_shape(shape: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Return the shape of each rank's piece of a parameter, padding included."""
    rows, *rest = shape or (1,)
    return (-(-rows // ranks), *rest)


@dataclass(slots=True)
class _Room:
    """The tensors in which a bucket is divided, and put together again."""

    whole: Bucket
    piece: Bucket
    mine: Tensor
    """This rank's piece of the gradient, then of the mean."""
    rows: Tensor
    """A piece for each rank, one after the other."""
    senders: tuple[Tensor, list[Tensor], Tensor] | None = None
    """How many ranks sent each element: of each rank's piece, of all parts, and of the whole bucket."""
    sizes: list[int] = field(default_factory=list)
    """Elements of each parameter's part in each piece, without padding: by parameter, then by piece."""
    targets: list[Tensor] = field(default_factory=list)
    """Where these are in ``rows``."""
    padding: list[Tensor] = field(default_factory=list)
    in_flight: Work | None = None
    """All-reduce of ``mine`` in its own memory."""

    @classmethod
    def of(cls, whole: Bucket, buffer: Tensor, ranks: int) -> "_Room":
        """Make the room for a bucket."""
        shapes = tuple(piece_shape(shape, ranks) for shape in whole.shapes)
        numels = tuple(map(math.prod, shapes))
        piece = Bucket(whole.number, whole.names, numels, shapes)
        length = sum(numels)
        room = cls(whole, piece, buffer.new_empty(length), buffer.new_empty(ranks * length))
        room.sizes, room.targets, room.padding = _parts(room.rows, whole.numels, numels)
        return room


def _parts(
    rows: Tensor, numels: Sequence[int], lengths: Sequence[int]
) -> tuple[list[int], list[Tensor], list[Tensor]]:
    """Return the sizes and the places of all parts of parameters in the pieces, and the places of the padding."""
    sizes, targets, padding, at = list[int](), list[Tensor](), list[Tensor](), 0
    for numel, length in zip(numels, lengths, strict=True):
        for number, piece in enumerate(rows.split(sum(lengths))):
            size = min(length, max(0, numel - number * length))
            sizes.append(size)
            targets.append(piece[at : at + size])
            if size < length:
                padding.append(piece[at + size : at + length])
        at += length
    return sizes, targets, padding


class HostLevel:
    """Divides buckets among the ranks of this host.

    Both gradients and means are issued in the order of buckets, as all ranks must. What mean is there first depends on
    the network, so threads need a group for each. On a device one thread issues all, in an order that never changes.

    Args:
        gradients: The ranks of this host, for gradients.
        means: The same ranks, for means.
        device: Device of the gradients, whose current stream waits for the other ranks; None: the host waits.

    Attributes:
        number: Number of this rank's pieces.
        ranks: Pieces of a bucket.
        device: Where the gradients are.
        pop_waits: Waits for gradients, as ``Metered.pop_waits``; on a device there are none.
    """

    def __init__(self, gradients: Communicator, means: Communicator, device: Device | None = None) -> None:
        self.number, self.ranks = gradients.rank, gradients.size
        self._gradients, self._means = gradients, means
        self.pop_waits: Callable[[], list[tuple[float, float]]] = list
        if isinstance(gradients, Metered):
            self.pop_waits = gradients.pop_waits
        self.device = torch.device("cpu") if device is None else device.device
        self._wait: Callable[[Work], Any] = methodcaller("wait") if device is None else device.wait_work
        self._dense = AllReduce(gradients)
        self._rooms: dict[int, _Room] = {}  # by the bucket's number
        self._came: Tensor | None = None  # the room for what comes of the bucket that is being divided

    def divide(self, whole: SubmittedBucket) -> SubmittedBucket:
        """Return this rank's piece of a bucket, with the mean over the host, for which it waits.

        A sparse or an empty gradient is not divided: it becomes its mean, and is returned as it is.
        """
        buffer = whole.buffer
        if buffer.is_sparse or not buffer.numel():
            self._wait(self._dense.reduce_in_place(buffer).work)
            return whole
        room = self._room(whole.bucket, buffer)
        if (
            room.in_flight is not None
        ):  # a backward did not end, and other hosts may still read and write the piece
            self._wait(room.in_flight)
            room.in_flight = None
        torch._foreach_copy_(room.targets, list(buffer.split(room.sizes)))
        if room.padding:  # which has come back with the last mean
            torch._foreach_zero_(room.padding)
        came = self._space(room.rows)
        # Sent as it is and added up here: half the bytes of gloo's reduce-scatter, and 16 bits lose nothing.
        self._wait(self._gradients.exchange(came, room.rows))
        torch.sum(came.view(self.ranks, -1), 0, out=room.mine)
        room.mine.mul_(1.0 / self.ranks)
        return SubmittedBucket(room.piece, room.mine, whole.last, whole.future, room.mine, whole=whole)

    def note(self, piece: SubmittedBucket, work: Work | None) -> None:
        """Take note of an all-reduce of a piece in its own memory, and of its end (None)."""
        self._rooms[piece.bucket.number].in_flight = work

    def gather(self, piece: SubmittedBucket, senders: Tensor | None) -> list[Work]:
        """Send the mean of a piece to the other ranks of the host.

        Args:
            piece: What ``divide`` returned, with the mean in its buffer.
            senders: How many ranks sent each of its elements, if that is known, which is equal on all ranks.
        """
        assert piece.whole is not None
        room, buffer = self._rooms[piece.bucket.number], piece.whole.buffer
        works = [self._means.gather(room.rows, room.mine)]
        if senders is not None:
            if room.senders is None:
                rows, whole = (torch.empty_like(one, dtype=torch.uint8) for one in (room.rows, buffer))
                _, parts, _ = _parts(rows, room.whole.numels, room.piece.numels)
                room.senders = rows, parts, whole
            works.append(self._means.gather(room.senders[0], senders))
        return works

    def join(self, piece: SubmittedBucket, senders: Tensor | None) -> Tensor | None:
        """Put the pieces that ``gather`` has sent together in the trainer's buffer, and return the whole senders."""
        room, whole = self._rooms[piece.bucket.number], piece.whole
        assert whole is not None
        torch._foreach_copy_(list(whole.buffer.split(room.sizes)), room.targets)
        if senders is None or room.senders is None:
            return None
        _, parts, all_senders = room.senders
        return torch.cat(parts, out=all_senders)

    def nbytes(self, piece: SubmittedBucket, senders: Tensor | None) -> int:
        """Return the bytes that this rank sends to the others of its host for a bucket, both ways; see ``gather``."""
        return (self.ranks - 1) * (2 * piece.buffer.nbytes + (0 if senders is None else senders.nbytes))

    def average(self, whole: Tensor, bucket: Bucket) -> Tensor:
        """Return the mean over the host of this rank's piece of a tensor, between steps."""
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        whole = whole.to(self.device)
        piece = self.divide(SubmittedBucket(bucket, whole, False, future, whole))
        self._rooms.pop(bucket.number, None)
        self._came = (
            None  # buckets may be divided on another stream, and memory belongs to the one that made it
        )
        return piece.buffer

    def any_of(self, mine: Sequence[bool]) -> list[bool]:
        """Return which are true on any rank of the host, between steps."""
        flags = torch.tensor(mine, dtype=torch.uint8, device=self.device)
        self._wait(self._gradients.maximum(flags))
        return [bool(one) for one in flags.tolist()]

    def _room(self, whole: Bucket, buffer: Tensor) -> _Room:
        room = self._rooms.get(whole.number)
        if room is None or room.whole.names != whole.names or room.mine.dtype != buffer.dtype:
            if whole.number == 0:  # DDP has regrouped its buckets, and there may be fewer now
                self._rooms.clear()
            room = self._rooms[whole.number] = _Room.of(whole, buffer, self.ranks)
        return room

    def _space(self, like: Tensor) -> Tensor:
        if self._came is None or self._came.numel() < like.nbytes:
            self._came = torch.empty(like.nbytes, dtype=torch.uint8, device=like.device)
        return self._came[: like.nbytes].view(like.dtype)
