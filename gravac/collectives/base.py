"""The base class of collectives: they exchange payloads and turn them into their mean."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives.communicator import Communicator, Work, communicator
from gravac.collectives.cost import Network
from gravac.compressors.base import Compressor, Key, Layout, Payload
from gravac.compressors.stack import Stack


class Workload(NamedTuple):
    """The payloads of a bucket, one per rank, that are exchanged. All sizes follow from it.

    Args:
        codec: The codec that made the payloads.
        numel: Elements of the bucket.
        cf: The CF they were compressed with.
        dtype: The dtype that values have on the wire.
        ranks: How many ranks exchange.
    """

    codec: Compressor
    numel: int
    cf: float
    dtype: torch.dtype
    ranks: int

    @classmethod
    def of(cls, layout: Layout, ranks: int) -> "Workload":
        """Return the workload of payloads of a layout."""
        return cls(layout.codec, layout.numel, layout.cf, layout.dtype, ranks)

    @property
    def wire_bytes(self) -> int:
        """Bytes of one payload; the expected ones if sizes vary."""
        return self.codec.wire_bytes(self.numel, self.cf, self.dtype)

    @property
    def plain_bytes(self) -> int:
        """Bytes of one payload without entropy coding."""
        return self.codec.plain_bytes(self.numel, self.cf, self.dtype)

    @property
    def decoding(self) -> float:
        """Work of decoding one payload into a tensor, in elements as the cost model counts them."""
        sparse = self.codec.traits.selector or isinstance(self.codec, Stack)
        return 3 * self.numel / self.codec.reached(self.numel, self.cf) if sparse else 0.7 * self.numel


@dataclass(slots=True)
class Transfer(ABC):
    """A collective operation in flight whose result is a mean. It keeps the tensors that the operation still uses."""

    work: Work
    """Done when the result has arrived."""
    sent_bytes: int
    """Bytes that this rank puts on its network link, all rounds (what an emulated link charges)."""
    payload_bytes: int
    """Bytes that this rank hands to collectives, all rounds, with padding and sizes; equal on all ranks."""

    @abstractmethod
    def mean_into(self, out: Tensor) -> None:
        """Write the mean over ranks to ``out``, shape ``(n,)``. Call it when ``work`` is done.

        The mean has the same bits on all ranks: parameters would drift apart otherwise.
        """

    @abstractmethod
    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors that it refers to, without those of codecs."""

    @property
    def held_bytes(self) -> int:
        """Bytes that stay in memory as long as the transfer does."""
        # By storage: views of one message would count it several times.
        storages = {
            storage.data_ptr(): storage.nbytes()
            for one in self.tensors()
            for storage in (one.untyped_storage(),)
        }
        return sum(storages.values())


@dataclass(slots=True)
class Exchange(Transfer):
    """Payloads in flight. ``codec.remove(payload, x)`` subtracts from ``x`` what this rank counts as sent."""

    codec: Compressor
    """Decodes ``payload``."""
    payload: Payload
    """The part of its tensor that this rank counts as sent."""
    of: int = field(default=0, init=False)
    """How many ``senders`` stand for all that waits of an element; 0: they are not counted."""
    senders: Tensor | None = field(default=None, init=False)
    """Receives how many of ``of`` senders each element of the mean comes from, if it is set: uint8, shape ``(n,)``."""

    def tensors(self) -> Iterator[Tensor]:
        yield from self.payload.tensors()
        if self.senders is not None:
            yield self.senders


@dataclass(slots=True)
class SummedValues(Exchange):
    """A sum of values whose positions are the same on all ranks."""

    mean: Payload
    decoder: Compressor
    """Decodes ``mean``."""
    sent: Tensor  # kept alive until the collective is done

    def mean_into(self, out: Tensor) -> None:
        out.zero_()
        self.decoder.decompress(self.mean, out)

    def tensors(self) -> Iterator[Tensor]:
        yield from (*Exchange.tensors(self), *self.mean.tensors(), self.sent)


class Collective(ABC):
    """A way to exchange payloads. All ranks must call ``exchange`` for the same tensors in the same order.

    Sizes must follow from a ``Workload`` alone, so that all ranks agree on them.

    Args:
        group: The ranks, as a process group or a communicator.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    examples: ClassVar[tuple[str, ...]] = ()
    """Settings, as ``collective`` takes them, that the suites run besides the defaults."""
    needs: ClassVar[str] = "a codec"
    """The codec that it needs, as the end of "collective=… needs …"; see ``fits``."""
    sends_all: ClassVar[bool] = True
    """Whether all that a rank's codec chose is sent. If not, the rest stays in the rank's error memory."""
    sync_free: bool = True
    """Whether exchanging payloads of known size reads nothing from a device, so that the host never waits."""

    def __init__(self, group: dist.ProcessGroup | Communicator) -> None:
        self.communicator = communicator(group)
        self.world_size = self.communicator.size
        # DDP itself multiplies by this constant; dividing would differ in the last bit for some world sizes.
        self.share = 1.0 / self.world_size

    @abstractmethod
    def exchange(self, layout: Layout, payload: Payload, x: Tensor | None, key: Key) -> Exchange:
        """Send a payload. Call it on a thread that may wait for other ranks: there may be several rounds.

        Args:
            layout: The codec that made the payload, and what is known of it on all ranks.
            payload: This rank's payload. It is not changed, and must not change until the mean was written.
            x: The tensor that was compressed, shape ``(n,)``; None for a blank payload. It is not changed, and may
                change when this returns.
            key: The key it was compressed with.

        Returns:
            The exchange in flight.
        """

    @staticmethod
    def fits(compressor: Compressor) -> bool:
        """Return whether a codec's payloads can be exchanged this way; by default those of all codecs can."""
        return True

    @abstractmethod
    def payload_bytes(self, workload: Workload) -> int:
        """Return the bytes that each rank hands to collectives; the expected ones if sizes vary."""

    @abstractmethod
    def link_bytes(self, workload: Workload) -> int:
        """Return the bytes that a rank puts on its network link: the mean over ranks, expected if sizes vary."""

    @staticmethod
    def payloads_decoded(ranks: int) -> int:
        """Return the number of whole payloads that a rank decodes, its own included."""
        return 1

    @abstractmethod
    def seconds(self, network: Network, workload: Workload) -> float:
        """Return the predicted seconds on a network (``gravac.collectives.cost``)."""
