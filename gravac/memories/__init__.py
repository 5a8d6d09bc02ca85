"""Error memories. To add one, write its file and name it in ``_MEMBERS``; the property suite finds it."""

from gravac.memories.base import LARGEST, Bucket, Memory
from gravac.memories.conef import ConEFMemory, IConEF1Memory, IConEF2Memory
from gravac.memories.induced import Induced
from gravac.memories.momentum import MomentumMemory
from gravac.memories.none import NoMemory
from gravac.memories.residual import PartialMemory, ResidualMemory
from gravac.memories.settings import read
from gravac.memories.sketch import SketchMemory
from gravac.memories.stability import stability
from gravac.memories.states import convert, reshard
from gravac.wording import meant

_MEMBERS: tuple[type[Memory], ...] = (
    NoMemory,
    ResidualMemory,
    PartialMemory,
    MomentumMemory,
    ConEFMemory,
    SketchMemory,
    IConEF1Memory,
    IConEF2Memory,
)

MEMORIES: dict[str, type[Memory]] = {memory.name: memory for memory in _MEMBERS}


def build(text: str) -> Memory:
    """A new memory from ``name`` or ``name:setting=value,setting=value``.

    Examples: ``residual``, ``conef:bits=4``, ``conef-sketch:size=0.1,beta=0.9``. Raises ValueError naming the known
    ones, or the setting, the value and what is allowed.
    """
    name, given = read(text)
    if name not in MEMORIES:
        raise ValueError(
            f"memory={name!r} is unknown{meant(name, MEMORIES)}; choose one of {', '.join(sorted(MEMORIES))}"
        )
    return MEMORIES[name](**given)


parse = build

__all__ = [
    "LARGEST",
    "MEMORIES",
    "Bucket",
    "ConEFMemory",
    "IConEF1Memory",
    "IConEF2Memory",
    "Induced",
    "Memory",
    "MomentumMemory",
    "NoMemory",
    "PartialMemory",
    "ResidualMemory",
    "SketchMemory",
    "build",
    "convert",
    "parse",
    "reshard",
    "stability",
]
