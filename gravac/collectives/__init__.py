"""Collectives: one a file. ``choose`` picks by what the codec is."""

import torch.distributed as dist

from gravac.collectives.all_reduce import AllReduce
from gravac.collectives.base import Collective, Exchange, ring_bytes
from gravac.collectives.communicator import (
    ALONE,
    Communicator,
    Done,
    ProcessGroupCommunicator,
    Work,
    communicator,
)
from gravac.collectives.gather import Gather
from gravac.compressors.base import Compressor

COLLECTIVES: dict[str, type[Collective]] = {collective.name: collective for collective in (AllReduce, Gather)}


def choose(compressor: Compressor, group: dist.ProcessGroup | Communicator) -> Collective:
    """Linear codecs are all-reduced, the others gathered."""
    return AllReduce(group) if compressor.traits.linear else Gather(group)


__all__ = [
    "ALONE",
    "COLLECTIVES",
    "AllReduce",
    "Collective",
    "Communicator",
    "Done",
    "Exchange",
    "Gather",
    "ProcessGroupCommunicator",
    "Work",
    "choose",
    "communicator",
    "ring_bytes",
]
