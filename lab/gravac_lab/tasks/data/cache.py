"""Data that take long to make, kept in a folder of the user's: ``~/.cache/gravac``, or ``$XDG_CACHE_HOME/gravac``."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def folder() -> Path:
    """Return the folder, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gravac"


def cached(name: str, key: str, make: Callable[[], list[bytes]], within: Path | None = None) -> list[bytes]:
    """Return what ``make`` returned for the same key before, else call it and keep what it returns.

    A file that is damaged, or of another key, is made again. Where nothing can be written, nothing is kept.

    Args:
        name: Name of the file.
        key: Changes when what ``make`` returns would: versions, settings, sizes of sources.
        make: Makes the pieces.
        within: The folder; None: ``folder()``.
    """
    path = (folder() if within is None else within) / name
    pieces = _read(path, key)
    if pieces is None:
        pieces = make()
        _write(path, key, pieces)
    return pieces


def _read(path: Path, key: str) -> list[bytes] | None:
    try:
        with path.open("rb") as file:
            head = json.loads(file.readline())
            if head["key"] != key:
                return None
            body = file.read()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if len(body) != sum(head["sizes"]) or hashlib.sha256(body).hexdigest() != head["sha256"]:
        return None
    pieces, start = [], 0
    for size in head["sizes"]:
        pieces.append(body[start : start + size])
        start += size
    return pieces


def _write(path: Path, key: str, pieces: list[bytes]) -> None:
    """Write a file of its own and rename it, because other ranks may read or write at the same time."""
    body = b"".join(pieces)
    head = {"key": key, "sizes": [len(piece) for piece in pieces], "sha256": hashlib.sha256(body).hexdigest()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            file.write(json.dumps(head).encode() + b"\n" + body)
        os.replace(file.name, path)
    except OSError:
        return
