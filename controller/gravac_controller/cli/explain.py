"""``gravac explain``: why a plan is in force, with the evidence and the results since."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from gravac.policies.observe import lines
from gravac.signals import figures
from gravac.signals.figures import LinkUse
from gravac.traces import TraceError
from gravac.wording import format_plan, plan_in_words, printable
from gravac_controller.cli.source import (
    Source,
    SourceError,
    asked,
    choose,
    data_dir_option,
    json_option,
    one_source,
    reading_token,
)
from gravac_controller.cli.wording import (
    Listing,
    clock,
    dense_step,
    factor,
    links,
    network,
    number,
    plan,
    printer,
    seconds,
    spread,
)
from gravac_controller.client import ControllerError
from gravac_controller.views.models import DecisionView, JobView, PlanView, WindowView
from gravac_controller.views.plans import plan_views, speed, useful

FIGURES = (
    "gain",
    "step_seconds",
    "usual_step_seconds",
    "samples_per_second",
    "efficiency",
    "efficiency_low",
    "efficiency_high",
    "useful_samples_per_second",
    "compression_throughput",
    "wire_cf",
    "backlog",
)


@dataclass
class Explanation:
    """One epoch: the decision that began it, the last one that confirmed it, and the figures of its windows."""

    job: JobView
    began: DecisionView
    confirmed: int = 0
    latest: DecisionView | None = None
    windows: int = 0
    first_step: int | None = None
    last_step: int | None = None
    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in FIGURES})
    used: list[dict[str, LinkUse]] = field(default_factory=list)

    @property
    def listing(self) -> DecisionView:
        """The decision whose plans are shown: the first, or the last where that knew of none."""
        return self.began if self.began.decision.candidates or self.latest is None else self.latest

    def add(self, view: WindowView) -> None:
        """Add a window of the epoch. Only its figures are kept."""
        self.windows += 1
        if self.first_step is None:
            self.first_step = view.report.first_step
        self.last_step = view.report.last_step
        for name, values in self.values.items():
            if (value := getattr(view, name)) is not None:
                values.append(value)
        if used := figures.links(view.report):
            self.used.append(used)

    @property
    def links(self) -> dict[str, LinkUse]:
        """Use of both levels of links, mean over the windows; empty where there is one level."""
        return {
            level: LinkUse(*map(fmean, zip(*(each[level] for each in self.used), strict=True)))
            for level in (self.used[0] if self.used else ())
        }

    def mean(self, name: str) -> float | None:
        """Return the mean of a figure over the windows that have it; None where none has."""
        return fmean(self.values[name]) if self.values[name] else None


@click.command()
@click.argument("words", nargs=-1, metavar="[JOB] [EPOCH] [SOURCE]")
@click.option("--all", "everything", is_flag=True, help="Show all plans, each with why it is not in force.")
@data_dir_option
@json_option
def explain(words: tuple[str, ...], everything: bool, data_dir: Path, as_json: bool) -> None:
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
        source = one_source(given.source, data_dir, reading_token(), given.job)
        chosen = choose(source.jobs(given.job), given.job, source.where)
        found = _collect(source, chosen, chosen.decision.epoch if given.epoch is None else given.epoch)
    except (ControllerError, TraceError) as error:
        raise SourceError(printable(str(error))) from None
    if as_json:
        facts = _facts(found) | {"other_optimizers": _other_optimizers(source, found.job) or None}
        click.echo(json.dumps(facts))
    else:
        _print(source, found, everything)


def _collect(source: Source, job: JobView, epoch: int) -> Explanation:
    decisions = source.decisions(job.job, epoch=epoch)
    began = next(decisions, None)
    if began is None:
        raise SourceError(
            f"job {job.job} has no decision of epoch {epoch}; the one in force is {job.decision.epoch}"
        )
    found = Explanation(job, began)
    for view in decisions:
        found.confirmed, found.latest = found.confirmed + 1, view
    for window in source.windows(job.job, epoch=epoch):
        found.add(window)
    return found


def _facts(found: Explanation) -> dict[str, Any]:
    decision = found.began.decision
    return {
        "job": found.job.job,
        "epoch": decision.epoch,
        "in_force": decision.epoch == found.job.decision.epoch,
        "time": found.began.time,
        "codec_before": _before(found)[0],
        "cf_before": found.began.cf_before,
        "codec": decision.codec or found.job.spec.compressor,
        "decision": decision.model_dump(mode="json"),
        "plans": [row.model_dump(mode="json") for row in plan_views(found.listing.decision, found.job.spec)],
        "confirmed": found.confirmed,
        "latest_reason": (found.latest or found.began).decision.reason,
        "windows": found.windows,
        "first_step": found.first_step,
        "last_step": found.last_step,
        "baseline_step_seconds": found.job.baseline_step_seconds,
        "predicted_dense_step_seconds": found.job.predicted_dense_step_seconds,
        **{name: found.mean(name) for name in FIGURES},
        "links": {level: used._asdict() for level, used in found.links.items()} or None,
    }


def _before(found: Explanation) -> tuple[str | None, float | None]:
    """Codec and CF of the decision before; None for the first."""
    cf = found.began.cf_before
    return None if cf is None else found.began.codec_before or found.job.spec.compressor, cf


def _print(source: Source, found: Explanation, everything: bool) -> None:
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
    listing = found.listing.decision
    if any(candidate.window is not None for candidate in listing.candidates):
        rows = plan_views(listing, found.job.spec)
        listed = [row for row in rows if everything or row.notable]
        console.print(_plans(listed))
        if len(listed) < len(rows):
            say(f"{_many(len(rows) - len(listed), 'other plan')}: gravac explain --all", style="dim")
        say("")
    say(_since(found))
    if found.latest is not None and found.windows:
        last = found.latest.decision
        times = _many(found.confirmed, "later window")
        first, *more = map(printable, lines(last.reason))
        say("\n".join((f"Confirmed after {times}, last after window {last.window}: {first}", *more)))
    if (start := found.job.spec.network) is not None:
        say(f"The network at the start: {network(start)}.")
    if others := _other_optimizers(source, found.job):
        say(f"\n{printable(others)}")


def _other_optimizers(source: Source, job: JobView) -> str:
    """Return what another optimizer would bring, by the last windows of this start; empty: nothing, or not known."""
    if job.latest is None or not job.spec.torch_adam or find_spec("torch") is None:
        return ""
    from gravac.predict.advice import other_optimizers  # torch takes seconds to load
    from gravac.predict.recording import MAX_WINDOWS_PER_CF, Recording

    recording, last = Recording(job.spec), job.latest.report.window
    for view in source.windows(job.job, after=max(0, last - MAX_WINDOWS_PER_CF) or None):
        if view.report.incarnation == job.spec.incarnation:
            recording.add(view.report)
    return other_optimizers(recording)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _plans(rows: Sequence[PlanView]) -> Listing:
    """Return the table of plans. Only the policy that decides by gains has them."""
    by_efficiency = any(row.efficiency is not None for row in rows)
    useful_head, kept = ("Useful/s", "η") if by_efficiency else ("T_comp", "Gain")
    strengths = ("Fewer bytes",) if any(row.wire_cf is not None for row in rows) else ()
    leaving = ("Window", "Samples/s", kept, *strengths)
    heads = (*strengths, kept, "Samples/s", useful_head, "Window")
    table = Listing(("Plan",), heads, prose="Why", leaving=leaving)
    for row in rows:
        about = "" if row.predicted_samples_per_second is None else "~"
        table.add_row(
            row.words,
            *(f"{number(row.wire_cf)}x" for _ in strengths),
            number(row.efficiency if by_efficiency else row.gain),
            _about(about, speed(row)),
            _about(about, useful(row)),
            "–" if row.window is None else str(row.window),
            row.why,
        )
    return table


def _about(about: str, value: float | None) -> str:
    return "–" if value is None else about + number(value)


def _since(found: Explanation) -> str:
    if not found.windows:
        over = found.job.state == "ended"
        if not found.confirmed:
            return "No window ran under it." if over else "No window has run under it yet."
        end, later = ", and then the job ended" if over else "", _many(found.confirmed, "later window")
        return f"No window ran under it: {later} ran under an earlier decision or in fallback{end}."
    text = (
        f"Since then: {_many(found.windows, 'window')}, steps {found.first_step} to {found.last_step}, "
        f"{seconds(found.mean('usual_step_seconds'))} per step"
    )
    measured, predicted = found.job.baseline_step_seconds, found.job.predicted_dense_step_seconds
    if measured is not None or predicted is not None:
        text += f" ({dense_step(found.job.spec, measured, predicted)})"
    gain = f", gain {number(found.mean('gain'))}" if found.began.decision.epsilon else ""
    used = f" Links: {links(found.links)}." if found.used else ""
    efficiency = spread(*(found.mean(f"efficiency{end}") for end in ("", "_low", "_high")))
    return (
        f"{text}, efficiency η {efficiency}, useful throughput {number(found.mean('useful_samples_per_second'))} "
        f"samples/s{gain}, backlog {number(found.mean('backlog'))}, {number(found.mean('wire_cf'))}x fewer bytes.{used}"
    )
