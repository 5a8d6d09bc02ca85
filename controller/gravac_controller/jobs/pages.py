"""Pages of windows and decisions: from memory where it holds them, else from the journal on disk."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import anyio.to_thread

from gravac_controller.api.problems import ApiError
from gravac_controller.jobs.cursor import Cursor, cut
from gravac_controller.jobs.filters import (
    EVERY_DECISION,
    EVERY_WINDOW,
    DecisionFilter,
    WindowFilter,
    WindowHead,
)
from gravac_controller.jobs.job import Job
from gravac_controller.views.models import DecisionView, Page, WindowView

V = TypeVar("V", WindowView, DecisionView)
Found = Iterable[tuple[int, V | None]]


async def windows(
    job: Job, after: Cursor | None, limit: int, wanted: WindowFilter = EVERY_WINDOW
) -> Page[WindowView]:
    """Up to ``limit`` windows behind ``after`` (null: from the first). Raises ApiError 503."""
    known = list(job.live.all_windows())
    if _complete(known, job.live.totals.windows, after):
        return _page(_known_windows(known, after, wanted), after, limit)
    end = job.journal.end
    floor = -1 if after is None else after.floor
    return await _from_disk(lambda: _page(job.journal.reader.windows(floor, end, wanted), after, limit))


async def decisions(
    job: Job, after: Cursor | None, limit: int, wanted: DecisionFilter = EVERY_DECISION
) -> Page[DecisionView]:
    """Up to ``limit`` decisions behind ``after`` (null: from the first). Raises ApiError 503."""
    known = list(job.live.decisions)
    if _complete(known, job.live.decisions_by_rule.total(), after):
        return _page(_known_decisions(known, after, wanted), after, limit)
    end = job.journal.end
    floor = None if after is None else after.floor
    return await _from_disk(lambda: _page(job.journal.reader.decisions(floor, end, wanted), after, limit))


def _complete(known: Sequence[V], total: int, after: Cursor | None) -> bool:
    """Whether memory holds everything behind ``after``."""
    if len(known) == total:
        return True
    return bool(known) and after is not None and after.floor >= _number(known[0])


def _known_windows(
    known: Sequence[WindowView], after: Cursor | None, wanted: WindowFilter
) -> Iterator[tuple[int, WindowView | None]]:
    for view in known:
        if after is None or view.report.window > after.floor:
            kept = wanted.keeps(WindowHead.of_report(view.report))
            yield view.report.window, view if kept else None


def _known_decisions(
    known: Sequence[DecisionView], after: Cursor | None, wanted: DecisionFilter
) -> Iterator[tuple[int, DecisionView | None]]:
    for view in known:
        if after is None or view.decision.window > after.floor:
            kept = wanted.keeps(view.decision, view.changed)
            yield view.decision.window, view if kept else None


def _page(found: Found[V], after: Cursor | None, limit: int) -> Page[V]:
    items, more = cut(found, after, limit)
    return Page(items=items, next=None if more is None else str(more))


async def _from_disk(read: Callable[[], Page[V]]) -> Page[V]:
    try:
        return await anyio.to_thread.run_sync(read)
    except (OSError, ValueError) as error:
        raise ApiError(503, f"the journal cannot be read: {error}", reason="journal") from error


def _number(view: WindowView | DecisionView) -> int:
    return view.report.window if isinstance(view, WindowView) else view.decision.window
