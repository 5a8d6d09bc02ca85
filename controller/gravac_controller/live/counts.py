"""Sums and counts of a job: of the present start of its trainer, and of all starts."""

from collections import Counter

from gravac.protocol import JobSpec, WindowReport
from gravac.signals import figures
from gravac_controller.views.models import Totals


class Counts:
    """What a job adds up.

    Attributes:
        totals: Totals of the present start.
        windows: Windows of all starts.
        steps: Steps of all starts.
        missing_windows: Windows of all starts that were never reported.
        decisions: Decisions of all starts.
        events_by_kind: Events of all starts.
    """

    def __init__(self) -> None:
        self.begin_start()
        self.windows = self.steps = self.missing_windows = self.decisions = 0
        self.events_by_kind: Counter[str] = Counter()

    def begin_start(self) -> None:
        """Begin the sums of a start again."""
        self.totals = Totals()

    def restore(
        self,
        totals: Totals,
        windows: int,
        steps: int,
        missing_windows: int,
        decisions: int,
        events_by_kind: dict[str, int],
    ) -> None:
        """Continue from what the parts of a journal before this one added up."""
        self.totals, self.windows, self.steps = totals, windows, steps
        self.missing_windows, self.decisions = missing_windows, decisions
        self.events_by_kind.update(events_by_kind)

    def add(self, report: WindowReport, spec: JobSpec, before: WindowReport | None) -> None:
        """Add a window.

        Args:
            report: The window.
            spec: The job.
            before: The window before it in this part of the journal; None: there is none.
        """
        expected = spec.first_window if before is None else before.window + 1
        self.missing_windows += max(0, report.window - expected)
        self.windows, self.steps = self.windows + 1, self.steps + figures.steps(report)
        old, inside = self.totals, report.inside
        self.totals = Totals(
            windows=old.windows + 1,
            steps=old.steps + figures.steps(report),
            samples=old.samples + report.samples,
            seconds=old.seconds + report.seconds,
            paused_seconds=old.paused_seconds + figures.paused_seconds(report),
            dense_bytes=old.dense_bytes + report.dense_bytes,
            payload_bytes=old.payload_bytes + report.payload_bytes,
            nonfinite_steps=old.nonfinite_steps + report.nonfinite_steps,
            failed_steps=old.failed_steps + report.failed_steps,
            exposed_seconds=old.exposed_seconds + report.phases.communicate,
            inside_bytes=old.inside_bytes + (0 if inside is None else inside.sent_bytes),
            inside_seconds=old.inside_seconds + (0.0 if inside is None else inside.seconds),
        )
