"""Collectives, one per file: how the payloads of all ranks become their mean.

To add one, write its file and name its class in ``COLLECTIVES`` of ``choice.py``.
"""

from gravac.collectives.all_reduce import AllReduce, InPlace
from gravac.collectives.base import Collective, Exchange, Transfer, Workload
from gravac.collectives.choice import (
    AUTO,
    COLLECTIVES,
    CollectiveChooser,
    check,
    choose,
    keeps_up,
    parse_collective,
)
from gravac.collectives.communicator import (
    ALONE,
    Communicator,
    Done,
    ProcessGroupCommunicator,
    Work,
    backend_of,
    communicator,
)
from gravac.collectives.compressed_all_reduce import CompressedAllReduce
from gravac.collectives.cost import Network, crossing, ring_bytes, scatter_bytes, small_sum_messages
from gravac.collectives.gather import Gather
from gravac.collectives.owners import Owners
from gravac.collectives.shared import SharedSupport

__all__ = [
    "ALONE",
    "AUTO",
    "COLLECTIVES",
    "AllReduce",
    "Collective",
    "CollectiveChooser",
    "Communicator",
    "CompressedAllReduce",
    "Done",
    "Exchange",
    "Gather",
    "InPlace",
    "Network",
    "Owners",
    "ProcessGroupCommunicator",
    "SharedSupport",
    "Transfer",
    "Work",
    "Workload",
    "backend_of",
    "check",
    "choose",
    "communicator",
    "crossing",
    "keeps_up",
    "parse_collective",
    "ring_bytes",
    "scatter_bytes",
    "small_sum_messages",
]
