"""Parts of a long journal: ``journal.jsonl`` is being written, ``journal.000001.jsonl.gz`` … are full.

Each part but the first begins with a ``part`` line, the job as registered and the decision in force. So each part is a
complete trace: a controller resumes a job without reading all of its journal, and old parts can be deleted. The chain
of digests continues through all parts, so together they are one trace too.
"""

import contextlib
import gzip
import io
import os
import re
import shutil
from pathlib import Path
from typing import Annotated, BinaryIO, cast

from pydantic import Field

from gravac.protocol import Count, Record
from gravac.traces.own_files import create_own

ACTIVE = "journal.jsonl"
"""Name of the part being written."""
COMPRESS_LEVEL = 6
BUFFER_BYTES = 1 << 16
"""Read ahead; a line has a few kB."""
_CLOSED = re.compile(r"journal\.([0-9]{6,})\.jsonl(?:\.gz)?")
_BEGINS = b'{"kind":"part",'
_WHOLE = re.compile(rb',"digest":"[0-9a-f]{16}"\}\Z')
_HEAD = re.compile(
    rb'\{"kind":"part","schema":[0-9]+,"time":[^,]*,"body":\{"number":([0-9]+),"lines":([0-9]+),"digest":"([0-9a-f]{16})"'
)


class Part(Record):
    """First line of every part but the first. ``lines`` and ``digest``: of all parts before it, and of their last line.

    ``summary``: sums over those parts, for people; no decision depends on it.
    """

    number: Annotated[int, Field(ge=2, le=10**9)]  # of the part that begins here
    lines: Count  # in all parts before it
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]  # of the line before
    summary: Annotated[str, Field(max_length=200_000)] = ""  # sums over those parts, as JSON


def parse_head(raw: bytes) -> tuple[int, int, str] | None:
    """Parse a part's first line: its number, the lines before it and their last digest. None for any other line."""
    match = _HEAD.match(raw)
    return None if match is None else (int(match[1]), int(match[2]), match[3].decode())


def part_number(path: Path) -> int:
    """Return the number of the part that a journal file holds; 1 for an empty file. Raises OSError."""
    with open_part(path) as stream:
        head = parse_head(stream.readline(1 << 20))
    return 1 if head is None else head[0]


def plain_size(path: Path) -> int:
    """Return the uncompressed size of a full part in bytes. Raises OSError."""
    with _open_full_part_raw(path) as file:
        if file.read(2) != b"\x1f\x8b":
            return file.seek(0, os.SEEK_END)
        file.seek(-4, os.SEEK_END)  # gzip stores the size modulo 4 GiB; parts are far smaller
        return int.from_bytes(file.read(4), "little")


def full_part_path(folder: Path, number: int) -> Path:
    """Return the path that part ``number`` gets when it is full."""
    return folder / f"journal.{number:06}.jsonl"


def full_parts(folder: Path) -> dict[int, Path]:
    """Return the full parts of a journal by number. Of a part that exists twice, the compressed file."""
    found: dict[int, Path] = {}
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):  # .jsonl before .jsonl.gz
            match = _CLOSED.fullmatch(path.name)
            if match is not None:
                found[int(match[1])] = path
    return dict(sorted(found.items()))


def open_journal(path: Path) -> BinaryIO:
    """Open a whole journal as one stream: its active part ``path`` and the parts before it, as far as none is missing.

    It is safe to begin a part or compress one while the stream is read.

    Raises:
        OSError: A file cannot be read; also later, from the stream.
        EOFError: A compressed file ends early; also later.
    """
    torn = False
    try:
        active = open_part(path)
        torn = not has_begun(path)
    except (
        FileNotFoundError
    ):  # a part was just begun: the newest full one is the last until the new one has its name
        full = list(full_parts(path.parent).values())
        if not full:
            raise
        active = open_full_part(full[-1])
    try:
        head = parse_head(active.readline(1 << 20))
        active.seek(0)
    except BaseException:
        active.close()
        raise
    before, number = full_parts(path.parent), 1 if head is None else head[0]
    if before and torn:
        number = max(before) + 1  # the head of the active part is torn: it continues the full ones
    files = []
    while number - 1 in before:
        number -= 1
        files.append(before[number])
    return io.BufferedReader(_Chain(files[::-1], active), BUFFER_BYTES)


