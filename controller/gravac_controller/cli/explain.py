"""``gravac explain``: why a plan is in force, with the evidence and the results since."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from gravac.traces import TraceError
from gravac.wording import format_plan, plan_in_words, printable
from gravac_controller.cli.source import (
    Source,
    SourceError,
    asked,
    choose,
    one_source,
    source_options,
    token_of,
)
from gravac_controller.cli.wording import (
    Listing,
    clock,
    dense_step,
    factor,
    number,
    plan,
    printer,
    seconds,
    spread,
)
from gravac_controller.client import ControllerError
from gravac_controller.views.models import DecisionView, JobView, PlanView, WindowView
from gravac_controller.views.plans import plan_views, speed, useful


@dataclass(frozen=True)
class Explanation:
    """One epoch: the decision that began it, the decisions that confirmed it, and its windows."""

    job: JobView
    began: DecisionView
    confirmed: tuple[DecisionView, ...]
    windows: tuple[WindowView, ...]

    def mean(self, name: str) -> float | None:
        """The mean of a figure over the windows that have it; None where none has."""
        known = [value for view in self.windows if (value := getattr(view, name)) is not None]
        return fmean(known) if known else None


@click.command()
@click.argument("words", nargs=-1, metavar="[JOB] [EPOCH] [SOURCE]")
@click.option("--all", "everything", is_flag=True, help="Show all plans, each with why it is not in force.")
@source_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def explain(
    words: tuple[str, ...], everything: bool, data_dir: Path, token_file: Path | None, as_json: bool
) -> None:
    """Explain why a plan (codec and compression factor) is in force: the rule, its evidence, and the results since.

    The plans listed are the one in force, those that were measured, and the next three by prediction; a predicted
    figure begins with ~. EPOCH is the number of a decision [the one in force]. SOURCE is the address of a controller or
    a trace file. By default: the controller that serves the journals in ./gravac-runs, else the newest journal there.

    \b
    Examples:
      gravac explain
      gravac explain my-job --all
      gravac explain 3 gravac-runs/my-job/journal.jsonl
    """
    given = asked(words, epochs=True)
    try:
        source = one_source(given.source, data_dir, token_of(token_file), given.job)
        chosen = choose(source.jobs(), given.job, source.where)
        found = _collect(source, chosen, chosen.decision.epoch if given.epoch is None else given.epoch)
    except (ControllerError, TraceError) as error:
        raise SourceError(printable(str(error))) from None
    if as_json:
        click.echo(json.dumps(_facts(found)))
    else:
        _print(found, everything)


def _collect(source: Source, job: JobView, epoch: int) -> Explanation:
    decisions = tuple(source.decisions(job.job, epoch=epoch))
    if not decisions:
        raise SourceError(
            f"job {job.job} has no decision of epoch {epoch}; the one in force is {job.decision.epoch}"
        )
    return Explanation(job, decisions[0], decisions[1:], tuple(source.windows(job.job, epoch=epoch)))


def _facts(found: Explanation) -> dict[str, Any]:
    decision = found.began.decision
    steps = [view.report for view in found.windows]
    names = (
        "gain",
        "step_seconds",
        "samples_per_second",
        "efficiency",
        "efficiency_low",
        "efficiency_high",
        "useful_samples_per_second",
        "compression_throughput",
        "wire_cf",
        "backlog",
    )
    return {
        "job": found.job.job,
        "epoch": decision.epoch,
        "in_force": decision.epoch == found.job.decision.epoch,
        "time": found.began.time,
        "codec_before": _before(found)[0],
        "cf_before": found.began.cf_before,
        "codec": decision.codec or found.job.spec.compressor,
        "decision": decision.model_dump(mode="json"),
        "plans": [row.model_dump(mode="json") for row in plan_views(decision, found.job.spec.compressor)],
        "confirmed": len(found.confirmed),
        "latest_reason": (found.confirmed or (found.began,))[-1].decision.reason,
        "windows": len(steps),
        "first_step": steps[0].first_step if steps else None,
        "last_step": steps[-1].last_step if steps else None,
        "baseline_step_seconds": found.job.baseline_step_seconds,
        "predicted_dense_step_seconds": found.job.predicted_dense_step_seconds,
        **{name: found.mean(name) for name in names},
    }


def _before(found: Explanation) -> tuple[str | None, float | None]:
    """Codec and CF of the decision before; None for the first."""
    cf = found.began.cf_before
    return None if cf is None else found.began.codec_before or found.job.spec.compressor, cf


def _print(found: Explanation, everything: bool) -> None:
    console = printer()
    say = console.print
    decision = found.began.decision
    codec, cf = _before(found)
    now = plan(decision, found.job.spec.compressor)
    was = now if codec is None or cf is None else plan_in_words(codec, cf)
    before = "" if was == now else f"{was} → "
    holds = "in force" if decision.epoch == found.job.decision.epoch else "over"
    when = "at the start" if decision.window < 0 else f"after window {decision.window}"
    say(f"{found.job.job}, epoch {decision.epoch} ({holds}): {before}{now}")
    name = format_plan(decision.codec or found.job.spec.compressor, decision.cf_candidate)
    exact = "" if name == now else f", {name}"
    say(f"{clock(found.began.time)}, {when}, rule {decision.rule}, phase {decision.phase}{exact}")
    say(f"\n{printable(decision.reason)}\n")
    if decision.cf_minimum != decision.cf_candidate:
        say(
            f"Each step sends CF {factor(decision.cf_candidate)} if its gain is at least "
            f"{number(decision.epsilon)}, else CF {factor(decision.cf_minimum)} if its gain is, else dense."
        )
    if any(candidate.window is not None for candidate in decision.candidates):
        rows = plan_views(decision, found.job.spec.compressor)
        listed = [row for row in rows if everything or row.notable]
        console.print(_plans(listed))
        if len(listed) < len(rows):
            say(f"{_many(len(rows) - len(listed), 'other plan')}: gravac explain --all", style="dim")
        say("")
    say(_since(found))
    if found.confirmed:
        last = found.confirmed[-1].decision
        times = _many(len(found.confirmed), "later window")
        say(f"Confirmed after {times}, last after window {last.window}: {printable(last.reason)}")


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _plans(rows: Sequence[PlanView]) -> Listing:
    """The table of plans. Only the policy that decides by gains has them."""
    by_efficiency = any(one.efficiency is not None for one in rows)
    useful_head, kept = ("Useful/s", "η") if by_efficiency else ("T_comp", "Gain")
    leaving = ("Window", "Samples/s", kept)
    table = Listing(("Plan",), (kept, "Samples/s", useful_head, "Window"), prose="Why", leaving=leaving)
    for one in rows:
        about = "" if one.predicted_samples_per_second is None else "~"
        table.add_row(
            one.words,
            number(one.efficiency if by_efficiency else one.gain),
            _about(about, speed(one)),
            _about(about, useful(one)),
            "–" if one.window is None else str(one.window),
            one.why,
        )
    return table


def _about(about: str, value: float | None) -> str:
    return "–" if value is None else about + number(value)


def _since(found: Explanation) -> str:
    if not found.windows:
        return "No window of this epoch has ended yet."
    first, last = found.windows[0].report, found.windows[-1].report
    text = (
        f"Since then: {_many(len(found.windows), 'window')}, steps {first.first_step} to {last.last_step}, "
        f"{seconds(found.mean('step_seconds'))} per step"
    )
    measured, predicted = found.job.baseline_step_seconds, found.job.predicted_dense_step_seconds
    if measured is not None or predicted is not None:
        text += f" ({dense_step(measured, predicted)})"
    gain = f", gain {number(found.mean('gain'))}" if found.began.decision.epsilon else ""
    efficiency = spread(*(found.mean(f"efficiency{end}") for end in ("", "_low", "_high")))
    return (
        f"{text}, efficiency η {efficiency}, useful throughput {number(found.mean('useful_samples_per_second'))} "
        f"samples/s{gain}, backlog {number(found.mean('backlog'))}, wire CF "
        f"{number(found.mean('wire_cf'))}."
    )
