"""Text as training data: source code or a folder of text files, cut into sequences of bytes."""

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from gravac_lab.tasks.data import linux
from gravac_lab.tasks.recipe import Batch, TaskError, choose

MAX_BYTES = 6_000_000
"""Most bytes read of the standard library. Python 3.11 has about 4.7 million in its top folder."""
HELDOUT_EVERY = 10
"""Every tenth file is held out, whole, so that no held-out line has a neighbor in the training text."""
HELDOUT_BATCH = 16
TEXTS = dict.fromkeys(("auto", "linux", "python"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Training and held-out bytes.

    Attributes:
        source: Where the text comes from, in words.
        train: Training bytes, uint8 of one dimension. Each rank has a stretch of it.
        heldout_text: Held-out bytes.
        length: Bytes in a training sequence.
        heldout_length: Bytes in a held-out sequence.
        heldout_sequences: Most held-out sequences that are used, spread evenly over the held-out text.
    """

    source: str
    train: Tensor
    heldout_text: Tensor
    length: int
    heldout_length: int
    heldout_sequences: int

    def batches(self, rank: int, world_size: int, seed: int, batch_size: int) -> Iterator[Batch]:
        """Yield sequences from random places of this rank's stretch, without end; the targets are the next bytes."""
        text = self.train.tensor_split(world_size)[rank]
        generator = torch.Generator().manual_seed(seed * 1000 + rank)
        within = torch.arange(self.length + 1, dtype=torch.int64)
        while True:
            starts = torch.randint(len(text) - self.length, (batch_size, 1), generator=generator)
            sequences = text[starts + within].long()
            yield sequences[:, :-1], sequences[:, 1:]

    def heldout(self, rank: int = 0, world_size: int = 1) -> list[Batch]:
        """Return every ``world_size``-th held-out batch, from the ``rank``-th on."""
        text, length = self.heldout_text, self.heldout_length
        count = min(self.heldout_sequences, len(text) // (length + 1))
        stride = (len(text) - length - 1) // count
        rows = text.unfold(0, length + 1, stride)[:count].long()
        return [(part[:, :-1], part[:, 1:]) for part in rows.split(HELDOUT_BATCH)][rank::world_size]


def load(data: Path | None, text: str, *, length: int, heldout_length: int, heldout_sequences: int) -> Text:
    """Load text.

    Args:
        data: A folder of text files, see ``folder_text``; None: source code, see ``text``.
        text: ``python`` is Python's standard library, ``linux`` is the kernel's source, ``auto`` is the kernel's where
            it is installed and the standard library elsewhere.
        length: Bytes in a training sequence.
        heldout_length: Bytes in a held-out sequence.
        heldout_sequences: Most held-out sequences.

    Raises:
        TaskError: The text is unknown, not installed or too short.
    """
    choose("text", text, TEXTS)
    if data is not None and text != "auto":
        raise TaskError(f"text={text!r} and the folder {data} are two sources; give one of them")
    if data is not None:
        source, (train, heldout) = str(data), _folder(data.resolve())
    elif text == "python" or (text == "auto" and not linux.ARCHIVE.exists()):
        source, (train, heldout) = f"standard library of Python {platform.python_version()}", _python()
    else:
        source, (train, heldout) = f"{linux.ARCHIVE.name.split('.tar')[0]}, by directory", _linux()
    return Text(
        source=source,
        train=train,
        heldout_text=heldout,
        length=length,
        heldout_length=heldout_length,
        heldout_sequences=heldout_sequences,
    )


def python_text(source: Path | None = None, max_bytes: int = MAX_BYTES) -> tuple[Tensor, Tensor]:
    """Read Python source.

    Args:
        source: Folder whose ``*.py`` are read, in order of their names; None: the standard library's. The same Python
            gives the same bytes.
        max_bytes: Most bytes read.

    Returns:
        Training and held-out bytes, uint8 of one dimension.

    Raises:
        TaskError: When there is too little text to learn from.
    """
    source = Path(os.__file__).parent if source is None else source
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    left = max_bytes
    for number, path in enumerate(sorted(source.glob("*.py"))):
        text = path.read_bytes()[:left]
        left -= len(text)
        parts[number % HELDOUT_EVERY == HELDOUT_EVERY - 1].append(text)
    train, heldout = (b"".join(part) for part in parts)
    if len(train) < 100_000 or len(heldout) < 10_000:
        raise TaskError(
            f"{source} holds only {len(train) + len(heldout)} bytes of Python source: this Python comes without the "
            "source of its standard library; use another Python, or the digits task"
        )
    return as_bytes(train), as_bytes(heldout)


def folder_text(folder: Path) -> tuple[Tensor, Tensor]:
    """Read a folder as Penn Treebank and WikiText have it.

    The training text is in ``*train*``, the held-out text in ``*valid*``; files that end in ``.txt``, ``.raw`` or
    ``.tokens`` count. Without a file ``*valid*``, ``*test*`` is held out; with one, it is left unread.

    Returns:
        Training and held-out bytes, uint8 of one dimension.

    Raises:
        TaskError: The folder or its files are missing, or have too little text.
    """
    if not folder.is_dir():
        raise TaskError(f"data={folder} is not a folder; give one that holds text files")
    files = sorted(path for path in folder.iterdir() if path.suffix in (".txt", ".raw", ".tokens"))
    found = {part: [path for path in files if part in path.name] for part in ("train", "valid", "test")}
    training, heldout = found["train"], found["valid"] or found["test"]
    if len(training) != 1 or len(heldout) != 1:
        raise TaskError(
            f"data={folder} must hold one text file *train*.txt and one *valid*.txt (or *test*.txt), as Penn "
            f"Treebank and WikiText do; it holds {', '.join(path.name for path in files) or 'no .txt'}"
        )
    train, held = (path[0].read_bytes() for path in (training, heldout))
    if len(train) < 100_000 or len(held) < 10_000:
        raise TaskError(
            f"data={folder}: {len(train)} bytes to train on and {len(held)} held out are too few; "
            "at least 100,000 and 10,000 are needed"
        )
    return as_bytes(train), as_bytes(held)


def as_bytes(text: bytes) -> Tensor:
    """Return the text as uint8 of one dimension."""
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


@lru_cache(1)
def _python() -> tuple[Tensor, Tensor]:
    return python_text()


@lru_cache(1)
def _linux() -> tuple[Tensor, Tensor]:
    train, heldout = linux.read()
    return as_bytes(train), as_bytes(heldout)


@lru_cache(2)
def _folder(folder: Path) -> tuple[Tensor, Tensor]:
    return folder_text(folder)
