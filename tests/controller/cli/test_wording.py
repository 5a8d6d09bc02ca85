"""Tables of the command line: at any width every number is whole, and what left is said."""

import io
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from gravac.policies import parse
from gravac.policies.auto import plans as auto_plans
from gravac.traces import TraceWriter
from gravac.wording import plan_in_words
from gravac_controller.cli import main
from gravac_controller.cli.wording import Listing, printer, size
from tests.support.predicted import spec, windows

SENT = "dither-subtractive:levels=3,coding=huffman"
WIDTHS = (60, 80, 100, 140)


def rendered(table: Listing, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().splitlines()


def plans() -> Listing:
    table = Listing(("Job", "Plan"), ("Step", "Interval", "η"), prose="Why", leaving=("Interval", "η"))
    for number, plan in enumerate(auto_plans.defaults()):
        words = plan_in_words(str(plan.codec), plan.cf)
        table.add_row(
            "a-job-with-a-name", words, f"{1000 + number} ms", "900 ms – 1.49 s", "0.997", "a reason " * 5
        )
    return table


@pytest.mark.parametrize("width", [40, *WIDTHS, 300])
def test_no_number_is_cut_at_any_width(width: int) -> None:
    lines = rendered(plans(), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    assert all(f"{1000 + number} ms" in text for number in range(len(auto_plans.defaults())))
    assert lines == [line.rstrip() for line in lines]
    left = next((line for line in lines if line.startswith("A wider terminal")), "")
    for head, value in (("Interval", "900 ms – 1.49 s"), ("η", "0.997")):
        assert (text.count(value) == len(auto_plans.defaults())) == (head not in left), (
            "shown whole, or said to be missing"
        )


def test_columns_leave_in_their_order_and_as_few_as_needed() -> None:
    left = [
        next((line for line in rendered(plans(), width) if line.startswith("A wider")), "")
        for width in (200, 95, 88)
    ]
    assert left == ["", "A wider terminal also shows Interval.", "A wider terminal also shows Interval, η."]


def test_there_is_no_width_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    printer().print(plans())
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(auto_plans.defaults())


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of a job under auto that sent another codec than the configured one, most of the time."""
    path = tmp_path_factory.mktemp("sent") / "gravac-runs" / "a-job" / "journal.jsonl"
    path.parent.mkdir(parents=True)
    writer = TraceWriter(path, now=lambda: 1.0)
    writer.append(
        spec(compressor="topk+bf16").model_copy(update={"job": "a-job", "policy": parse("auto").spec()})
    )
    for report in windows(cfs=(1.0, 17.3), each=6):
        codec = SENT if report.cf > 1.0 else None
        levels = tuple(level.model_copy(update={"codec": codec}) for level in report.levels)
        writer.append(report.model_copy(update={"job": "a-job", "levels": levels, "curve": None}))
    writer.close()
    return path


def run(*words: object, width: int | None = None) -> str:
    env = {} if width is None else {"FORCE_COLOR": "1", "COLUMNS": str(width), "TERM": "xterm"}
    done = CliRunner().invoke(main, list(map(str, words)), env=env)
    assert done.exit_code == 0, done.output
    return click.unstyle(done.output)


def test_a_trace_is_described_by_what_was_sent(steered: Path) -> None:
    output = run("whatif", steered)
    assert "Sent: dense in 50 % of the steps, 3 levels, subtractive, Huffman in 50 % of the steps" in output
    assert "topk+bf16 at CF" not in output
    unknown = output.partition("Not determined")[2].splitlines()
    assert f"- encoding and decoding of codecs that were not sent: as {SENT}'s" in unknown
    assert not [line for line in unknown if "the gain" in line], "auto does not ask for gains"
    assert len(unknown) < 8
    assert "cannot be predicted" not in output
    assert "T_comp" not in output
    assert f"note: encoding and decoding of codecs that were not sent: as {SENT}'s" in run("doctor", steered)


@pytest.mark.parametrize("width", WIDTHS)
def test_predictions_are_whole_at_any_width(steered: Path, width: int) -> None:
    answer = json.loads(run("whatif", steered, "--json"))
    for command in ("whatif", "doctor"):
        output = run(command, steered, width=width)
        table = output[output.index("Plan") :].partition("\n* ")[0]
        assert "…" not in table
        for row in answer["scenarios"][0]["factors"]:
            assert any(plan_in_words(row["codec"], row["cf"]) in line for line in table.splitlines()), row
        steps = [line for line in table.splitlines() if line.count(" ms") or line.count(" s ")]
        assert len(steps) >= len(answer["scenarios"][0]["factors"])


def test_a_word_is_a_job_where_a_trace_is_asked_for(steered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(steered.parents[2])
    assert run("whatif", "a-job").startswith("a-job: 12 windows")
    done = CliRunner().invoke(main, ["replay", "ajob", "--check"])
    assert done.exit_code == 2
    assert "no file and no job 'ajob' (did you mean 'a-job'?); jobs in gravac-runs: a-job" in " ".join(
        done.output.split()
    )


def test_a_dense_trace_shows_every_plan_of_auto(tmp_path: Path) -> None:
    """Who only watches sends dense, and asks the trace what compressing would do."""
    path = tmp_path / "journal.jsonl"
    writer = TraceWriter(path, now=lambda: 1.0)
    writer.append(spec(compressor="topk+bf16").model_copy(update={"policy": parse("dense").spec()}))
    for report in windows(cfs=(1.0,), each=6):
        writer.append(report)
    writer.close()
    refused = CliRunner().invoke(main, ["whatif", str(path)])
    assert refused.exit_code == 2
    assert "name the network, as in --recorded-on 1gbit, or record a run with policy auto" in refused.output
    assert json.loads(run("whatif", path, "--link", "1G", "--json"))["scenarios"]
    (scenario,) = json.loads(run("whatif", path, "--recorded-on", "1G", "--json"))["scenarios"]
    shown = {(row["codec"], row["cf"]) for row in scenario["factors"] if row["cf"] > 1.0}
    assert shown == {(plan.codec, plan.cf) for plan in auto_plans.defaults()}
    assert scenario["best_cf"] > 1.0


def test_numbers_for_people() -> None:
    assert size(982) == "982 B"
    assert size(4_209_664) == "4.21 MB"
    assert size(1.35e9) == "1.35 GB"
