"""What a demo says in the end can be copied: commands and paths stay whole, however narrow the terminal."""

import io
import shlex
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from gravac.protocol import LinkSpec
from gravac_controller.cli import main
from gravac_lab.demo.figures import collect
from gravac_lab.demo.summary import Result, link, show, times
from gravac_lab.demo.training import DemoPlan
from gravac_lab.demo.watch import TrainingOutcome
from tests.support.traces_made import make

LONG = "a folder of [bold]many[/bold] words and 1234 numbers, " + "deep" * 30


@pytest.mark.parametrize("folder", ["runs", LONG])
@pytest.mark.parametrize("terminal", [False, True])
def test_commands_can_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, terminal: bool
) -> None:
    data_dir = tmp_path / folder
    trace = data_dir / "job" / "journal.jsonl"
    trace.parent.mkdir(parents=True)
    make(trace, windows=6)
    plan = DemoPlan(
        task="lm", ranks=2, steps=300, link="none", policy="gravac", job="job", data_dir=data_dir
    )  # fmt: skip
    outcome = TrainingOutcome(heldout_loss=2.5, trace=trace, step_seconds=[0.1] * 300, phases=["hold"] * 300)
    monkeypatch.setenv("COLUMNS", "80")
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, color_system=None)
    assert console.width == 80
    show(Result(plan, outcome, collect(trace)), console, "gravac")

    lines = click.unstyle(output.getvalue()).splitlines()
    said = {name: lines[lines.index(name) + 1] for name in ("Trace", "Check it", "Show it again")}
    assert said["Trace"] == str(trace)
    assert shlex.split(said["Show it again"]) == ["gravac", "serve", "--data-dir", str(data_dir)]
    program, *words = shlex.split(said["Check it"])
    assert program == "gravac"
    checked = CliRunner().invoke(main, words)
    assert checked.exit_code == 0, checked.output
    assert "the same 7 decisions from 6 windows" in checked.output


@pytest.mark.parametrize(
    ("measured", "predicted", "expected"),
    [
        (0.6, 0.48, "dense 600 ms, in hold 120 ms (5.00x as fast)"),
        (None, 0.48, "dense 480 ms predicted, in hold 120 ms (4.00x as fast)"),
        (None, None, "dense –, in hold 120 ms (– as fast)"),
    ],
)
def test_a_dense_step_that_was_not_measured_is_predicted(
    tmp_path: Path, measured: float | None, predicted: float | None, expected: str
) -> None:
    trace = tmp_path / "journal.jsonl"
    make(trace, windows=6)
    plan = DemoPlan(
        task="lm", ranks=2, steps=300, link="none", policy="auto", job="job", data_dir=tmp_path
    )  # fmt: skip
    figures = replace(
        collect(trace),
        baseline_step_seconds=measured,
        predicted_dense_step_seconds=predicted,
        hold_step_seconds=0.12,
    )
    result = Result(plan, TrainingOutcome(trace=trace), figures)
    output = io.StringIO()
    show(result, Console(file=output, width=200), "gravac")
    table = output.getvalue().split("Network")[0].strip().splitlines()
    assert len(table) == 1 + len({report.epoch for report in figures.windows}), (
        "windows that hold are one line"
    )
    assert "--compare shows a dense run beside it" in output.getvalue()
    assert expected in output.getvalue()
    assert result.as_json()["predicted_dense_step_seconds"] == predicted


def test_figures_for_people() -> None:
    assert times(10, 2) == "5.00x"
    assert times(10, 0) == times(None, 2) == "–"
    assert link(LinkSpec(bits_per_second=1e8)).startswith("EMULATED 100 Mbit/s")
    assert "real network" in link(None)
