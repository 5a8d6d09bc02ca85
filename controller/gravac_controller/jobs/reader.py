"""Reads old windows and decisions from a journal on disk, across its parts.

The head of a part names its first window. A sparse index (one entry per hundred windows) covers the part that is being
written. It is built when first needed, and extended from where it ended.
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

INDEX_EVERY = 100
PIECE_BYTES = 1 << 16
_JOB = re.compile(rb'\{"kind":"job",')
_WINDOW = re.compile(rb'\{"kind":"window",')
_DECISION = re.compile(rb'\{"kind":"decision",')


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """The end of a journal: ``size`` bytes into ``part``."""

    part: int
    size: int


@dataclass(frozen=True, slots=True)
class Position:
    """The place where a line begins.

    ``line`` counts from 1 through all parts. ``window``: of this line, or the next one. ``spec``: as registered before
    it, without the policy's state.
    """

    window: int
    part: int
    offset: int
    line: int
    spec: JobSpec


class JournalReader:
    """Reads one journal from any window on, while other threads append to it, start a part, or compress one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._heads: dict[int, Position] = {}
        self._index: list[Position] = []
        self._indexed: Position | None = None
        self._since = 0
        self._indexing = threading.Lock()

    def windows(
        self, after: int, end: JournalEnd, wanted: WindowFilter = EVERY_WINDOW
    ) -> Iterator[tuple[int, WindowView | None]]:
        """Yield number and view of each window above ``after``, up to ``end``; the view is None where filtered out.

        Raises OSError, TraceError.
        """
        start = self._position(after, end)
        spec = start.spec
        for line, raw in self._lines(start, end):
            head = WindowHead.of_line(raw)
            if head is None:
                if _JOB.match(raw):
                    spec = self._job(raw, line)
            elif head.window > after and not wanted.matches(head):
                yield head.window, None
            elif head.window > after:
                found = decode(raw, line, "", str(self._path))
                assert isinstance(found.record, WindowReport)
                yield head.window, WindowView.of(found.time, found.record, spec)

    def decisions(
        self, after: int | None, end: JournalEnd, wanted: DecisionFilter = EVERY_DECISION
    ) -> Iterator[tuple[int, DecisionView | None]]:
        """Yield the same for decisions on windows above ``after`` (None: all)."""
        before: Decision | None = None
        repeats = False  # a part begins by repeating the decision in force
        start = self._position(-1 if after is None else after, end)
        spec = start.spec
        for line, raw in self._lines(start, end):
            if parts.parse_head(raw) is not None:
                repeats = True
            elif _JOB.match(raw):
                spec = self._job(raw, line)
            elif _WINDOW.match(raw):
                repeats = False  # also where a torn tail took the decision out of the part's head
            elif _DECISION.match(raw):
                found = decode(raw, line, "", str(self._path))
                assert isinstance(found.record, Decision)
                if not repeats and (after is None or found.record.window > after):
                    view = DecisionView.of(found.time, found.record, before, spec.compressor)
                    yield found.record.window, view if wanted.matches(view.decision, view.changed) else None
                before, repeats = found.record, False

    def size(self, end: JournalEnd) -> int:
        """Return the bytes of all lines up to ``end``, uncompressed. Raises OSError."""
        return sum(parts.plain_size(path) for _, path in self._closed(end)) + end.size

    def raw(self, end: JournalEnd) -> Iterator[bytes]:
        """Yield all lines up to ``end`` as they are on disk, in pieces. Raises OSError."""
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
        """Return the first window that a part may hold. Raises OSError, TraceError."""
        return self._head(part).window

    # -- finding ----------------------------------------------------------------------------------------------

    def _closed(self, end: JournalEnd) -> list[tuple[int, Path]]:
        return [
            (number, path)
            for number, path in parts.full_parts(self._path.parent).items()
            if number < end.part
        ]

    def _position(self, window: int, end: JournalEnd) -> Position:
        """Return the last known position whose window is not above ``window``."""
        with self._indexing:  # pages are read in several threads
            heads = [self._head(number) for number, _ in self._closed(end)] + [self._head(end.part)]
            found = heads[max(0, bisect_right([head.window for head in heads], window) - 1)]
            if found.part != end.part:
                return found
            self._extend_index(end)
            positions = [found, *self._index]
            return positions[bisect_right([position.window for position in positions], window) - 1]

    def _head(self, part: int) -> Position:
        """Return where a part's own lines begin, from its first two."""
        if part not in self._heads:
            with self._open(part) as file:
                raw = file.readline(MAX_LINE_BYTES)
                head = parts.parse_head(raw)
                line = 1 if head is None else head[1] + 1
                if head is not None:
                    raw = file.readline(MAX_LINE_BYTES)
                spec = self._job(raw.removesuffix(b"\n"), line)
            first = -1 if head is None else spec.first_window
            self._heads[part] = Position(first, part, 0, line, spec)
        return self._heads[part]

    def _extend_index(self, end: JournalEnd) -> None:
        if self._indexed is None or self._indexed.part != end.part:
            self._index, self._indexed, self._since = [], self._head(end.part), 0
        offset, line, spec = self._indexed.offset, self._indexed.line, self._indexed.spec
        for number, raw in self._lines(self._indexed, end):
            head = WindowHead.of_line(raw)
            if head is not None:
                self._since += 1
                if self._since >= INDEX_EVERY:
                    self._since = 0
                    self._index.append(Position(head.window, end.part, offset, number, spec))
            elif _JOB.match(raw):
                spec = self._job(raw, number)
            offset, line = offset + len(raw) + 1, number + 1
        self._indexed = Position(-1, end.part, offset, line, spec)

    def _job(self, raw: bytes, line: int) -> JobSpec:
        found = decode(raw, line, "", str(self._path))
        assert isinstance(found.record, JobSpec)
        return found.record.model_copy(update={"policy_state": None})

    # -- reading ----------------------------------------------------------------------------------------------

    def _lines(self, start: Position, end: JournalEnd) -> Iterator[tuple[int, bytes]]:
        """Yield number and bytes of each line from ``start`` to ``end``, without its newline."""
        number, following = start.line, [part for part, _ in self._closed(end) if part > start.part]
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
        """Open a part, active or already closed or compressed. Raises OSError."""
        for _ in range(5):
            path = parts.full_parts(self._path.parent).get(part)
            if path is not None:
                return parts.open_full_part(path)
            try:
                file = parts.open_part(self._path)
            except FileNotFoundError:
                continue  # it was just closed, and the next part does not have its name yet
            head = parts.parse_head(file.readline(MAX_LINE_BYTES))
            if (1 if head is None else head[0]) == part:
                file.seek(0)
                return file
            file.close()
        raise OSError(f"part {part} of the journal does not exist any more")
