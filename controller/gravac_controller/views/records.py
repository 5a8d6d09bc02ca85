"""Views made of single records."""

from gravac.protocol import Decision, Event, Override, WindowReport
from gravac.signals import derived
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
        gain=derived.gain(report),
        gain_minimum=derived.gain_minimum(report),
        gain_candidate=derived.gain_candidate(report),
        backlog=derived.backlog(report),
        residual_ratio=derived.residual_ratio(report),
        step_seconds=derived.step_seconds(report),
        samples_per_second=derived.samples_per_second(report),
        useful_samples_per_second=derived.useful_samples_per_second(report),
        wire_cf=derived.wire_cf(report),
        global_batch_samples=derived.global_batch_samples(report),
        gradient_diversity=derived.gradient_diversity(report, world_size),
        batch_bound_samples=derived.batch_bound_samples(report, world_size),
    )


def decision_view(time: float, decision: Decision, before: Decision | None) -> DecisionView:
    """A decision and how it differs from the one before."""
    return DecisionView(
        time=time,
        decision=decision,
        changed=before is None or before.epoch != decision.epoch,
        cf_before=None if before is None else before.cf_candidate,
    )
