"""Registration of a job: when a new start of the trainer may take over, and the records it adds to the journal.

Without this, two trainings under one job name would write into one journal as if each had restarted the other.
"""

from gravac.fold import JobFold
from gravac.protocol import Event, JobSpec
from gravac.traces import TraceRecord
from gravac.wording import shortened
from gravac_controller.errors import Conflict
from gravac_controller.live.projection import LiveJob

LEAST_SECONDS = 2.0
WINDOWS = 2.5
MOST_SECONDS = 30.0
"""A run counts as dead after a silence of ``WINDOWS`` times its last window, within these bounds. Before its first
window the upper bound holds, because the length of a window is not known yet."""


def wait_seconds(live: LiveJob) -> float:
    """Return how long the registered run still counts as alive, in seconds; 0 or less: its job may be taken over."""
    if live.presence.ended:
        return 0.0
    silent = live.presence.silent_seconds()
    if silent < 0:  # the clock was set back, so the length of the silence is unknown
        return 0.0
    return patience_seconds(live.window_seconds) - silent


def patience_seconds(window_seconds: float | None) -> float:
    """Return how long a run may be silent. ``window_seconds``: length of its last window; None before the first."""
    if window_seconds is None:
        return MOST_SECONDS
    return min(MOST_SECONDS, max(LEAST_SECONDS, WINDOWS * window_seconds))


def registered_event(spec: JobSpec, note: str) -> Event:
    """Return the event of a job's first registration. ``note``: what the trainer's log says of it."""
    message = (
        f"{spec.world_size} ranks, policy {spec.policy.name}, compressor {spec.compressor}, "
        f"{spec.window_steps} steps a window{note and f'. {note}'}"
    )
    return Event(kind="registered", window=None, message=shortened(message, 999))


def gap_event(expected: int, received: int) -> Event:
    """Return the event of windows that are missing before window ``received``."""
    return Event(kind="gap", window=received, message=f"windows {expected} to {received - 1} never arrived")


def resume(fold: JobFold, spec: JobSpec) -> tuple[list[TraceRecord], str]:
    """Register a known job again.

    Returns:
        The records to journal, none where nothing changed, and what the trainer's log should say.

    Raises:
        Conflict: The job cannot continue under this spec.
    """
    previous, decision, next_window = fold.spec, fold.decision, fold.next_window
    try:
        over = fold.resume(spec)
    except ValueError as error:
        raise Conflict(str(error), reason="conflict") from None
    same = spec.incarnation == previous.incarnation
    moved = fold.decision != decision or fold.next_window != next_window
    if same and not moved and _without_progress(spec) == _without_progress(previous):
        return [], ""
    kind = "the trainer found its controller again" if same else "the trainer started again"
    records: list[TraceRecord] = [spec, fold.decision]
    if fold.next_window > next_window:
        records.append(gap_event(next_window, fold.next_window))
    message = f"{kind}: {spec.world_size} ranks, next window {fold.next_window}{over and f'. {over}'}"
    return [*records, Event(kind="restarted", window=None, message=shortened(message, 999))], over


def _without_progress(spec: JobSpec) -> JobSpec:
    """Return the spec without the fields that change between two registrations of one start."""
    return spec.model_copy(update={"policy_state": None, "first_window": 0})
