"""The plans of a decision for people: which of them say something, in plain words, and why one is not in force."""

from gravac.protocol import Candidate, Decision, JobSpec
from gravac.signals.efficiency import ROUNDING
from gravac.signals.risk import accepted_loss
from gravac.wording import format_gain, format_percent, plan_in_words
from gravac_controller.views.models import PlanView

NEXT = 3
"""Plans that were not measured and are notable: the best ones by prediction."""


def plan_views(decision: Decision, spec: JobSpec) -> tuple[PlanView, ...]:
    """Return all plans of a decision: the one in force, those measured, then the others, each by useful throughput.

    Args:
        decision: With its candidates.
        spec: The job.
    """
    rows = decision.candidates
    chosen = next((row for row in rows if _in_force(row, decision)), None)
    measured = sorted((row for row in rows if row.window is not None and row is not chosen), key=_falling)
    untried = [row for row in rows if row.window is None and row is not chosen]
    allowed = sorted((row for row in untried if row.verdict != "too_strong"), key=_falling)
    first = [*([] if chosen is None else [chosen]), *measured, *allowed[:NEXT]]
    rest = [*allowed[NEXT:], *(row for row in untried if row.verdict == "too_strong")]
    return tuple(
        PlanView(
            **dict(row),
            words=plan_in_words(row.codec or spec.compressor, row.cf),
            wire_cf=spec.wire_cf(row.codec, row.cf),
            why=_why(row, chosen, decision, accepted_loss(spec.policy)),
            notable=place < len(first),
        )
        for place, row in enumerate([*first, *rest])
    )


def speed(row: Candidate) -> float | None:
    """Return samples a second of a plan: as predicted now, else as measured; None: unknown."""
    predicted = row.predicted_samples_per_second
    return row.samples_per_second if predicted is None else predicted


def useful(row: Candidate) -> float | None:
    """Return what the policy maximizes: as predicted now, else as measured; None: unknown."""
    predicted = row.predicted_samples_per_second
    if predicted is None:
        return row.useful_samples_per_second
    return None if row.efficiency is None else predicted * row.efficiency


def _in_force(row: Candidate, decision: Decision) -> bool:
    dense = row.cf == decision.cf_candidate == 1.0
    return dense or (row.cf, row.codec) == (decision.cf_candidate, decision.codec)


def _falling(row: Candidate) -> float:
    return -(useful(row) or 0.0)


def _why(row: Candidate, chosen: Candidate | None, decision: Decision, accepted: float) -> str:
    if row is chosen:
        return "being measured" if row.verdict == "trying" else "in force"
    if row.verdict == "too_strong":
        return _too_strong(row, decision.epsilon)
    if row.verdict == "untried" and row.efficiency is not None and 1.0 - row.efficiency > accepted + ROUNDING:
        lost = format_percent(1.0 - row.efficiency)
        return f"is expected to lose {lost} of the progress of a step, too much unless a trial shows less"
    mine, other = useful(row), None if chosen is None else useful(chosen)
    if mine is None or not other:
        return "not measured" if row.window is None else "measured"
    how = "measured" if row.predicted_samples_per_second is None else "predicted"
    return f"{how}: {mine / other:.2f} times the useful throughput of the one in force"


def _too_strong(row: Candidate, epsilon: float) -> str:
    if row.efficiency is not None:
        loses = "loses" if row.window is not None else "is expected to lose"
        return f"{loses} {format_percent(1.0 - row.efficiency)} of the progress of a step, too much"
    if row.gain is not None and row.gain < epsilon:
        return f"its gain of {format_gain(row.gain)} is below ε {format_gain(epsilon)}"
    return "too strong"
