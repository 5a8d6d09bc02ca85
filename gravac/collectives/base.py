"""How payloads meet: issue one asynchronous collective, later turn what arrived into the mean."""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives.communicator import Communicator, Work, communicator
from gravac.compressors.base import Compressor, Key, Payload


class Exchange(Protocol):
    """A collective in flight."""

    work: Work
    sent_bytes: int
    """Bytes this rank puts on its network link for it (what an emulated link charges)."""
    payload_bytes: int
    """Bytes this rank hands to the collective, padding and sizes included; equal on all ranks."""

    def mean_into(self, out: Tensor) -> None:
        """After ``work`` is done: write the mean over ranks of the decoded payloads to ``out``, shape ``(n,)``.
        Bit-equal on all ranks."""
        ...


class Collective(ABC):
    """One way to exchange payloads. All ranks must call ``exchange`` for the same tensor, in the same order."""

    name: ClassVar[str]
    source: ClassVar[str]

    def __init__(self, group: dist.ProcessGroup | Communicator) -> None:
        self.communicator = communicator(group)
        self.world_size = self.communicator.size
        # DDP itself multiplies by this constant; dividing would differ in the last bit for some world sizes.
        self.share = 1.0 / self.world_size

    @abstractmethod
    def exchange(
        self, compressor: Compressor, payload: Payload, cf: float, key: Key, dtype: torch.dtype
    ) -> Exchange:
        """Issue the collective for ``payload``. ``cf``, ``key`` and ``dtype`` as compressed with. The payload is not
        changed. May wait for other ranks where sizes must be told first, so call it on a thread that may."""

    @staticmethod
    @abstractmethod
    def link_bytes(payload_bytes: int, world_size: int) -> int:
        """Bytes a rank puts on its network link when each hands over ``payload_bytes``."""


def ring_bytes(nbytes: int, world_size: int) -> int:
    """Bytes each rank sends in a ring all-reduce of ``nbytes``: 2 (N-1)/N S."""
    return 2 * (world_size - 1) * nbytes // world_size
