"""Risk: how much the compression of a window puts learning at risk, in one word and with reasons. Pure.

The measure is the statistical efficiency η: steps that dense training needs / steps that this training needs. It is
estimated from gradients, not from accuracy. The limit of the residual ratio and the comparison of the gain with the
policy's epsilon raise the risk besides.
"""

from dataclasses import dataclass
from typing import Literal

from gravac.protocol import WindowReport
from gravac.signals import figures
from gravac.wording import format_number, format_percent

Level = Literal["none", "low", "raised", "high", "unknown"]
"""none: everything is sent and the residual is empty. unknown: the window shows nothing to judge by."""

EFFICIENCY_LOW, EFFICIENCY_HIGH = 0.97, 0.90
"""Statistical efficiency η from which the risk counts as low, and below which it counts as high."""
WITHOUT_MEMORY = "Without an error memory, nothing shows what this compression costs."
RESIDUAL_RAISED = 1.5
"""Norm of the residual relative to the gradient from which the risk counts as raised."""
RULE = (
    f"Low from a statistical efficiency of η = {EFFICIENCY_LOW:g}, raised below it, high below η = "
    f"{EFFICIENCY_HIGH:g}. Raised also where the residual ratio is {RESIDUAL_RAISED:g} or more, the gain is below ε, "
    "or a step was not finite. η is estimated from the codec, the CF, the optimizer and the backlog, by simulated "
    "trainings: at η = 0.9, training needs a ninth more steps than dense training to the same loss."
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


def judge(report: WindowReport, epsilon: float, kind: str, compressor: str) -> Risk:
    """Judge the risk of one window.

    Args:
        report: the window.
        epsilon: smallest gain at which the decision in force sends a CF, 0 to 1.
        kind: of the optimizer: sgd, adam, sign, other.
        compressor: the job's, which a level without a codec was sent with.
    """
    efficiency = figures.efficiency(report, kind, compressor)
    residual, gain = figures.residual_ratio(report), figures.gain(report)
    skipped = report.nonfinite_steps
    left_out = (
        f"{skipped} {'step was' if skipped == 1 else 'steps were'} left out: a gradient was not finite."
    )
    if efficiency is None or residual is None or gain is None:
        if skipped:
            return Risk("unknown", (left_out,))
        forgets = efficiency is None and gain is not None
        return Risk("unknown", (WITHOUT_MEMORY if forgets else "This window shows no gradient to judge by.",))
    high, raised, low = [], [], []
    likely = efficiency.likely
    more = f"about {format_percent(1.0 / likely - 1.0)} more steps than dense"
    if likely > 0.9995:
        more = "as many steps as dense"
    learning = f"The statistical efficiency is {likely:.3g}"
    if efficiency.low < efficiency.high:
        learning += f" ({efficiency.low:.3g} to {efficiency.high:.3g})"
    if likely < EFFICIENCY_HIGH:
        high.append(f"{learning}, below {EFFICIENCY_HIGH:g}: {more}.")
    elif likely < EFFICIENCY_LOW:
        raised.append(f"{learning}, between {EFFICIENCY_HIGH:g} and {EFFICIENCY_LOW:g}: {more}.")
    else:
        low.append(f"{learning}, {EFFICIENCY_LOW:g} or more: {more}.")
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
    if kind == "other":
        low.append("The kind of the optimizer is not known, so it counts as one like Adam.")
    level: Level = "high" if high else "raised" if raised else "low"
    return Risk(level, (*high, *raised, *low))


def _short(value: float) -> str:
    """Format with two significant digits: windows of one job differ in them."""
    return format_number(float(f"{value:.2g}"))
