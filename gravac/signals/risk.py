"""Risk: how much the compression of a window puts learning at risk, in one word and with reasons. Pure.

The measure is how much higher the loss is expected to be than that of dense training after equal steps: s · (1/η - 1),
with the statistical efficiency η (steps that dense training needs / steps that this training needs) and the slope
s = -d ln(loss) / d ln(step) of the training loss. Where the slope is not known, it is η alone. Both are estimates, not
measurements of accuracy. The limit of the residual ratio and the comparison of the gain with the policy's epsilon raise
the risk besides.
"""

from dataclasses import dataclass
from typing import Literal

from gravac.protocol import WindowReport
from gravac.signals import figures
from gravac.signals.efficiency import Efficiency
from gravac.wording import format_number, format_percent

Level = Literal["none", "low", "raised", "high", "unknown"]
"""none: everything is sent and the residual is empty. unknown: the window shows nothing to judge by."""

INCREASE_LOW, INCREASE_HIGH = 0.003, 0.08
"""Expected relative increase of the loss up to which the risk counts as low, and from which it counts as high."""
EFFICIENCY_LOW, EFFICIENCY_HIGH = 0.97, 0.90
"""Without a slope: statistical efficiency η from which the risk counts as low, and below which it counts as high."""
WITHOUT_MEMORY = "Without an error memory, nothing shows what this compression costs."
RESIDUAL_RAISED = 1.5
"""Norm of the residual relative to the gradient from which the risk counts as raised."""
RULE = (
    f"Low where the loss is expected to be at most {format_percent(INCREASE_LOW)} higher than dense training's "
    f"after equal steps, high from {format_percent(INCREASE_HIGH)}, raised between them. That is s · (1/η − 1): "
    "η is the statistical efficiency, estimated from the codec, the CF, the optimizer and the backlog, by simulated "
    "trainings; s is the slope of the logged training loss, −d ln(loss) / d ln(step). While no slope is known: low "
    f"from η = {EFFICIENCY_LOW:g}, raised below it, high below η = {EFFICIENCY_HIGH:g}. Raised also where the residual "
    f"ratio is {RESIDUAL_RAISED:g} or more, the gain is below ε, or a step was not finite."
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


def judge(
    report: WindowReport, epsilon: float, kind: str, compressor: str, loss_slope: float | None = None
) -> Risk:
    """Judge the risk of one window.

    Args:
        report: the window.
        epsilon: smallest gain at which the decision in force sends a CF, 0 to 1.
        kind: of the optimizer: sgd, adam, sign, other.
        compressor: the job's, which a level without a codec was sent with.
        loss_slope: at which the training loss falls (``gravac.signals.loss_slope``); None: not known.
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
    high: list[str] = []
    raised: list[str] = []
    low: list[str] = []
    level, learning = _learning(efficiency, loss_slope)
    {"low": low, "raised": raised, "high": high}[level].append(learning)
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
    gravest: Level = "high" if high else "raised" if raised else "low"
    return Risk(gravest, (*high, *raised, *low))


def _learning(
    efficiency: Efficiency, loss_slope: float | None
) -> tuple[Literal["low", "raised", "high"], str]:
    """Return the level by what learning loses, and the reason as a sentence."""
    likely = efficiency.likely
    if loss_slope:  # a loss that does not fall says nothing of what late steps cost
        increase = loss_slope * (1.0 / likely - 1.0)
        reason = (
            f"At equal steps the loss is expected to be {format_percent(increase)} higher: the plan keeps "
            f"{format_percent(likely)} of a step's progress."
        )
        return "high" if increase >= INCREASE_HIGH else "raised" if increase > INCREASE_LOW else "low", reason
    learning = f"The statistical efficiency is {likely:.3g}"
    if efficiency.low < efficiency.high:
        learning += f" ({efficiency.low:.3g} to {efficiency.high:.3g})"
    more = f"about {format_percent(1.0 / likely - 1.0)} more steps than dense"
    if likely < EFFICIENCY_HIGH:
        return "high", f"{learning}, below {EFFICIENCY_HIGH:g}: {more}."
    if likely < EFFICIENCY_LOW:
        return "raised", f"{learning}, between {EFFICIENCY_HIGH:g} and {EFFICIENCY_LOW:g}: {more}."
    return "low", f"{learning}, {EFFICIENCY_LOW:g} or more: {more}."


def _short(value: float) -> str:
    """Format with two significant digits: windows of one job differ in them."""
    return format_number(float(f"{value:.2g}"))
