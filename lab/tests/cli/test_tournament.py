"""``gravac bench tournament``: runs, resumes, summarizes and draws."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from gravac_controller.cli import main
from gravac_lab.cli.tournament import predicted
from gravac_lab.tournament import read_rows
from lab.tests.support.tournament import row, written
from tests.support.figures import texts


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["bench", "tournament", *map(str, words)])


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    found: list[dict[str, Any]] = []
    for seed, scale in ((1, 1.0), (2, 1.1)):
        found += [
            row("dense", [scale * loss for loss in (4, 3, 2, 1.5, 1)], seed),
            row("alone", [scale * loss for loss in (5, 5, 4, 4, 3)], seed, 0.0),
            row("topk@10", [scale * loss for loss in (4, 3.5, 3, 2, 1)], seed, 400.0),
            row("topk@100/residual", [scale * loss for loss in (5, 4, 4, 3, 2)], seed, 40.0),
        ]
    return written(tmp_path, *found)


@pytest.mark.long
def test_a_tournament_runs_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "new" / "rows.jsonl"
    small = (
        "--tasks",
        "logistic:images=digits",
        "--steps",
        4,
        "--ranks",
        2,
        "--out",
        out,
        "--plans",
        "topk@10",
    )
    first = run(*small, "--json")
    assert first.exit_code == 0, first.output
    assert "3 of 3 runs to do" in first.stderr
    assert [one["plan"] for one in json.loads(first.stdout)["rows"]] == ["dense", "topk@10", "alone"]
    kept = out.read_text()
    again = run(*small, "--plans", "qsgd@8")
    assert again.exit_code == 0, again.output
    assert "1 of 4 runs to do" in again.stderr
    assert out.read_text().startswith(kept)
    assert {one.plan for one in read_rows([out])} == {"dense", "alone", "topk@10", "qsgd@8"}
    refused = run(*small, "--plans", "topkk@10")
    assert refused.exit_code == 2
    assert "did you mean" in refused.output
    assert "Traceback" not in refused.output


def test_the_summary_compares_with_dense_and_alone(rows: Path) -> None:
    done = run("--summary", rows)
    assert done.exit_code == 0, done.output
    lines = {line.split()[0]: line for line in done.output.splitlines() if line.strip()}
    assert "lm (sgd), 4 simulated ranks, 50 steps, 2 seeds:" in done.output
    assert "100%" in lines["topk@10"]
    assert "+100.0%" in lines["topk@100/residual"]
    assert "50%" in lines["topk@100/residual"]
    assert "1.0500 (1.0000 – 1.1000)" in lines["dense"]
    assert "To target" not in done.output


def test_times_to_target_follow_from_the_link(rows: Path) -> None:
    """By hand for dense on a slow link."""
    timed = ("--summary", rows, "--link", "1mbit", "--compute", "0.01")
    result = json.loads(run(*timed, "--json").stdout)
    found = {one["plan"]: one for one in result["rows"]}
    assert found["dense"]["step_seconds"] == pytest.approx(0.01 + 1.5 * 4000 / (125_000 * 0.956), rel=0.1)
    assert found["alone"]["step_seconds"] == 0.01
    assert found["dense"]["seconds"]["median"] == pytest.approx(47.5 * found["dense"]["step_seconds"])
    short = found["topk@10"]["step_seconds"]
    assert found["topk@10"]["seconds"]["median"] == pytest.approx(short * 48.75)
    speedup = found["dense"]["step_seconds"] * 47.5 / (short * 48.75)
    assert found["topk@10"]["speedup"]["median"] == pytest.approx(speedup)
    early = json.loads(run(*timed, "--target", "0.6", "--json").stdout)
    assert {one["plan"]: one["reached"] for one in early["rows"]}["topk@100/residual"] == 2
    assert found["topk@100/residual"]["reached"] == 0
    assert "not reached" in run(*timed).output
    runs = {one.plan: one for one in read_rows([rows])}
    strong = predicted(runs["topk@100/residual"], 1e6, 0.01)
    assert 0.01 < strong < predicted(runs["topk@10"], 1e6, 0.01) < found["dense"]["step_seconds"]


@pytest.mark.parametrize(
    ("codec", "link_bytes", "messages"),
    [
        # A gather of the bucket's payload, an all-reduce of the vectors and the tick, among 4 ranks: 3, 6 and 6.
        ("topk+bf16", 3 * 400.0, 15),
        # Two all-reduces of factors instead of the gather.
        ("powersgd", 1.5 * 400.0, 24),
    ],
)
def test_accordion_has_a_time_to_target(codec: str, link_bytes: float, messages: int, tmp_path: Path) -> None:
    """By hand on a slow link. The bytes that a rank put on its link count where the row has them."""
    plan = f"accordion:mild={codec}@2,strong={codec}@100,interval=30"
    rows = [row("dense", [4, 3, 2, 1.5, 1]), row("alone", [5, 5, 4, 4, 3], payload=0.0)]
    seconds, coding = [], 1e-4
    for name, more in (("old", {}), ("new", {"sent_bytes": 900.0})):
        folder = tmp_path / name
        folder.mkdir()
        path = written(folder, *rows, row(plan, [4, 3.5, 3, 2, 1], payload=400.0, **more))
        done = run("--summary", path, "--link", "0.1mbit", "--compute", "0.01", "--json")
        assert done.exit_code == 0, done.output
        (found,) = (one for one in json.loads(done.stdout)["rows"] if one["plan"] == plan)
        assert found["wire_cf"] == 10.0
        assert found["seconds"]["median"] == pytest.approx(48.75 * found["step_seconds"])
        seconds.append(found["step_seconds"])
    for known, sent in zip(seconds, (link_bytes, 900.0), strict=True):
        hidden = 0.3 * 0.01
        assert known == pytest.approx(0.01 - hidden + 2e-4 * messages + sent / (12_500 * 0.956), abs=coding)


def test_the_plots_show_every_plan(rows: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run("--summary", rows, "--plot", tmp_path / "plots")
    assert done.exit_code == 0, done.output
    drawn = sorted((tmp_path / "plots").iterdir())
    assert [path.name for path in drawn] == ["loss-lm-4-ranks-50-steps.svg", "retained.svg"]
    shown = " ".join(texts(ElementTree.parse(drawn[0]).getroot()))
    for plan in ("dense", "alone", "topk@10", "topk@100/residual", "Held-out loss"):
        assert plan in shown
    assert "Retained value" in " ".join(texts(ElementTree.parse(drawn[1]).getroot()))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--link", "1gbit"), "--link needs the computation of a step"),
        (("--summary", "pyproject.toml"), "pyproject.toml, line 1: is no row"),
    ],
)
def test_errors_say_what_to_give(words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    done = run(*words)
    assert done.exit_code == 2, done.output
    assert says in " ".join(done.output.split())


def test_a_plan_whose_step_time_cannot_be_predicted_is_named(tmp_path: Path) -> None:
    path = written(
        tmp_path, row("dense", [4, 3, 2]), row("alone", [5, 5, 4], 1, 0.0), row("topkk@10", [4, 3, 2])
    )
    done = run("--summary", path, "--link", "100mbit", "--compute", "0.2")
    assert done.exit_code == 2, done.output
    said = " ".join(done.output.split())
    assert "plan 'topkk@10'" in said
    assert "did you mean" in said
