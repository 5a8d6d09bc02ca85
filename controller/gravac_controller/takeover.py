"""When another start of a trainer may take a job over: once the registered one has ended, or has been silent.

Two trainings started under one job name would otherwise write into one journal as if each were the other's restart.
"""

from gravac_controller.live import LiveJob

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
