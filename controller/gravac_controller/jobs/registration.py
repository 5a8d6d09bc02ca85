"""Registering a job again: when another start of the trainer may take it over, and what is journaled then.

Two trainings started under one job name would otherwise write into one journal as if each were the other's restart.
"""

from gravac.fold import JobFold
from gravac.protocol import Event, JobSpec
from gravac.traces import TraceRecord
from gravac_controller.api.problems import ApiError
from gravac_controller.jobs.noted import gap
from gravac_controller.live.projection import LiveJob

LEAST_SECONDS = 2.0
WINDOWS = 2.5
MOST_SECONDS = 30.0
"""Silence after which a run counts as dead: so many of its last windows, within these bounds; the upper one before
its first window, whose length nobody knows."""


def wait_seconds(live: LiveJob) -> float:
    """For how much longer the registered run counts as alive; 0 or less when its job may be taken over."""
    if live.ended:
        return 0.0
    silent = live.silent_seconds()
    if silent < 0:  # the clock was set back: nothing is known of how long
        return 0.0
    return patience_seconds(live.window_seconds) - silent


def patience_seconds(window_seconds: float | None) -> float:
    """How long a run may be silent that took ``window_seconds`` for its last window; null: it has reported none."""
    if window_seconds is None:
        return MOST_SECONDS
    return min(MOST_SECONDS, max(LEAST_SECONDS, WINDOWS * window_seconds))


def resume(fold: JobFold, spec: JobSpec) -> list[TraceRecord]:
    """Register a job again. Returns what to journal, which is nothing where nothing changed. Raises ApiError 409."""
    had, before, next_window = fold.spec, fold.decision, fold.next_window
    try:
        fold.resume(spec)
    except ValueError as error:
        raise ApiError(409, str(error), reason="conflict") from None
    same = spec.incarnation == had.incarnation
    moved = fold.decision != before or fold.next_window != next_window
    if same and not moved and _without_progress(spec) == _without_progress(had):
        return []
    kind = "the trainer found its controller again" if same else "the trainer started again"
    records: list[TraceRecord] = [spec, fold.decision]
    if fold.next_window > next_window:
        records.append(gap(next_window, fold.next_window))
    message = f"{kind}: {spec.world_size} ranks, next window {fold.next_window}"
    return [*records, Event(kind="restarted", window=None, message=message)]


def _without_progress(spec: JobSpec) -> JobSpec:
    """A spec without what changes between two registrations of one start."""
    return spec.model_copy(update={"policy_state": None, "first_window": 0})
