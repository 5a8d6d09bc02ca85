"""Reading old windows and decisions from a journal on disk, in however many parts it is.

A part says with which window it begins. In the part being written a sparse index (one entry a hundred windows) finds
the place; it is built when first needed and goes on from where it was.
"""

import re
import threading
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gravac.protocol import Decision, JobSpec, WindowReport
from gravac.traces import parts
from gravac.traces.line import MAX_LINE_BYTES, decode
from gravac_controller.jobs.filters import (
    EVERY_DECISION,
    EVERY_WINDOW,
    DecisionFilter,
    WindowFilter,
    WindowHead,
)
from gravac_controller.views.models import DecisionView, WindowView
from gravac_controller.views.records import decision_view, window_view

INDEX_EVERY = 100
PIECE_BYTES = 1 << 16
_JOB = re.compile(rb'\{"kind":"job",')
_WINDOW = re.compile(rb'\{"kind":"window",')
_DECISION = re.compile(rb'\{"kind":"decision",')


@dataclass(frozen=True, slots=True)
class End:
    """How much of a journal there is: all parts before ``part``, and ``size`` bytes of that one."""

    part: int
    size: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line begins. ``line`` counts from 1 through all parts; ``window`` is its, or the next one's after it;
    ``world_size`` is the one registered before it."""

    window: int
    part: int
    offset: int
    line: int
    world_size: int


class JournalReader:
    """Reading one journal from any window on, while other threads append to it, turn to a new part, compress one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._heads: dict[int, Place] = {}
        self._index: list[Place] = []
        self._indexed: Place | None = None
        self._since = 0
        self._indexing = threading.Lock()

    def windows(
        self, after: int, end: End, wanted: WindowFilter = EVERY_WINDOW
    ) -> Iterator[tuple[int, WindowView | None]]:
        """Number and view of each window above ``after``, up to ``end``; null for those not wanted.

        Raises OSError, TraceError.
        """
        start = self._place(after, end)
        world_size = start.world_size
        for line, raw in self._lines(start, end):
            head = WindowHead.of_line(raw)
            if head is None:
                if _JOB.match(raw):
                    world_size = self._job(raw, line).world_size
            elif head.window > after and not wanted.keeps(head):
                yield head.window, None
            elif head.window > after:
                found = decode(raw, line, "", str(self._path))
                assert isinstance(found.record, WindowReport)
                yield head.window, window_view(found.time, found.record, world_size)

    def decisions(
        self, after: int | None, end: End, wanted: DecisionFilter = EVERY_DECISION
    ) -> Iterator[tuple[int, DecisionView | None]]:
        """The same of the decisions on windows above ``after`` (null: all)."""
        before: Decision | None = None
        repeats = False  # a part begins with the decision in force, which the part before it holds already
        start = self._place(-1 if after is None else after, end)
        for line, raw in self._lines(start, end):
            if parts.parse_head(raw) is not None:
                repeats = True
            elif _WINDOW.match(raw):
                repeats = False  # also where a torn tail took the decision out of the part's head
            elif _DECISION.match(raw):
                found = decode(raw, line, "", str(self._path))
                assert isinstance(found.record, Decision)
                if not repeats and (after is None or found.record.window > after):
                    view = decision_view(found.time, found.record, before)
                    yield found.record.window, view if wanted.keeps(view.decision, view.changed) else None
                before, repeats = found.record, False

    def size(self, end: End) -> int:
        """Bytes of all lines up to ``end``, uncompressed. Raises OSError."""
        return sum(parts.plain_size(path) for _, path in self._closed(end)) + end.size

    def raw(self, end: End) -> Iterator[bytes]:
        """All lines up to ``end``, as they are on disk, in pieces. Raises OSError."""
        with self._open(end.part) as last:
            for _, path in self._closed(end):
                with parts.open_full_part(path) as file:
                    while piece := file.read(PIECE_BYTES):
                        yield piece
            left = end.size
            while left > 0 and (piece := last.read(min(left, PIECE_BYTES))):
                left -= len(piece)
                yield piece

    def first_window(self, part: int) -> int:
        """The first window that a part may hold. Raises OSError, TraceError."""
        return self._head(part).window

    # -- finding ----------------------------------------------------------------------------------------------

    def _closed(self, end: End) -> list[tuple[int, Path]]:
        return [
            (number, path)
            for number, path in parts.full_parts(self._path.parent).items()
            if number < end.part
        ]

    def _place(self, window: int, end: End) -> Place:
        """The last known place whose window is not above ``window``."""
        with self._indexing:  # pages are read in several threads
            heads = [self._head(number) for number, _ in self._closed(end)] + [self._head(end.part)]
            found = heads[max(0, bisect_right([head.window for head in heads], window) - 1)]
            if found.part != end.part:
                return found
            self._extend_index(end)
            places = [found, *self._index]
            return places[bisect_right([place.window for place in places], window) - 1]

    def _head(self, part: int) -> Place:
        """Where a part's own lines begin, from its first two."""
        if part not in self._heads:
            with self._open(part) as file:
                raw = file.readline(MAX_LINE_BYTES)
                head = parts.parse_head(raw)
                line = 1 if head is None else head[1] + 1
                if head is not None:
                    raw = file.readline(MAX_LINE_BYTES)
                spec = self._job(raw.removesuffix(b"\n"), line)
            first = -1 if head is None else spec.first_window
            self._heads[part] = Place(first, part, 0, line, spec.world_size)
        return self._heads[part]

    def _extend_index(self, end: End) -> None:
        if self._indexed is None or self._indexed.part != end.part:
            self._index, self._indexed, self._since = [], self._head(end.part), 0
        offset, line, world_size = self._indexed.offset, self._indexed.line, self._indexed.world_size
        for number, raw in self._lines(self._indexed, end):
            head = WindowHead.of_line(raw)
            if head is not None:
                self._since += 1
                if self._since >= INDEX_EVERY:
                    self._since = 0
                    self._index.append(Place(head.window, end.part, offset, number, world_size))
            elif _JOB.match(raw):
                world_size = self._job(raw, number).world_size
            offset, line = offset + len(raw) + 1, number + 1
        self._indexed = Place(-1, end.part, offset, line, world_size)

    def _job(self, raw: bytes, line: int) -> JobSpec:
        found = decode(raw, line, "", str(self._path))
        assert isinstance(found.record, JobSpec)
        return found.record

    # -- reading ----------------------------------------------------------------------------------------------

    def _lines(self, start: Place, end: End) -> Iterator[tuple[int, bytes]]:
        """Number and bytes of each line from ``start`` to ``end``, without its newline."""
        number, following = start.line, [one for one, _ in self._closed(end) if one > start.part]
        for part in (start.part, *following, *([end.part] if start.part != end.part else [])):
            with self._open(part) as file:
                offset = start.offset if part == start.part else 0
                file.seek(offset)
                left = end.size - offset if part == end.part else None
                for raw in file:
                    if left is not None:
                        left -= len(raw)
                        if left < 0:
                            return
                    yield number, raw.removesuffix(b"\n")
                    number += 1

    def _open(self, part: int) -> BinaryIO:
        """A part's file, whether it is the active one, or has been closed or compressed meanwhile. Raises OSError."""
        for _ in range(5):
            path = parts.full_parts(self._path.parent).get(part)
            if path is not None:
                return parts.open_full_part(path)
            try:
                file = parts.open_part(self._path)
            except FileNotFoundError:
                continue  # it became a full part just now, and the next one has not taken its name yet
            head = parts.parse_head(file.readline(MAX_LINE_BYTES))
            if (1 if head is None else head[0]) == part:
                file.seek(0)
                return file
            file.close()
        raise OSError(f"part {part} of the journal is not there any more")
