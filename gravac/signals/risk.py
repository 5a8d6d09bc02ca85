"""Risk: how much the compression of a window puts learning at risk, in one word and with reasons. Pure.

The measure is information held back from the gradient, not accuracy. The limits of the backlog are geometric means of
values whose cost was measured (see ``RULE``). The limit of the residual ratio is the value that went with the first of
them in runs of the demo's language model. The gain is compared with the policy's epsilon.
"""

from dataclasses import dataclass
from typing import Literal

from gravac.protocol import WindowReport
from gravac.signals import figures
from gravac.wording import format_number

Level = Literal["none", "low", "raised", "high", "unknown"]
"""none: everything is sent and the residual is empty. unknown: the window has no gradient to judge by."""

BACKLOG_RAISED, BACKLOG_HIGH = 0.2, 0.7
"""Backlog τ from which the risk counts as raised, and as high."""
RESIDUAL_RAISED = 1.5
"""Norm of the residual relative to the gradient from which the risk counts as raised."""
RULE = (
    f"Low below τ = {BACKLOG_RAISED:g}, raised from there, high from τ = {BACKLOG_HIGH:g}. Raised also where the "
    f"residual ratio is {RESIDUAL_RAISED:g} or more, the gain is below ε, or a step was not finite. From 138 settings "
    "(small CNN, MLP and GRU; SGD with momentum; several codecs): the area under the loss curve grew by 4–5 % at "
    "τ = 0.1, by 6–20 % at 0.4, by 15–100 % at 1.1. Under Adam the order is the same; the cost is unknown."
)


@dataclass(frozen=True)
class Risk:
    """The risk of one window.

    Attributes:
        level: one word.
        because: reasons with their figures, the gravest first; never empty.
    """

    level: Level
    because: tuple[str, ...]


def judge(report: WindowReport, epsilon: float) -> Risk:
    """Judge the risk of one window.

    Args:
        report: the window.
        epsilon: smallest gain at which the decision in force sends a CF, 0 to 1.
    """
    backlog, residual, gain = figures.backlog(report), figures.residual_ratio(report), figures.gain(report)
    skipped = report.nonfinite_steps
    left_out = (
        f"{skipped} {'step was' if skipped == 1 else 'steps were'} left out: a gradient was not finite."
    )
    if backlog is None or residual is None or gain is None:
        return Risk("unknown", (left_out,) if skipped else ("This window shows no gradient to judge by.",))
    high, raised, low = [], [], []
    waiting = f"The backlog is {_short(backlog)} steps"
    if backlog >= BACKLOG_HIGH:
        high.append(f"{waiting}, {BACKLOG_HIGH:g} or more.")
    elif backlog >= BACKLOG_RAISED:
        raised.append(f"{waiting}, between {BACKLOG_RAISED:g} and {BACKLOG_HIGH:g}.")
    else:
        low.append(f"{waiting}, below {BACKLOG_RAISED:g}.")
    size = f"The residual is {_short(residual)} times the size of one gradient"
    if residual >= RESIDUAL_RAISED:
        raised.append(f"{size}, {RESIDUAL_RAISED:g} or more.")
    else:
        low.append(f"{size}, below {RESIDUAL_RAISED:g}.")
    if gain < epsilon:
        raised.append(f"The gain {_short(gain)} is below ε = {format_number(epsilon)}.")
    if skipped:
        raised.append(left_out)
    if not high and not raised and residual == 0.0 and gain >= 1.0:
        return Risk("none", ("Everything is sent; the residual is empty.",))
    level: Level = "high" if high else "raised" if raised else "low"
    return Risk(level, (*high, *raised, *low))


def _short(value: float) -> str:
    """Format with two significant digits: windows of one job differ in them."""
    return format_number(float(f"{value:.2g}"))
