"""Error memories, one per file. To add one, write its file and name its class in ``MEMORIES`` (see CONTRIBUTING.md)."""

from gravac.memories.base import LARGEST, BucketMemory, Memory, convert
from gravac.memories.bucket import Bucket
from gravac.memories.bucketed import FlatMemory
from gravac.memories.conef import ConEFMemory, IConEF1Memory, IConEF2Memory
from gravac.memories.induced import Induced
from gravac.memories.momentum import MomentumMemory
from gravac.memories.narrow import NarrowMemory
from gravac.memories.none import NoMemory
from gravac.memories.partial import PartialMemory
from gravac.memories.residual import ResidualMemory
from gravac.memories.sketch import SketchMemory
from gravac.memories.stability import stability
from gravac.memories.states import reshard
from gravac.registry import Registry

MEMORIES: Registry[Memory] = Registry(
    "memory",
    (
        NoMemory,
        ResidualMemory,
        PartialMemory,
        NarrowMemory,
        MomentumMemory,
        ConEFMemory,
        SketchMemory,
        IConEF1Memory,
        IConEF2Memory,
    ),
    base=Memory,
    group="gravac.memories",
)


def build(text: str) -> Memory:
    """Build a memory from ``name`` or ``name:setting=value,setting=value``.

    Args:
        text: For example ``residual``, ``conef:bits=4``, ``conef-sketch:size=0.1,beta=0.9``.

    Raises:
        ValueError: There is no such memory, setting or value. The message names what is allowed.
    """
    return MEMORIES.build(text)


__all__ = [
    "LARGEST",
    "MEMORIES",
    "Bucket",
    "BucketMemory",
    "ConEFMemory",
    "FlatMemory",
    "IConEF1Memory",
    "IConEF2Memory",
    "Induced",
    "Memory",
    "MomentumMemory",
    "NarrowMemory",
    "NoMemory",
    "PartialMemory",
    "ResidualMemory",
    "SketchMemory",
    "build",
    "convert",
    "reshard",
    "stability",
]
