"""Reading old windows and decisions from a journal on disk.

A sparse index (one entry a hundred windows) finds the place; it is built when first needed and goes on from where
it was.
"""

import re
import threading
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gravac.protocol import Decision, JobSpec, WindowReport
from gravac.traceline import decode
from gravac_controller.filters import (
    EVERY_DECISION,
    EVERY_WINDOW,
    DecisionFilter,
    WindowFilter,
    WindowHead,
)
from gravac_controller.from_records import decision_view, window_view
from gravac_controller.views import DecisionView, WindowView

INDEX_EVERY = 100
_WINDOW = re.compile(
    rb'\{"kind":"window",[^{]*"body":\{"job":"[^"]*","incarnation":"[^"]*","window":([0-9]+),'
)
_JOB = re.compile(rb'\{"kind":"job",')
_DECISION = re.compile(rb'\{"kind":"decision",')


@dataclass(frozen=True, slots=True)
class Place:
    """Where a window's line begins. ``line`` counts from 1; ``world_size`` is the one registered before it."""

    window: int
    offset: int
    line: int
    world_size: int


class JournalReader:
    """Reading one journal from any window on, while another part of the process appends to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places = [Place(-1, 0, 1, 0)]
        self._indexed = self._places[0]
        self._since = 0
        self._indexing = threading.Lock()

    def windows(
        self, after: int, end: int, wanted: WindowFilter = EVERY_WINDOW
    ) -> Iterator[tuple[int, WindowView | None]]:
        """Number and view of each window above ``after``, reading up to byte ``end``; null for those not wanted.

        Raises OSError, TraceError.
        """
        start = self._place(after, end)
        world_size = start.world_size
        for line, raw in self._lines(start, end):
            head = WindowHead.of_line(raw)
            if head is None:
                if _JOB.match(raw):
                    world_size = self._world_size(raw, line)
            elif head.window > after and not wanted.keeps(head):
                yield head.window, None
            elif head.window > after:
                found = decode(raw, line, "", str(self._path))
                assert isinstance(found.record, WindowReport)
                yield head.window, window_view(found.time, found.record, world_size)

    def decisions(
        self, after: int | None, end: int, wanted: DecisionFilter = EVERY_DECISION
    ) -> Iterator[tuple[int, DecisionView | None]]:
        """The same of the decisions of windows above ``after`` (null: all)."""
        before: Decision | None = None
        start = self._place(-1 if after is None else after, end)
        for line, raw in self._lines(start, end):
            if _DECISION.match(raw):
                found = decode(raw, line, "", str(self._path))
                assert isinstance(found.record, Decision)
                if after is None or found.record.window > after:
                    view = decision_view(found.time, found.record, before)
                    yield found.record.window, view if wanted.keeps(view.decision, view.changed) else None
                before = found.record

    def _place(self, window: int, end: int) -> Place:
        """The last indexed place whose window is not above ``window``."""
        with self._indexing:  # pages are read in several threads
            self._index(end)
        numbers = [place.window for place in self._places]
        return self._places[bisect_right(numbers, window) - 1]

    def _index(self, end: int) -> None:
        offset, line, world_size = self._indexed.offset, self._indexed.line, self._indexed.world_size
        for number, raw in self._lines(self._indexed, end):
            match = _WINDOW.match(raw)
            if match is not None:
                self._since += 1
                if self._since >= INDEX_EVERY:
                    self._since = 0
                    self._places.append(Place(int(match[1]), offset, number, world_size))
            elif _JOB.match(raw):
                world_size = self._world_size(raw, number)
            offset, line = offset + len(raw) + 1, number + 1
        self._indexed = Place(-1, offset, line, world_size)

    def _world_size(self, raw: bytes, line: int) -> int:
        found = decode(raw, line, "", str(self._path))
        assert isinstance(found.record, JobSpec)
        return found.record.world_size

    def _lines(self, start: Place, end: int) -> Iterator[tuple[int, bytes]]:
        with self._path.open("rb") as file:
            file.seek(start.offset)
            left = end - start.offset
            for number, raw in enumerate(file, start.line):
                left -= len(raw)
                if left < 0:
                    return
                yield number, raw.removesuffix(b"\n")
