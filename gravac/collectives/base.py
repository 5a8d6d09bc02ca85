"""The base class of collectives: they exchange payloads and turn them into their mean."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives.communicator import Communicator, Work, communicator
from gravac.collectives.cost import Network
from gravac.compressors.base import Compressor, Key, Payload
from gravac.compressors.stack import Stack


class Workload(NamedTuple):
    """What is exchanged: one payload per rank of a bucket. All sizes follow from it.

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

    @property
    def wire_bytes(self) -> int:
        """Bytes of one payload; expected, where sizes vary."""
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


class Transfer(Protocol):
    """A collective operation in flight whose result is a mean."""

    @property
    def work(self) -> Work:
        """Done when the result has arrived."""

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank puts on its network link, all rounds (what an emulated link charges)."""

    @property
    def payload_bytes(self) -> int:
        """Bytes that this rank hands to collectives, all rounds, with padding and sizes; equal on all ranks."""

    def mean_into(self, out: Tensor) -> None:
        """Writes the mean over ranks to ``out``, shape ``(n,)``, once ``work`` is done. Bit-equal on all ranks."""


class Exchange(Transfer, Protocol):
    """Payloads in flight. ``codec.remove(payload, x)`` subtracts from ``x`` what this rank counts as having sent."""

    @property
    def codec(self) -> Compressor:
        """Decodes ``payload``."""

    @property
    def payload(self) -> Payload:
        """What this rank counts as having sent."""


class Collective(ABC):
    """A way to exchange payloads. All ranks must call ``exchange`` for the same tensors in the same order.

    Sizes must follow from a ``Workload`` alone, so that all ranks agree on them.

    Args:
        group: The ranks, as a process group or a communicator.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    needs: ClassVar[str] = "a codec"
    """What it needs, completing "collective=… needs …"; see ``fits``."""
    whole: ClassVar[bool] = True
    """Whether a rank counts as having sent all that its codec chose."""
    sync_free: bool = True
    """Whether exchanging payloads of known size reads nothing from a device, so that the host never waits."""

    def __init__(self, group: dist.ProcessGroup | Communicator) -> None:
        self.communicator = communicator(group)
        self.world_size = self.communicator.size
        # DDP itself multiplies by this constant; dividing would differ in the last bit for some world sizes.
        self.share = 1.0 / self.world_size

    @abstractmethod
    def exchange(
        self,
        compressor: Compressor,
        payload: Payload,
        x: Tensor | None,
        cf: float,
        key: Key,
        dtype: torch.dtype,
    ) -> Exchange:
        """Sends a payload. It may wait for other ranks (several rounds, sizes first), so call it on a thread that may
        wait.

        Args:
            compressor: The codec that made the payload.
            payload: This rank's payload. Not changed; may change once this returns.
            x: The tensor that was compressed, shape ``(n,)``; None for a blank payload. Not changed; may change once
                this returns.
            cf: The CF it was compressed with.
            key: The key it was compressed with.
            dtype: The dtype that values have on the wire.

        Returns:
            The exchange in flight.
        """

    @staticmethod
    @abstractmethod
    def fits(compressor: Compressor) -> bool:
        """Returns whether that codec's payloads can be exchanged this way."""

    @abstractmethod
    def payload_bytes(self, workload: Workload) -> int:
        """Returns the bytes that each rank hands to collectives; expected, where sizes vary."""

    @abstractmethod
    def link_bytes(self, workload: Workload) -> int:
        """Returns the bytes that a rank puts on its network link, as the mean over ranks; expected, where sizes
        vary.
        """

    @staticmethod
    def payloads_decoded(ranks: int) -> int:
        """Returns how many whole payloads a rank decodes, its own included."""
        return 1

    @abstractmethod
    def seconds(self, network: Network, workload: Workload) -> float:
        """Returns the predicted seconds on a network (``gravac.collectives.cost``)."""
