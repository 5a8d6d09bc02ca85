"""Pages of windows and decisions, from memory where it holds them, else from the journal on disk.

Every window has its own number. Decisions have the number of their window, and a trainer that starts again repeats the
one in force, so several decisions may share a number: cursor ``12.1`` is behind the first decision of window 12.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import anyio.to_thread

from gravac_controller.jobs.filters import (
    EVERY_DECISION,
    EVERY_WINDOW,
    DecisionFilter,
    WindowFilter,
    WindowHead,
)
from gravac_controller.jobs.job import Job
from gravac_controller.jobs.refusals import journal_unreadable
from gravac_controller.views.models import DecisionView, Page, WindowView

T = TypeVar("T")
V = TypeVar("V", WindowView, DecisionView)

CURSOR_PATTERN = r"^(-1|[0-9]{1,16})(\.[1-9][0-9]{0,8})?$"
MAX_SCANNED = 5000
"""Entries scanned for one page at most. Where few of them pass the filter the page is short and has a cursor."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place behind every entry up to ``number``; with ``count``, behind the first ``count`` of that number."""

    number: int
    count: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Parse the ``next`` of a page. Raises ValueError for anything else."""
        if re.fullmatch(CURSOR_PATTERN, text) is None:
            raise ValueError(f"cursor: {text!r} is not the next of a page")
        number, _, count = text.partition(".")
        return cls(int(number), int(count) if count else None)

    @property
    def floor(self) -> int:
        """The largest number of which the cursor is behind every entry."""
        return self.number if self.count is None else self.number - 1

    def __str__(self) -> str:
        return str(self.number) if self.count is None else f"{self.number}.{self.count}"


async def windows(
    job: Job, after: Cursor | None, limit: int, wanted: WindowFilter = EVERY_WINDOW
) -> Page[WindowView]:
    """Return up to ``limit`` windows behind ``after`` (None: from the first).

    Raises:
        Unavailable: The journal cannot be read.
    """
    known = list(job.live.all_windows())
    if _complete(known, job.live.counts.windows, after):
        return _page(_known_windows(known, after, wanted), after, limit)
    end = job.journal.end
    floor = -1 if after is None else after.floor
    return await _from_disk(lambda: _page(job.journal.reader.windows(floor, end, wanted), after, limit))


async def decisions(
    job: Job, after: Cursor | None, limit: int, wanted: DecisionFilter = EVERY_DECISION
) -> Page[DecisionView]:
    """Return up to ``limit`` decisions behind ``after`` (None: from the first).

    Raises:
        Unavailable: The journal cannot be read.
    """
    known = list(job.live.recent.decisions)
    if _complete(known, job.live.counts.decisions, after):
        return _page(_known_decisions(known, after, wanted), after, limit)
    end = job.journal.end
    floor = None if after is None else after.floor
    return await _from_disk(lambda: _page(job.journal.reader.decisions(floor, end, wanted), after, limit))


def cut(
    found: Iterable[tuple[int, T | None]], after: Cursor | None, limit: int
) -> tuple[tuple[T, ...], Cursor | None]:
    """Return up to ``limit`` entries, and the cursor of the next page (None: this is the last).

    ``found``: number and entry of everything above ``after.floor``, in order; the entry is None where a filter left it
    out.
    """
    items: list[T] = []
    last: int | None = None
    count = 0
    for scanned, (number, repeat, entry) in enumerate(_behind(found, after)):
        if len(items) == limit or scanned == MAX_SCANNED:
            assert last is not None
            return tuple(items), Cursor(last, count if number == last else None)
        last, count = number, repeat
        if entry is not None:
            items.append(entry)
    return tuple(items), None


def _behind(
    found: Iterable[tuple[int, T | None]], after: Cursor | None
) -> Iterator[tuple[int, int, T | None]]:
    """Yield number, how many entries had that number so far, and entry, for everything behind the cursor."""
    last, count = None, 0
    for number, entry in found:
        count = count + 1 if number == last else 1
        last = number
        skipped = after.count if after is not None and after.number == number else None
        if skipped is None or count > skipped:
            yield number, count, entry


def _complete(known: Sequence[V], total: int, after: Cursor | None) -> bool:
    """Return whether memory holds everything behind ``after``."""
    if len(known) == total:
        return True
    return bool(known) and after is not None and after.floor >= _number(known[0])


def _known_windows(
    known: Sequence[WindowView], after: Cursor | None, wanted: WindowFilter
) -> Iterator[tuple[int, WindowView | None]]:
    for view in known:
        if after is None or view.report.window > after.floor:
            matches = wanted.matches(WindowHead.of_report(view.report))
            yield view.report.window, view if matches else None


def _known_decisions(
    known: Sequence[DecisionView], after: Cursor | None, wanted: DecisionFilter
) -> Iterator[tuple[int, DecisionView | None]]:
    for view in known:
        if after is None or view.decision.window > after.floor:
            matches = wanted.matches(view.decision, view.changed)
            yield view.decision.window, view if matches else None


def _page(found: Iterable[tuple[int, V | None]], after: Cursor | None, limit: int) -> Page[V]:
    items, more = cut(found, after, limit)
    return Page(items=items, next=None if more is None else str(more))


async def _from_disk(read: Callable[[], Page[V]]) -> Page[V]:
    try:
        return await anyio.to_thread.run_sync(read)
    except (OSError, ValueError) as error:
        raise journal_unreadable(error) from error


def _number(view: WindowView | DecisionView) -> int:
    return view.report.window if isinstance(view, WindowView) else view.decision.window
