"""Puts a choice of the auto policy into words: the rule that fired, and one sentence with its evidence."""

from gravac.policies.auto.beliefs import Belief, Times
from gravac.policies.auto.choose import PATIENCE, NextPlan
from gravac.policies.auto.table import PlanTable
from gravac.policies.base import DENSE, Plan
from gravac.protocol import KnownRule
from gravac.signals import efficiency
from gravac.wording import format_fewer, format_number, format_percent
from gravac.wording import format_seconds as _seconds

RESTART = "The plans are not those that this job began with: measuring dense steps again."


def say(choice: NextPlan, table: PlanTable, confirmed: float | None) -> tuple[KnownRule, str]:
    """Return rule and reason of a choice.

    Args:
        choice: What was chosen.
        table: The job's plan table.
        confirmed: ρ of the job; None: not known.
    """
    mine = _label(choice, choice.before)
    match choice.what:
        case "restart":
            return "reexplore", RESTART
        case "more_dense":
            return "extend", "No dense step has settled yet: measuring more of them."
        case "more_trial":
            return "extend", f"Too few settled steps to judge {mine}: trying it for another window."
        case "given_up":
            return "saturated", f"{mine} gave no settled step in {PATIENCE} windows: {_back(choice)}."
        case "unsettled":
            return "hold", f"Too few settled steps to judge: holding {mine}."
        case "suspected":
            return "hold", (
                f"A step took {_times(choice.cause.now)}, before {_times(choice.cause.was)}: holding {mine}, and "
                "looking again if the next window says the same."
            )
        case "held":
            return "hold", _held(choice, table)
        case "tried_at_once":
            return "explore", at_once(table, choice.row(choice.plan))
        case "tried":
            return _tried(choice, table, confirmed)
        case "dense_stays":
            return "no_headroom", _dense_stays(choice, table)
        case "settled":
            return _settled(choice, table)


def at_once(table: PlanTable, row: Belief) -> str:
    """Return why a plan is tried before step times are known."""
    young = ", the mildest of those that save as much, as delays cost most in a young training"
    late = row.facts.late
    return (
        f"On this network dense steps exchange gradients for about {_seconds(table.dense.exchange or 0.0)}; "
        f"{row.facts.label} sends {format_fewer(table.wire_cf(row.facts))}, takes about "
        f"{_seconds(row.facts.exchange or 0.0)} and {keeps(row)}: trying it at once"
        f"{young if late else ''}."
    )


def keeps(row: Belief, each: str = "of the progress per step") -> str:
    """Return what a plan keeps, and whether that was measured."""
    kept = format_percent(row.efficiency or 0.0)
    if row.steps < 1.0 and row.doubtful:
        return f"may keep enough, {_measured(row.efficiency or 0.0, row.efficiency_error)} {each} as expected"
    if row.steps < 1.0:
        return f"is expected to keep {kept} {each}"
    return f"keeps {_measured(row.efficiency or 0.0, row.efficiency_error)} {each}, as measured"


def _measured(value: float, error: float) -> str:
    return f"{100 * value:.1f} ± {100 * error:.1f} %"


def _label(choice: NextPlan, plan: Plan) -> str:
    return next((row.facts.label for row in choice.rows if row.plan == plan), "dense")


def _back(choice: NextPlan) -> str:
    return "going back to dense" if choice.plan == DENSE else f"holding {_label(choice, choice.plan)}"


def _times(times: Times | None) -> str:
    return "" if times is None else f"{_seconds(times.step)} ({_seconds(times.exposed)} waiting)"


def _cause(choice: NextPlan, table: PlanTable) -> str:
    """Return why a search began; empty: because the one before had not ended."""
    if choice.cause.ended is not None:
        return f"A step of the trial of {_label(choice, choice.before)} took {_seconds(choice.cause.ended)}, too long"
    if choice.cause.left:
        before = choice.row(choice.before)
        lost = format_percent(1.0 - (before.efficiency or 0.0))
        if before.steps >= 1.0:
            lost = _measured(1.0 - (before.efficiency or 0.0), before.efficiency_error)
        # Such a plan was expected to be outside the bound, and what was measured does not show that it is inside.
        within = (before.efficiency or 0.0) + before.efficiency_error >= 1.0 - table.accepted
        return (
            f"{before.facts.label} loses {lost} of the progress of a step, and at most "
            f"{format_percent(table.accepted)} is accepted{', which it was not expected to keep' if within else ''}"
        )
    if choice.cause.was is not None:
        return f"Steps went from {_times(choice.cause.was)} to {_times(choice.cause.now)}"
    if choice.cause.unlooked:
        return f"Dense steps were not measured for {choice.cause.unlooked} windows"
    return ""


