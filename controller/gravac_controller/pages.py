"""Pages of windows and decisions: from memory where it holds them, else from the journal on disk."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeVar

import anyio.to_thread

from gravac_controller.job import Job
from gravac_controller.problems import ApiError
from gravac_controller.views import DecisionView, Page, WindowView

V = TypeVar("V", WindowView, DecisionView)


async def windows(job: Job, after: int | None, limit: int) -> Page[WindowView]:
    """Up to ``limit`` windows numbered above ``after`` (null: from the first). Raises ApiError 503."""
    recent = _recent(list(job.live.all_windows()), job.live.totals.windows, after, limit)
    if recent is not None:
        return recent
    size = job.journal_bytes

    def from_disk() -> Page[WindowView]:
        return _page(job.reader.windows(-1 if after is None else after, size), limit)

    try:
        return await anyio.to_thread.run_sync(from_disk)
    except (OSError, ValueError) as error:
        raise _unreadable(error) from error


async def decisions(job: Job, after: int | None, limit: int) -> Page[DecisionView]:
    """Up to ``limit`` decisions of windows above ``after`` (null: from the first). Raises ApiError 503."""
    recent = _recent(list(job.live.decisions), job.live.decisions_by_rule.total(), after, limit)
    if recent is not None:
        return recent
    size = job.journal_bytes

    def from_disk() -> Page[DecisionView]:
        return _page(job.reader.decisions(after, size), limit)

    try:
        return await anyio.to_thread.run_sync(from_disk)
    except (OSError, ValueError) as error:
        raise _unreadable(error) from error


def _recent(known: Sequence[V], total: int, after: int | None, limit: int) -> Page[V] | None:
    """The page from what memory holds, or null when it begins before that."""
    if len(known) < total and (not known or after is None or after < _number(known[0])):
        return None
    return _page((view for view in known if after is None or _number(view) > after), limit)


def _page(found: Iterable[V], limit: int) -> Page[V]:
    items = list(islice(found, limit + 1))
    more = len(items) > limit
    items = items[:limit]
    return Page(items=tuple(items), next=str(_number(items[-1])) if more else None)


def _number(view: WindowView | DecisionView) -> int:
    return view.report.window if isinstance(view, WindowView) else view.decision.window


def _unreadable(error: Exception) -> ApiError:
    return ApiError(503, f"the journal cannot be read: {error}", reason="journal")
