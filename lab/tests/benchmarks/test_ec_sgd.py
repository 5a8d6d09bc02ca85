"""The experiments of the EC-SGD benchmark at the size of a test: what each of them must show, by running it."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[3] / "lab" / "benchmarks" / "ec_sgd.py"
Figures = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def figures(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Figures:
    """Figures of ``lab/benchmarks/ec_sgd.py --quick`` with these arguments, one a problem and seed, in this process."""

    def run(*arguments: str) -> list[dict[str, Any]]:
        command = [str(BENCHMARK), "--quick", "--json", "--no-plots", "--output", str(tmp_path), *arguments]
        monkeypatch.setattr(sys, "argv", command)
        monkeypatch.syspath_prepend(BENCHMARK.parent)
        runpy.run_path(str(BENCHMARK), run_name="__main__")
        results: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["results"]
        return results

    return run


@pytest.mark.long
def test_importance_sampling_needs_half_the_steps_where_samples_differ(figures: Figures) -> None:
    seeds = [text for seed in range(3) for text in ("--seed", str(seed))]
    results = figures("--only", "sampling", *seeds)
    by_kind = {kind: [r["figures"] for r in results if r["problem"] == kind] for kind in ("w8a", "a9a")}
    assert [len(rows) for rows in by_kind.values()] == [3, 3]
    for row in by_kind["w8a"]:
        assert row["L_uniform"] == pytest.approx(7.5)
        assert 0.8 < row["L_importance"] < 1.0
        assert row["steps_uniform"] >= 2 * row["steps_importance"]
    for row in by_kind["a9a"]:
        assert row["L_importance"] == pytest.approx(row["L_uniform"], rel=0.02)
        assert 0.5 < row["steps_uniform"] / row["steps_importance"] < 2


@pytest.mark.long
def test_lsvrg_ends_a_thousand_times_closer_at_the_same_step_size(figures: Figures) -> None:
    (row,) = [r["figures"] for r in figures("--only", "variance", "--data", "a9a", "--steps", "3000")]
    assert row["gap_sgd"] < 0.01  # it did converge, to its noise
    assert row["gap_lsvrg"] <= 1e-3 * row["gap_sgd"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_hard_threshold_does_not_mind_sorted_data_and_top_k_does(figures: Figures) -> None:
    (row,) = [r["figures"] for r in figures("--only", "sparsifier", "--data", "a9a", "--steps", "2000")]
    assert row["top_growth"] >= 10
    assert row["threshold_growth"] < 10
    assert row["coordinates_sorted"] == 8 * 2000  # all that Top-1 sent
    assert 2 * row["gap_threshold_sorted"] < row["gap_top_sorted"]
    assert row["total_error_threshold_sorted"] < row["total_error_top_sorted"]


@pytest.mark.distributed
def test_what_it_writes(tmp_path: Path) -> None:
    """Started as people start it."""
    arguments = ["--quick", "--only", "variance", "--data", "w8a", "--steps", "40", "--seed", "5"]
    subprocess.run([sys.executable, str(BENCHMARK), *arguments, "--output", str(tmp_path)], check=True)
    (result,) = json.loads((tmp_path / "ec_sgd.json").read_text())["results"]
    sgd, lsvrg = result["runs"]
    assert [sgd["estimator"], lsvrg["estimator"]] == ["uniform", "lsvrg"]
    steps = [point["step"] for point in lsvrg["points"]]
    assert steps == [0, 20, 40]
    for point in lsvrg["points"]:
        assert point["bits"] == 64 * point["coordinates"]  # 32 of value, 32 of position
    table = (tmp_path / "ec_sgd.md").read_text()
    assert "| w8a | 5 | " in table
    assert f"{result['figures']['gap_sgd']:.4g}" in table


def test_bad_arguments_are_named(figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        figures("--steps", "0")
    assert "--steps 0: must be at least 1" in capsys.readouterr().err