def has_begun(path: Path) -> bool:
    """Return whether a journal file holds more than the torn beginning of a part. Raises OSError."""
    try:
        with path.open("rb") as file:
            first = file.readline(1 << 20)
    except FileNotFoundError:
        return False
    torn = not first.endswith(b"\n") and not _WHOLE.search(first)
    return not (torn and first[: len(_BEGINS)] == _BEGINS[: len(first)])


def repair(path: Path) -> None:
    """Repair a journal after a crash while a part was begun or compressed.

    Where the active part is missing, or its first line is torn, the newest full part becomes active again.
    """
    folder = path.parent
    full = full_parts(folder)
    if full and not has_begun(path):
        _reopen(full[max(full)], path)
    if full and path.exists():
        _drop_twin(path)
    for leftover in (next_path(path), *folder.glob("journal.*.gz.tmp")):
        leftover.unlink(missing_ok=True)
    for file in full_parts(folder).values():
        if file.suffix == ".gz":
            file.with_suffix("").unlink(missing_ok=True)


def _reopen(file: Path, path: Path) -> None:
    """Make a full part the active one again."""
    if file.suffix == ".gz":
        draft = next_path(path)
        with open_part(file) as packed, open(create_own(draft), "wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 18)
            plain.flush()
            os.fsync(plain.fileno())
        draft.rename(path)  # a crash here leaves the part twice; ``repair`` finds that
        sync_folder(path.parent)
        file.unlink()
    else:
        file.rename(path)
        sync_folder(path.parent)


def _drop_twin(path: Path) -> None:
    """Delete a full part that equals the active one, or its beginning."""
    twin = full_parts(path.parent).get(part_number(path))
    if twin is None:
        return
    with open_part(twin) as short, open_part(path) as long:
        while piece := short.read(1 << 18):
            if long.read(len(piece)) != piece:
                return
    twin.unlink()


def next_path(path: Path) -> Path:
    """Return where the next part is written before it gets the active part's name."""
    return path.with_name(path.name + ".next")


def compress(path: Path) -> Path:
    """Compress a full part with gzip and return the new path. At every moment one of the two files is whole."""
    target = path.with_name(path.name + ".gz")
    draft = target.with_name(target.name + ".tmp")
    with path.open("rb") as source, open(create_own(draft), "wb") as file:
        with gzip.GzipFile("", "wb", COMPRESS_LEVEL, file, mtime=0) as packed:
            shutil.copyfileobj(source, packed, 1 << 18)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(target)
    sync_folder(path.parent)
    path.unlink()
    return target


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that renames in it survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_part(path: Path) -> BinaryIO:
    """Open a journal file for reading; gzip is detected by its first bytes. Raises OSError."""
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path, "rb")) if zipped else path.open("rb", buffering=BUFFER_BYTES)


def open_full_part(path: Path) -> BinaryIO:
    """Open a full part for reading, even if it has just been compressed. Raises OSError."""
    try:
        return open_part(path)
    except FileNotFoundError:
        return open_part(path.with_name(path.name + ".gz"))


def _open_full_part_raw(path: Path) -> BinaryIO:
    """Open the file of a full part without decompressing it."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        return path.with_name(path.name + ".gz").open("rb")


class _Chain(io.RawIOBase):
    """Reads full parts one after the other, then the active one, which is open already."""

    def __init__(self, files: list[Path], active: BinaryIO) -> None:
        self._files, self._active = iter(files), active
        self._open: BinaryIO | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(cast(bytearray, buffer))
        while True:
            if self._open is None:
                following = next(self._files, None)
                self._open = self._active if following is None else open_full_part(following)
            piece = self._open.read(len(view))
            if piece or self._open is self._active:
                view[: len(piece)] = piece
                return len(piece)
            self._open.close()
            self._open = None

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
        self._active.close()
        super().close()
