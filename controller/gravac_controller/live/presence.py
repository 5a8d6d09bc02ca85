"""Whether a job's trainer is there, and what operators ordered."""

from collections import deque
from time import time as unix_now

from gravac.protocol import Event, Override
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.models import State

KEPT_INCARNATIONS = 64
STALE_WINDOWS = 5
MAX_SECONDS = 1e9
"""The largest value that a field of seconds may have."""


class Presence:
    """The time at which a job was heard of, and whether it has ended.

    Attributes:
        started_time: Unix time of the first registration.
        reported_time: Unix time of the last window.
        decided_time: Unix time of the last decision.
        ended: Whether the present start has ended.
        earlier_incarnations: Starts of the trainer that another one has replaced, as far as this part of the journal
            shows.
    """

    def __init__(self, settings: ControllerSettings) -> None:
        self._stale_seconds = settings.limits.stale_seconds
        self.started_time = self.decided_time = 0.0
        self.reported_time: float | None = None
        self.ended = False
        self.earlier_incarnations: deque[str] = deque(maxlen=KEPT_INCARNATIONS)

    def state(self, window_seconds: float) -> State:
        """Return whether the job runs, has been silent for too long, or has ended."""
        if self.ended:
            return "ended"
        last = self.started_time if self.reported_time is None else self.reported_time
        return "stale" if unix_now() - last > self.stale_seconds(window_seconds) else "running"

    def stale_seconds(self, window_seconds: float) -> float:
        """Return the seconds without a report after which the job is stale.

        Args:
            window_seconds: Seconds of the last window; 0: there is none.
        """
        return min(max(self._stale_seconds, STALE_WINDOWS * window_seconds), MAX_SECONDS)

    def silent_seconds(self) -> float:
        """Return the seconds since the last registration or window; a decision follows each."""
        return unix_now() - self.decided_time


class Orders:
    """What operators ordered.

    Attributes:
        enabled: Whether operators may steer over HTTP.
        in_force: The order that the fold applies; None while the policy decides.
        pending: The order that the decision on the next window will apply.
    """

    def __init__(self, settings: ControllerSettings) -> None:
        self.enabled = settings.control_token is not None
        self.in_force: Override | None = None
        self.pending: Override | None = None

    def end(self) -> None:
        """End all orders: an order ends with its start of the trainer."""
        self.in_force = self.pending = None


def order_event(order: Override) -> Event:
    """Return an operator's order as an event for people."""
    action = {
        "pin": f"pinned CF {order.cf or 1:g}{'' if order.codec is None else f' of {order.codec}'}",
        "dense": "ordered dense",
        "pause": "paused exploring",
        "resume": "gave the decision back to the policy",
    }[order.action]
    note = f": {order.note}" if order.note else ""
    return Event(
        kind="override", window=None, message=f"{order.actor} {action}, from the next window on{note}"
    )
