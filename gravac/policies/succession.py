"""From one decision to the next: when the epoch grows, and which steps of a window count for a decision."""

from gravac.protocol import Candidate, Decision, LevelSums, Phase, Rule, WindowReport


def follow(
    previous: Decision,
    report: WindowReport,
    rule: Rule,
    reason: str,
    *,
    phase: Phase | None = None,
    minimum: float | None = None,
    candidate: float | None = None,
    candidates: tuple[Candidate, ...] | None = None,
    epsilon: float | None = None,
) -> Decision:
    """The decision after ``previous``, made at the end of ``report``; what is not given stays as it was.

    The epoch grows by one exactly when phase, minimum or candidate change: it names a way of sending, so
    steps measured under equal epochs may be compared.
    """
    new_phase = previous.phase if phase is None else phase
    new_minimum = previous.cf_minimum if minimum is None else minimum
    new_candidate = previous.cf_candidate if candidate is None else candidate
    changed = (new_phase, new_minimum, new_candidate) != (
        previous.phase,
        previous.cf_minimum,
        previous.cf_candidate,
    )
    return Decision(
        window=report.window,
        epoch=previous.epoch + 1 if changed else previous.epoch,
        phase=new_phase,
        cf_minimum=new_minimum,
        cf_candidate=new_candidate,
        epsilon=previous.epsilon if epsilon is None else epsilon,
        rule=rule,
        reason=reason,
        candidates=previous.candidates if candidates is None else candidates,
    )


def counting_levels(report: WindowReport, decision: Decision) -> tuple[LevelSums, ...]:
    """Levels of the window that ran under ``decision``; none when the ranks were in fallback."""
    if report.phase == "fallback":
        return ()
    allowed = (1.0, decision.cf_minimum, decision.cf_candidate)
    return tuple(
        level
        for level in report.levels
        if level.epoch == decision.epoch and level.steps > 0 and level.cf in allowed
    )


def unusable(previous: Decision, report: WindowReport) -> Decision:
    """Same decision again, because nothing in the window was measured under it."""
    if report.phase == "fallback":
        why = "the ranks ran dense in fallback"
    else:
        why = f"none of its steps ran under decision {previous.epoch}"
    return follow(previous, report, "unusable", f"Window {report.window} says nothing here: {why}.")
