"""The text of Python's own standard library as bytes: a real corpus that every machine with Python has."""

import os
from pathlib import Path

import torch
from torch import Tensor

from gravac_agent.demo.task import TaskError

MAX_BYTES = 6_000_000
"""Most bytes read. Python 3.11 has about 4.7 million in its top folder."""
HELDOUT_EVERY = 10
"""Every tenth file is held out, whole, so that no held-out line has a neighbour in the training text."""


def folder() -> Path:
    """Where the standard library's source text is."""
    return Path(os.__file__).parent


def split(source: Path | None = None, max_bytes: int = MAX_BYTES) -> tuple[Tensor, Tensor]:
    """Training and held-out bytes (uint8, one dimension): the ``*.py`` of a folder, by name, up to ``max_bytes``.

    The same Python gives the same bytes. Raises TaskError when there is too little text to learn from.
    """
    source = folder() if source is None else source
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    left = max_bytes
    for number, path in enumerate(sorted(source.glob("*.py"))):
        text = path.read_bytes()[:left]
        left -= len(text)
        parts[number % HELDOUT_EVERY == HELDOUT_EVERY - 1].append(text)
    train, heldout = (b"".join(part) for part in parts)
    if len(train) < 100_000 or len(heldout) < 10_000:
        raise TaskError(
            f"{source} holds only {len(train) + len(heldout)} bytes of Python source: this Python comes without "
            "the text of its standard library; use another Python, or the digits task"
        )
    return torch.frombuffer(bytearray(train), dtype=torch.uint8), torch.frombuffer(
        bytearray(heldout), dtype=torch.uint8
    )
