"""The summary of ``gravac demo``, as text and as one JSON object."""

import shlex
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from gravac.protocol import LinkSpec
from gravac.signals import figures as of_window
from gravac.wording import display_path, format_rate, plan_in_words, printable
from gravac_controller.cli.wording import dense_step, number, seconds, size
from gravac_lab.demo.figures import DemoFigures, typical
from gravac_lab.demo.training import DemoPlan
from gravac_lab.demo.watch import TrainingOutcome

RECORDED = {("lm", 2, 500): 1.5114, ("digits", 2, 300): 0.0539}
"""Held-out loss of dense training by task, ranks and steps; the network does not change it."""
WHEN = "recorded on 26 November 2026 with `gravac demo --policy dense --link none` on Python 3.11"
SETTLING_STEPS = 5
"""Steps after the first one in hold that are excluded from the comparison of step times."""


def times(numerator: float | None, denominator: float | None) -> str:
    """Return the ratio as 5.00x; – when unknown."""
    if numerator is None or not denominator:
        return "–"
    return f"{numerator / denominator:.2f}x"


def link(spec: LinkSpec | None) -> str:
    """Return the network that a job ran on."""
    if spec is None:
        return "the real network of this machine (loopback)"
    rate = format_rate(spec.bits_per_second)
    return f"EMULATED {rate}: transfers are delayed as on such a link, the real network is faster"


@dataclass(frozen=True)
class Result:
    """A finished demo. ``dense``: the training to compare with, if any, and its figures if it has a journal."""

    plan: DemoPlan
    outcome: TrainingOutcome
    figures: DemoFigures
    dense: TrainingOutcome | None = None
    dense_figures: DemoFigures | None = None

    @property
    def speedup(self) -> float | None:
        """Steps per second over those of dense, for the whole training."""
        if self.dense is None:
            return None
        return _ratio(self.outcome.steps_per_second, self.dense.steps_per_second)

    @property
    def hold_pair(self) -> tuple[float | None, float | None]:
        """Median seconds of a step in hold, and of the same steps of the dense training."""
        phases = self.outcome.phases
        first = phases.index("hold") + SETTLING_STEPS if "hold" in phases else len(phases)
        here, there = self.outcome.step_seconds[first:], self.dense.step_seconds[first:] if self.dense else []
        return median(here) if here else None, median(there) if there else None

    def as_json(self) -> dict[str, Any]:
        """The JSON object: bytes of all ranks, seconds, losses in nats per prediction."""
        figures, (held, same_steps) = self.figures, self.hold_pair
        facts: dict[str, Any] = {
            "job": self.plan.job,
            "task": self.plan.task,
            "ranks": self.plan.ranks,
            "steps": self.plan.steps,
            "link_bits_per_second": None if figures.job.link is None else figures.job.link.bits_per_second,
            "trace": str(self.outcome.trace),
            "heldout_loss": self.outcome.heldout_loss,
            "heldout_accuracy": self.outcome.heldout_accuracy,
            "steps_per_second": self.outcome.steps_per_second,
            "dense_bytes": figures.dense_bytes,
            "payload_bytes": figures.payload_bytes,
            "hold_dense_bytes": figures.hold_dense_bytes,
            "hold_payload_bytes": figures.hold_payload_bytes,
            "baseline_step_seconds": figures.baseline_step_seconds,
            "predicted_dense_step_seconds": figures.predicted_dense_step_seconds,
            "hold_step_seconds": figures.hold_step_seconds,
            "cf_changes": figures.changes,
            "decisions": [_decision(decision.model_dump()) for decision in figures.decisions],
        }
        if self.dense is not None:
            facts |= {
                "dense_trace": None if self.dense.trace is None else str(self.dense.trace),
                "dense_heldout_loss": self.dense.heldout_loss,
                "dense_steps_per_second": self.dense.steps_per_second,
                "speedup": self.speedup,
                "hold_speedup": _ratio(same_steps, held),
            }
        return facts