def _held(choice: NextPlan, table: PlanTable) -> str:
    row = choice.row(choice.plan)
    seen = row.measured
    waits = "" if seen is None else f", {_seconds(seen.exposed_seconds)} of it waiting for the network"
    if choice.plan == DENSE:
        return f"Staying dense: steps take {_seconds(row.seconds)}{waits}, and no other plan is predicted to win."
    kept = keeps(row, "of the progress")
    sends = format_fewer(choice.sent_cf or table.wire_cf(row.facts))
    return f"Holding {row.facts.label}, {sends}: steps take {_seconds(row.seconds)}{waits}, and each {kept}."


def _tried(choice: NextPlan, table: PlanTable, confirmed: float | None) -> tuple[KnownRule, str]:
    option, base = choice.row(choice.plan), choice.row(choice.base)
    cause = _cause(choice, table)
    rule: KnownRule = (
        "reexplore" if choice.cause.was is not None else "scale_down" if choice.cause.left else "explore"
    )
    beginning = f"{cause}. " if cause else ""
    name = "Dense steps take" if choice.base == DENSE else f"Steps with {base.facts.label} take"
    times = f"{name} {_seconds(base.seconds)}"
    if base.measured is not None and base.fresh:
        times += f", {_seconds(base.measured.exposed_seconds)} of it waiting for the network"
    if choice.plan == DENSE:
        return rule, (
            f"{beginning}{times}, and dense ones are predicted to take {_seconds(option.seconds)}: measuring them."
        )
    if choice.toward is not None:
        return rule, (
            f"{beginning}{times}. Dense steps send more than ten times what was sent so far, and "
            f"{option.facts.label} {format_fewer(table.wire_cf(option.facts))}: trying that first."
        )
    score = option.score / max(1e-30, base.score)
    if choice.plan == table.rival and score < 1.0:
        return rule, (
            f"{beginning}{times}. {option.facts.label} is what torch's own hook sends, predicted "
            f"{format_number(score)} times the useful throughput, and may be better by the error of that: "
            "measuring it."
        )
    kept, noise = option.facts.kept, ""
    if (
        kept is not None
        and confirmed is not None
        and efficiency.times_by_noise(kept.noise_times, confirmed) < 1.0
    ):
        noise = f", as {format_percent(1.0 - confirmed)} of the mean gradient is noise"
    return rule, (
        f"{beginning}{times}; {option.facts.label} sends {format_fewer(table.wire_cf(option.facts))} and "
        f"{keeps(option)}{noise}: trying it, predicted {format_number(score)} times the useful throughput"
        f"{' of dense' if choice.base == DENSE and choice.before != DENSE else ''}."
    )


def _dense_stays(choice: NextPlan, table: PlanTable) -> str:
    dense = choice.row(DENSE)
    step = _seconds(dense.seconds)
    if len(table.rows) == 1:
        return f"Dense steps take {step}, and there is no other plan: staying dense."
    if choice.option is None:
        why = f"no plan is expected to keep {format_percent(1.0 - table.accepted)} of the progress of a step"
    else:
        why = f"the best other plan, {_label(choice, choice.option)}, is not predicted to win"
    waited = 0.0 if dense.measured is None else dense.measured.exposed_seconds
    return f"Dense steps take {step}, {_seconds(waited)} of it waiting for the network, and {why}: staying dense."


def _settled(choice: NextPlan, table: PlanTable) -> tuple[KnownRule, str]:
    hold, cause = choice.row(choice.plan), _cause(choice, table)
    step = _seconds(hold.seconds)
    if choice.cause.left:
        return "scale_down", f"{cause}: {_back(choice)}."
    if choice.cause.was is not None:
        return "reexplore", f"{cause}: {hold.facts.label} is still predicted best, {step} a step."
    shown = [row for row in choice.rows if row.fresh and row.keeps and row is not hold]
    best = f"{hold.facts.label} stays: {step} a step"
    if shown:
        best = f"Best of {len(shown) + 1} measured plans: {hold.facts.label}, {step} a step"
    if choice.plan != DENSE:
        best += f", and {keeps(hold, 'of the progress of each')}"
    others = (
        "; " + ", ".join(f"{row.facts.label} takes {_seconds(row.seconds)}" for row in shown) if shown else ""
    )
    ended = f"{cause}. " if choice.cause.ended is not None else ""
    return "saturated", f"{ended}{best}{others}."
