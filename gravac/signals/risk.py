"""Risk: how much the compression of a job puts learning at risk, in one word and with reasons. Pure.

The measure is the statistical efficiency η (steps that dense training needs / steps that this training needs), next to
the loss of it that the user accepted. Where the loss of η is larger, it is high by how much higher the loss is expected
to be than that of dense training after equal steps: s · (1/η - 1), with the slope s = -d ln(loss) / d ln(step) of the
training loss. Where the slope is not known, by η alone. Both are estimates, not measurements of accuracy. The limit of
the residual ratio and the comparison of the gain with the policy's epsilon raise the risk besides.
"""

from dataclasses import dataclass

from gravac.findings import Finding, Severity
from gravac.protocol import LearningRate, PolicySpec, Record, WindowReport
from gravac.signals import figures
from gravac.signals.efficiency import ROUNDING, SIMULATED_RANKS, UNSIMULATED, Efficiency
from gravac.wording import format_number, format_percent

ACCEPTED = 0.02
"""Loss of η up to which the risk counts as low, where the policy has no ``bound``; also the default of that.
[share; chosen]"""
INCREASE_HIGH = 0.08
"""Expected relative increase of the loss from which the risk counts as high. [share; chosen]"""
EFFICIENCY_HIGH = 0.90
"""Statistical efficiency η below which the risk counts as high where no slope is known. [share; chosen]"""
RESIDUAL_RAISED = 1.5
"""Norm of the residual relative to the gradient from which the risk counts as raised. [times; chosen]"""
SLACK = 0.25
"""Share by which a figure must pass its limit to move the light away from the level that it shows. A policy with a
bound leaves a plan by the same share. [share; chosen]"""
WITHOUT_MEMORY = "Without an error memory, nothing shows what this compression costs"
NEVER_SIMULATED = "No optimizer of this kind was simulated, so nobody knows what compression costs here"
RULE = (
    "Low where the plan loses no more of the statistical efficiency η than you accept: the bound of the policy, or "
    f"{format_percent(ACCEPTED)}. η is estimated from the codec, the CF, the optimizer and the backlog, by simulated "
    "trainings. Raised where it loses more; high where the loss is then expected to be "
    f"{format_percent(INCREASE_HIGH)} higher than dense training's after equal steps. That is s · (1/η − 1), with the "
    "slope s of the logged training loss, −d ln(loss) / d ln(step). While no slope is known: high below η = "
    f"{EFFICIENCY_HIGH:g}. Raised also where the residual is {RESIDUAL_RAISED:g} times one gradient or more, at the "
    "largest learning rate so far, the gain is below ε, or a step was not finite. A level stays until two windows in "
    "a row, by figures that are "
    f"{format_percent(SLACK)} past their limits, say otherwise."
)
_ORDER: tuple[Severity, ...] = ("none", "low", "raised", "high")


@dataclass(frozen=True)
class Risk:
    """The risk of one window.

    Attributes:
        level: one word. none: everything is sent and the residual is empty. unknown: the window shows nothing to judge
            by.
        findings: reasons with their figures, the gravest first; never empty.
    """

    level: Severity
    findings: tuple[Finding, ...]

    @property
    def because(self) -> tuple[str, ...]:
        """The reasons in a sentence each."""
        return tuple(finding.sentence for finding in self.findings)


class RiskState(Record):
    """The state of a ``RiskLight``: the level that it shows, that of the last window alone, and the largest learning
    rate that a residual followed; null: not known."""

    shown: Severity
    last: Severity
    largest_rate: LearningRate | None = None


class RiskLight:
    """The risk of a job, window by window, without flapping.

    A level is left when two windows in a row are beyond it on the same side. A lost step raises it at once, and a
    window that sends everything, or shows nothing, is shown as it is.

    Args:
        state: to continue with; None: none.
    """

    def __init__(self, state: RiskState | None = None) -> None:
        self.state = state
        self.risk: Risk | None = None

    def add(
        self,
        report: WindowReport,
        epsilon: float,
        kind: str,
        compressor: str,
        accepted: float = ACCEPTED,
        loss_slope: float | None = None,
        ranks: int = SIMULATED_RANKS,
        believed: Efficiency | None = None,
    ) -> None:
        """Add a window; the arguments are those of ``judge``."""
        before = self.state
        last_shown = None if before is None else before.shown
        rates = (None if before is None else before.largest_rate, report.residual_rate)
        largest = max((rate for rate in rates if rate is not None), default=None)
        found = judge(
            report, epsilon, kind, compressor, accepted, loss_slope, last_shown, ranks, believed, largest
        )
        shown = found.level
        if before is not None and {before.shown, before.last, shown} <= {"low", "raised", "high"}:
            last, now = sorted((_ORDER.index(before.last), _ORDER.index(shown)))
            shown = _ORDER[min(max(_ORDER.index(before.shown), last), now)]
        if shown == "low" and report.nonfinite_steps:
            shown = "raised"
        self.state = RiskState(shown=shown, last=found.level, largest_rate=largest)
        alone = _found(
            "one window", shown, f"The last window alone says {found.level}, which may be an accident"
        )
        self.risk = Risk(shown, found.findings if shown == found.level else (alone, *found.findings))


def accepted_loss(policy: PolicySpec) -> float:
    """Return the loss of η that the user accepted: the ``bound`` of the policy, or the default."""
    bound = policy.settings.get("bound")
    return bound if isinstance(bound, float) and 0.0 <= bound <= 1.0 else ACCEPTED


def judge(
    report: WindowReport,
    epsilon: float,
    kind: str,
    compressor: str,
    accepted: float = ACCEPTED,
    loss_slope: float | None = None,
    shown: Severity | None = None,
    ranks: int = SIMULATED_RANKS,
    believed: Efficiency | None = None,
    largest_rate: float | None = None,
) -> Risk:
    """Judge the risk of one window.

    Args:
        report: the window.
        epsilon: smallest gain at which the decision in force sends a CF, 0 to 1.
        kind: Kind of the optimizer, as in ``gravac.protocol.OptimizerSpec``.
        compressor: the job's, which a level without a codec was sent with.
        accepted: loss of η that the user accepts, 0 to 1.
        loss_slope: at which the training loss falls (``gravac.signals.loss_slope``); None: not known.
        shown: level that the light shows, which it keeps more easily; None: none.
        ranks: world size.
        believed: η as the policy believes it after the window; None: by the window alone.
        largest_rate: largest learning rate that the residual followed so far; None: not known.
    """
    efficiency = figures.efficiency(report, kind, compressor, ranks) if believed is None else believed
    residual, gain = figures.residual_ratio(report), figures.gain(report)
    skipped = report.nonfinite_steps
    left_out = _found(
        "steps left out",
        "raised",
        f"{skipped} {'step was' if skipped == 1 else 'steps were'} left out: a gradient was not finite",
    )
    if efficiency is None or residual is None or gain is None:
        if skipped:
            return Risk("unknown", (left_out,))
        unseen = "This window shows no gradient to judge by"
        if gain is not None and kind in UNSIMULATED:
            unseen = NEVER_SIMULATED
        elif gain is not None and efficiency is None:
            unseen = WITHOUT_MEMORY
        return Risk("unknown", (_found("not judged", "unknown", unseen),))
    # A policy holds a plan while it cannot be told from one within the bound.
    doubt = 0.0 if believed is None else believed.high - believed.likely
    findings = [_learning(efficiency, accepted, loss_slope, shown, doubt)]
    alarmed = shown in ("raised", "high")
    size = f"The residual is {_short(residual)} times the size of one gradient"
    if report.residual_rate and largest_rate and report.residual_rate < largest_rate:
        # It grows as the rate falls, to have the effect that it would have had.
        smaller = largest_rate / report.residual_rate
        residual /= smaller
        size += f", and {_short(residual)} times at the largest learning rate, which was {_short(smaller)} times this"
    if residual >= RESIDUAL_RAISED / (1.0 + SLACK * alarmed):
        limit = f", {RESIDUAL_RAISED:g} or more" * (residual >= RESIDUAL_RAISED)
        findings.append(_found("residual", "raised", f"{size}{limit}"))
    else:
        findings.append(_found("residual", "low", f"{size}, below {RESIDUAL_RAISED:g}"))
    if gain < epsilon + SLACK * alarmed * min(epsilon, 1.0 - epsilon):
        near = "below" if gain < epsilon else "hardly above"
        findings.append(
            _found("gain", "raised", f"The gain {_short(gain)} is {near} ε = {format_number(epsilon)}")
        )
    if skipped:
        findings.append(left_out)
    findings.sort(key=lambda finding: -_ORDER.index(finding.severity))
    gravest = findings[0].severity
    if gravest == "low" and residual == 0.0 and gain >= 1.0:
        return Risk("none", (_found("all sent", "none", "Everything is sent; the residual is empty"),))
    if kind == "unknown":
        text = "The kind of the optimizer is not known, so it counts as one like Adam"
        findings.append(_found("unknown optimizer", "low", text))
    return Risk(gravest, tuple(findings))


def _found(kind: str, severity: Severity, text: str) -> Finding:
    return Finding(kind=kind, severity=severity, evidence=(text,))


def _learning(
    efficiency: Efficiency, accepted: float, loss_slope: float | None, shown: Severity | None, doubt: float
) -> Finding:
    """Return what learning loses."""
    likely = efficiency.likely
    lost = 1.0 - likely
    kept = f"the plan keeps {format_percent(likely)} of a step's progress"
    if loss_slope:  # a loss that does not fall says nothing of what late steps cost
        increase, limit = loss_slope * (1.0 / likely - 1.0), INCREASE_HIGH
        reason = f"At equal steps the loss is expected to be {format_percent(increase)} higher: {kept}"
    else:
        increase, limit = lost, 1.0 - EFFICIENCY_HIGH
        reason = f"The statistical efficiency is {likely:.3g}"
        if efficiency.low < efficiency.high:
            reason += f" ({efficiency.low:.3g} to {efficiency.high:.3g})"
        reason += f", about {format_percent(1.0 / likely - 1.0)} more steps than dense"
    bound = f"{format_percent(accepted)} that you accept"
    if lost - doubt <= accepted * (1.0 + SLACK * (shown in ("none", "low"))) + ROUNDING:
        near = "within" if lost <= accepted + ROUNDING else "about"
        return _found("learning", "low", f"{reason}, {near} the loss of {bound}")
    high = increase >= limit / (1.0 + SLACK * (shown == "high"))
    return _found("learning", "high" if high else "raised", f"{reason}, more than the loss of {bound}")


def _short(value: float) -> str:
    """Format with two significant digits: windows of one job differ in them."""
    return format_number(float(f"{value:.2g}"))