def show(result: Result, console: Console, command: str) -> None:
    """Print what was sent, the results, and the next commands. ``command``: how to run gravac here."""
    console.print(_epochs(result.figures))
    figures, outcome = result.figures, result.outcome
    measured, predicted = figures.baseline_step_seconds, figures.predicted_dense_step_seconds
    held = figures.hold_step_seconds
    faster = times(predicted if measured is None else measured, held)
    trace = display_path(outcome.trace or "")
    rows = [
        ("Network", f"{link(figures.job.link)}{_changed(result.plan)}"),
        (
            "Held-out loss",
            f"{_loss(outcome)} nats, {_percent(outcome.heldout_accuracy)} accuracy; {_beside(result)}",
        ),
        ("Bytes sent", _saving(figures.payload_bytes, figures.dense_bytes)),
        ("In hold", _saving(figures.hold_payload_bytes, figures.hold_dense_bytes)),
        (
            "Step time" if figures.changed_at is None else f"Until step {figures.changed_at}",
            f"{dense_step(figures.job, measured, predicted)}, in hold {seconds(held)} ({faster} as fast)",
        ),
    ]
    to_copy = [
        ("Trace", trace),
        ("Check it", f"{command} replay {shlex.quote(trace)} --check"),
        ("Show it again", f"{command} serve --data-dir {shlex.quote(str(result.plan.data_dir))}"),
    ]
    if result.dense is not None:
        console.print()
        console.print(_comparison(result, result.dense))
    console.print()
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, text in rows:
        facts.add_row(name, text)
    console.print(facts)
    for name, text in to_copy:
        console.print(name, style="bold")
        console.print(text, soft_wrap=True, markup=False, highlight=False)  # one line, to be copied


def _epochs(figures: DemoFigures) -> Table:
    """What was sent, one line for all windows under one decision, and why."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for name in ("Steps", "Sent"):
        table.add_column(name, no_wrap=True)
    for name in ("Step", "Useful/s"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("Why")
    began = {decision.epoch: decision for decision in reversed(figures.decisions)}
    for epoch, group in groupby(figures.windows, key=lambda report: report.epoch):
        reports = list(group)
        level = figures.job.optimizer_kind, figures.job.compressor, figures.job.world_size
        useful = [of_window.useful_samples_per_second(report, *level) for report in reports]
        table.add_row(
            f"{reports[0].first_step + 1}–{reports[-1].last_step + 1}",
            plan_in_words(of_window.codec(reports[-1], level[1]), reports[-1].cf),
            seconds(typical([of_window.step_seconds(report) for report in reports])),
            number(typical(useful)),
            printable(began[epoch].reason) if epoch in began else "",
        )
    return table


def _comparison(result: Result, dense: TrainingOutcome) -> Table:
    outcome, figures, (held, same_steps) = result.outcome, result.figures, result.hold_pair
    name = "plain DDP" if result.dense_figures is None else "dense"
    sent = figures.dense_bytes if result.dense_figures is None else result.dense_figures.payload_bytes
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("The same training", no_wrap=True)
    for column in ("gravac", name, "gravac / " + name):
        table.add_column(column, no_wrap=True, justify="right")
    loss = _ratio(outcome.heldout_loss, dense.heldout_loss)
    table.add_row(
        "held-out loss", _loss(outcome), _loss(dense), "–" if loss is None else f"{100 * (loss - 1):+.1f} %"
    )
    speeds = outcome.steps_per_second, dense.steps_per_second
    table.add_row("steps per second", *(number(speed) for speed in speeds), times(*speeds))
    table.add_row("step time, from hold on", seconds(held), seconds(same_steps), times(held, same_steps))
    table.add_row("bytes sent", size(figures.payload_bytes), size(sent), times(figures.payload_bytes, sent))
    return table


def _decision(decision: dict[str, Any]) -> dict[str, Any]:
    return {
        "window": decision["window"],
        "epoch": decision["epoch"],
        "phase": decision["phase"],
        "codec": decision["codec"],
        "cf": decision["cf_candidate"],
        "rule": decision["rule"],
        "reason": decision["reason"],
    }


def _changed(plan: DemoPlan) -> str:
    _, _, second = plan.link.partition("/")
    return f"; from step {plan.steps // 2} on {second}" if second else ""


def _beside(result: Result) -> str:
    """The loss of dense training: of this run's, else as it was recorded."""
    plan = result.plan
    if result.dense is not None:
        return f"dense {_loss(result.dense)}"
    recorded = RECORDED.get((plan.task, plan.ranks, plan.steps))
    if recorded is None:
        return "--compare shows a dense run beside it"
    return f"dense {recorded:.4f}, {WHEN}"


def _saving(payload_bytes: int, dense_bytes: int) -> str:
    return f"{size(payload_bytes)}, dense: {size(dense_bytes)} ({times(dense_bytes, payload_bytes)} less)"


def _loss(outcome: TrainingOutcome) -> str:
    return "–" if outcome.heldout_loss is None else f"{outcome.heldout_loss:.4f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator
