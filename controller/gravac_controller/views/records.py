"""Views made of single records."""

from gravac.protocol import Decision, Event, Override, WindowReport
from gravac.signals import figures
from gravac_controller.views.models import DecisionView, WindowView


def told(order: Override) -> Event:
    """An operator's order as an event, for people."""
    what = {
        "pin": f"pinned CF {order.cf or 1:g}",
        "dense": "ordered dense",
        "pause": "paused exploring",
        "resume": "gave the decision back to the policy",
    }[order.action]
    note = f": {order.note}" if order.note else ""
    return Event(kind="override", window=None, message=f"{order.actor} {what}, from the next window on{note}")


def window_view(time: float, report: WindowReport, world_size: int) -> WindowView:
    """A report with all that follows from it, but without its steps one by one: those stay in the trace.

    ``world_size``: ranks of the incarnation that sent it.
    """
    if report.steps is not None:
        report = report.model_copy(update={"steps": None})
    return WindowView(
        time=time,
        report=report,
        gain=figures.gain(report),
        gain_minimum=figures.gain_minimum(report),
        gain_candidate=figures.gain_candidate(report),
        backlog=figures.backlog(report),
        residual_ratio=figures.residual_ratio(report),
        step_seconds=figures.step_seconds(report),
        samples_per_second=figures.samples_per_second(report),
        useful_samples_per_second=figures.useful_samples_per_second(report),
        wire_cf=figures.wire_cf(report),
        global_batch_samples=figures.global_batch_samples(report),
        gradient_diversity=figures.gradient_diversity(report, world_size),
        batch_bound_samples=figures.batch_bound_samples(report, world_size),
    )


def decision_view(time: float, decision: Decision, before: Decision | None) -> DecisionView:
    """A decision and how it differs from the one before."""
    return DecisionView(
        time=time,
        decision=decision,
        changed=before is None or before.epoch != decision.epoch,
        cf_before=None if before is None else before.cf_candidate,
    )
