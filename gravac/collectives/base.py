"""How payloads meet: issue collectives, later turn what arrived into the mean."""

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
    """What is to meet: a bucket's payloads, one of each rank. Sizes follow from it alone."""

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
    def decoding(self) -> float:
        """Work of decoding one payload into a tensor, in elements as the cost model counts them."""
        sparse = self.codec.traits.selector or isinstance(self.codec, Stack)
        return 3 * self.numel / self.codec.reached(self.numel, self.cf) if sparse else 0.7 * self.numel


class Transfer(Protocol):
    """Something in flight."""

    @property
    def work(self) -> Work: ...
    @property
    def sent_bytes(self) -> int:
        """Bytes this rank puts on its network link for it, all rounds (what an emulated link charges)."""

    @property
    def payload_bytes(self) -> int:
        """Bytes this rank hands to collectives, all rounds, padding and sizes included; equal on all ranks."""

    def mean_into(self, out: Tensor) -> None:
        """After ``work`` is done: write the mean over ranks to ``out``, shape ``(n,)``. Bit-equal on all ranks."""


class Exchange(Transfer, Protocol):
    """Payloads in flight. ``codec.remove(payload, x)`` takes off ``x`` what this rank is deemed to have sent."""

    @property
    def codec(self) -> Compressor: ...
    @property
    def payload(self) -> Payload: ...


class Collective(ABC):
    """One way to exchange payloads. All ranks must call ``exchange`` for the same tensor, in the same order."""

    name: ClassVar[str]
    source: ClassVar[str]
    whole: ClassVar[bool] = True
    """What a rank's codec chose is what it is deemed to have sent."""

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
        """Send ``payload``, which ``compressor`` made of ``x`` at ``cf`` with ``key`` for values that travel as
        ``dtype``. ``x`` None: a blank one. Neither is changed, and both may change once this returns.

        May wait for other ranks (several rounds, sizes that must be told first): call it on a thread that may.
        """

    @staticmethod
    @abstractmethod
    def fits(compressor: Compressor) -> bool:
        """Whether that codec's payloads can meet this way."""

    @abstractmethod
    def payload_bytes(self, workload: Workload) -> int:
        """Bytes each rank hands to collectives; expected, where sizes vary."""

    @abstractmethod
    def link_bytes(self, workload: Workload) -> int:
        """Bytes a rank puts on its network link, the mean over ranks; expected, where sizes vary."""

    @abstractmethod
    def seconds(self, network: Network, workload: Workload) -> float:
        """What it takes on that network, predicted (``gravac.collectives.cost``)."""
