"""Messages of an event stream, by name.

``snapshot`` (Snapshot: first, and again whenever the reader has missed something; replace everything), ``window``
(WindowDelta), ``event`` (EventDelta), ``end`` (EndView), ``job`` (JobDelta). Their id is a journal line number, to be
sent back as ``Last-Event-ID``.
"""

from pydantic import Field

from gravac.protocol import Record, Text
from gravac_controller.views.models import DecisionView, EventView, JobView, WindowView


class Snapshot(Record):
    """First message of an event stream: all a page needs to draw."""

    job: JobView
    windows: tuple[WindowView, ...] = Field(description="The last 600, oldest first.")
    decisions: tuple[DecisionView, ...] = Field(description="The last 200, oldest first.")


class WindowDelta(Record):
    """Message ``window`` of the stream: a new window and what was decided on it."""

    window: WindowView
    decision: DecisionView
    job: JobView


class EventDelta(Record):
    """Message ``event`` of the stream: something besides windows happened."""

    event: EventView
    job: JobView


class EndView(Record):
    """Message ``end`` of the stream: the trainer closed its agent. The stream stays: a job may come back."""

    time: float
    message: Text
    job: JobView


class JobDelta(Record):
    """Message ``job`` of the stream: only the job's state changed, for instance to stale. Carries no id."""

    job: JobView
