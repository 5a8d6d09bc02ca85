"""How long a dense step of a job takes: the baseline that plans are compared with."""

import statistics
from collections import deque

from gravac.policies.windows import dense_baseline
from gravac.protocol import Decision, JobSpec, WindowReport
from gravac.signals import figures

BASELINE_MEDIANS = PREDICTIONS = 32


class DenseStep:
    """Seconds of a dense step, as windows measured or predicted them and as the policy believes them.

    Attributes:
        medians: Median seconds of measured steps, of the last windows that had any.
        exposed: Median seconds that such steps waited for the network.
        predicted: Seconds as predicted from what compressed steps showed.
    """

    def __init__(self) -> None:
        self.medians: deque[float] = deque(maxlen=BASELINE_MEDIANS)
        self.exposed: deque[float] = deque(maxlen=BASELINE_MEDIANS)
        self.predicted: deque[float] = deque(maxlen=PREDICTIONS)
        self._inherited = False  # measured by an earlier start

    def restore(
        self, medians: tuple[float, ...], exposed: tuple[float, ...], predicted: tuple[float, ...]
    ) -> None:
        """Continue from what the parts of a journal before this one measured."""
        self.medians.extend(medians)
        self.exposed.extend(exposed)
        self.predicted.extend(predicted)

    def begin_start(self, comparable: bool) -> None:
        """Begin again. What was measured counts until it is measured again, if the start is ``comparable``."""
        self.predicted.clear()
        self._inherited = comparable
        if not comparable:
            self.medians.clear()
            self.exposed.clear()

    def add(self, report: WindowReport, spec: JobSpec, decision: Decision) -> None:
        """Add a window, which ran under this decision."""
        if (level := dense_baseline(report, decision)) is not None:
            if level.step_seconds_median is not None:
                if self._inherited:
                    self._inherited = False
                    self.medians.clear()
                    self.exposed.clear()
                self.medians.append(level.step_seconds_median)
            if level.exposed_seconds_median is not None:
                self.exposed.append(level.exposed_seconds_median)
        predicted = figures.predicted_dense_step_seconds(report, spec.plans)
        if predicted is not None:
            self.predicted.append(predicted)

    def measured_seconds(self, decision: Decision | None, latest: WindowReport | None) -> float | None:
        """Return the step as measured on today's network, in seconds; None where it was not.

        Of a policy that does not follow the network it is the median of the dense steps of the warm-up windows.
        """
        now = _believed(decision, latest)
        return _median(self.medians) if now is None else now[0]

    def predicted_seconds(self, decision: Decision | None, latest: WindowReport | None) -> float | None:
        """Return the step as predicted on today's network, in seconds; None while unknown, or if measured."""
        now = _believed(decision, latest)
        return _median(self.predicted) if now is None else now[1]

    @property
    def exposed_seconds(self) -> float | None:
        """Return the median network wait of a dense step in the warm-up, in seconds; None while unknown."""
        return _median(self.exposed)


def comparable(before: JobSpec, spec: JobSpec) -> bool:
    """Return whether a dense step takes as long in a start as in the one before, as far as one can know."""
    one, other = (
        (
            it.world_size,
            it.link,
            it.model,
            it.environment.backend,
            it.environment.device,
            it.environment.platform,
        )
        for it in (before, spec)
    )
    return one == other


def _believed(
    decision: Decision | None, latest: WindowReport | None
) -> tuple[float | None, float | None] | None:
    """Return the dense step on today's network as the policy believes it: measured, and predicted.

    None where the policy says nothing of dense steps.
    """
    rows = () if decision is None else decision.candidates
    row = next((row for row in rows if row.cf == 1.0), None)
    if row is None or latest is None or row.efficiency is None:  # another policy predicts no steps
        return None
    steps = figures.steps(latest)
    samples = figures.ratio(latest.samples or steps, steps)
    if samples is None or (row.predicted_samples_per_second is None and row.samples_per_second is None):
        return None
    if row.predicted_samples_per_second is not None:
        return None, figures.ratio(samples, row.predicted_samples_per_second)
    return figures.ratio(samples, row.samples_per_second or 0.0), None


def _median(seconds: deque[float]) -> float | None:
    return statistics.median(seconds) if seconds else None
