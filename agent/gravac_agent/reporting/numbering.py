"""Numbers of windows: a trainer that begins again counts from 0, and its job goes on."""

from typing import TypeVar

from gravac.protocol import End, Event, JobSpec, WindowReport

Numbered = TypeVar("Numbered", WindowReport, Event, WindowReport | Event | End)


class Numbering:
    """Counts the windows of a job at a controller, where other runs of the job may have reported, too.

    Args:
        first_window: Number of the next window, as the trainer counts.
    """

    def __init__(self, first_window: int) -> None:
        self._offset: int | None = None  # known after the first registration
        self._next_reported = first_window  # as the trainer counts
        self._next_decided = 0  # as the job counts

    @property
    def offset(self) -> int:
        """Number of a window in the job, less its number in the trainer; 0 while that is not known."""
        return self._offset or 0

    def restart(self, first_window: int) -> None:
        """Count from a checkpoint's window. Where the job stands follows from the next registration."""
        self._offset, self._next_reported = None, first_window

    def report(self, window: int) -> None:
        """Note that the trainer reported a window."""
        self._next_reported = window + 1

    def decide(self, window: int) -> None:
        """Note that a window of the job was decided."""
        self._next_decided = window + 1

    def register(self, next_window: int, spec: JobSpec, queued: int | None) -> None:
        """Take in the answer to a registration.

        Args:
            next_window: Number of the job's next window.
            spec: The job as it was registered.
            queued: Number of the oldest window that waits, as the trainer counts; None: none waits.
        """
        self._next_decided = next_window
        if self._offset is None:
            self._offset = next_window - spec.first_window
        elif queued is not None and next_window > queued + self._offset + 1:
            # Another run of this name reported meanwhile: ours were never accepted, so they are numbered after its.
            self._offset = next_window - queued

    def most_decided(self, next_window: int, spec: JobSpec) -> int | None:
        """Return the most windows that can have been decided since the last accepted decision; None: any number.

        The first registration cannot know how far the job went before. A later one can: no decision follows a window
        that was not reported, whatever ``next_window`` says. Where another run of this name reported meanwhile, its
        epochs become valid as soon as that many windows were reported.
        """
        if self._offset is not None:
            return max(0, min(next_window, self._next_reported + self._offset) - self._next_decided)
        if spec.policy_state is None:
            return None
        # Each start since the checkpoint may have ended an order, which takes a window to begin.
        return 2 * max(0, next_window - spec.first_window) + 1


def renumbered(record: Numbered, job: str, offset: int) -> Numbered:
    """Return the record with the job's name and window number.

    A restarted trainer counts from 0, and its job continues. An end stays as it is: the journal's writer counts the
    whole job.
    """
    changes: dict[str, object] = {}
    if isinstance(record, WindowReport) and record.job != job:
        changes["job"] = job
    if not isinstance(record, End) and offset and record.window is not None:
        changes["window"] = record.window + offset
    return record.model_copy(update=changes) if changes else record
