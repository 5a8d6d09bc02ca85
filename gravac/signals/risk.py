"""How much the compression of a window puts learning at risk: one word, and why. Pure.

What is measured is information held back from the gradient, not accuracy. The limits of the backlog lie in the
geometric middle between values whose cost is known (``RULE`` says what and from where). The residual ratio's is where
it stood at the first of them in runs of the demo's language model. The gain is judged by the policy's own epsilon.
"""

from dataclasses import dataclass
from typing import Literal

from gravac.protocol import WindowReport
from gravac.signals import derived
from gravac.wording import number

Level = Literal["none", "low", "raised", "high", "unknown"]
"""none: everything is sent and nothing is owed. unknown: the window shows nothing to judge by."""

BACKLOG_RAISED, BACKLOG_HIGH = 0.2, 0.7
"""Owed steps tau from which the risk counts as raised, and as high."""
RESIDUAL_RAISED = 1.5
"""Residual norm per gradient norm from which it counts as raised."""
RULE = (
    f"Low below τ = {BACKLOG_RAISED:g}, raised from there, high from τ = {BACKLOG_HIGH:g}. Raised also where the "
    f"residual ratio is {RESIDUAL_RAISED:g} or more, the gain is below ε, or a step was not finite. From 138 settings "
    "(small CNN, MLP and GRU; SGD with momentum; several codecs): the area under the loss curve grew by 4–5 % at "
    "τ = 0.1, by 6–20 % at 0.4, by 15–100 % at 1.1. Under Adam the order is the same, the cost is not known."
)


@dataclass(frozen=True)
class Risk:
    """``because``: sentences with their figures, the gravest first; never empty."""

    level: Level
    because: tuple[str, ...]


def judge(report: WindowReport, epsilon: float) -> Risk:
    """The risk of one window. ``epsilon``: the smallest gain that the decision in force wants kept, 0 to 1."""
    owed, residual, gain = derived.backlog(report), derived.residual_ratio(report), derived.gain(report)
    lost = report.nonfinite_steps
    left_out = f"{lost} {'step was' if lost == 1 else 'steps were'} left out: a gradient was not finite."
    if owed is None or residual is None or gain is None:
        return Risk("unknown", (left_out,) if lost else ("This window shows no gradient to judge by.",))
    high, raised, low = [], [], []
    steps = f"{_short(owed)} steps of progress are held back"
    if owed >= BACKLOG_HIGH:
        high.append(f"{steps}, {BACKLOG_HIGH:g} or more.")
    elif owed >= BACKLOG_RAISED:
        raised.append(f"{steps}, between {BACKLOG_RAISED:g} and {BACKLOG_HIGH:g}.")
    else:
        low.append(f"{steps}, below {BACKLOG_RAISED:g}.")
    size = f"What is owed is {_short(residual)} times the size of one gradient"
    if residual >= RESIDUAL_RAISED:
        raised.append(f"{size}, {RESIDUAL_RAISED:g} or more.")
    else:
        low.append(f"{size}, below {RESIDUAL_RAISED:g}.")
    if gain < epsilon:
        raised.append(f"The gain {_short(gain)} is below ε = {number(epsilon)}.")
    if lost:
        raised.append(left_out)
    if not high and not raised and residual == 0.0 and gain >= 1.0:
        return Risk("none", ("Everything is sent, nothing is owed.",))
    level: Level = "high" if high else "raised" if raised else "low"
    return Risk(level, (*high, *raised, *low))


def _short(value: float) -> str:
    """Two digits that count: windows of the same job differ in them."""
    return number(float(f"{value:.2g}"))
