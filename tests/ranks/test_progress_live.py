"""Progress next to dense gradients: what the agents measure is what a second optimizer of the whole model finds."""

from pathlib import Path
from typing import Any

import pytest

from gravac.protocol import Event, WindowReport
from gravac.signals import efficiency, figures
from gravac.signals.risk import judge
from gravac.traces import read_trace
from tests.support.lab import needs_lab
from tests.support.ranks.harness import RunEach, RunRanks

pytestmark = pytest.mark.distributed

STEPS = 60
CASES: list[dict[str, Any]] = [
    {"policy": "static:cf=1"},
    {"policy": "static:cf=1", "optimizer": "fused", "loss_scale": 4096.0},
    {},
    {"optimizer": "sgd", "two_rates": True},
    {"frozen": True, "micro_batches": 3},
    {"loss_scale": 1024.0, "bad_step": 40, "optimizer": "sgd"},
    {"bad_step": 30, "left_out": 40, "compressor": "int4", "policy": "static:cf=8"},
    {"reopen": 31},
]


def check(case: dict[str, Any], results: list[dict[str, Any]]) -> None:
    first = results[0]
    assert [result["sums"] for result in results] == [first["sums"]] * len(results), case
    assert first["sums"].keys() == first["dense"].keys(), case
    steps = 0
    for level, sums in first["sums"].items():
        got = [sums[name] for name in ("steps", "moved_sq", "reference_sq", "moved_dot_reference")]
        assert got == pytest.approx(first["dense"][level], rel=2e-3), (case, level)
        assert sums["reference_sq"] > 0, (case, level)
        steps += sums["steps"]
        ratio = sums["moved_dot_reference"] / sums["reference_sq"]
        if level.startswith("first") and level.endswith(" 1"):  # the second agent begins with a residual
            assert ratio == pytest.approx(1.0, abs=1e-4), (case, level)
        elif level.endswith(" 50") and case.get("optimizer") != "sgd":
            assert ratio < 0.8, (case, level)
    assert steps == STEPS - sum(name in case for name in ("bad_step", "left_out")), case
    assert all(result["on"] for result in results), case


def test_the_agents_measure_what_a_second_optimizer_of_the_whole_model_finds(run_each: RunEach) -> None:
    for case, results in run_each("progress", 2, [{"steps": STEPS} | case for case in CASES]):
        check(case, results)


def test_under_gravac_optim_next_to_dense_is_torchs_and_only_a_sick_job_is_called_risky(
    run_each: RunEach, tmp_path: Path
) -> None:
    """At 64 times fewer bytes. What the sick one holds back nearly never arrives; by its plan it is as healthy."""
    job = {"steps": STEPS, "optimizer": "aged", "compressor": "topk+twobit", "policy": "static:cf=16.6"}
    sick = {"memory": "partial:beta=0.98"}
    found = []
    for number, (case, results) in enumerate(run_each("progress", 2, [job, job | sick])):
        check(case, results)
        (window,) = windows(tmp_path / str(number) / "first" / "journal.jsonl")
        kept = figures.efficiency(window, "adam-aged", "topk+twobit")
        light = judge(window, 0.0, "adam-aged", "topk+twobit", accepted=0.05)
        assert kept is not None
        found.append((light.level, kept))
    simulated = efficiency.expected("topk+twobit", 16.6, "adam-aged")
    assert simulated is not None
    (healthy, kept), (level, less) = found
    assert (healthy, kept) == ("low", simulated)
    assert level == "high"
    assert less.likely < simulated.likely - 0.05


def test_three_ranks_and_the_report(run_ranks: RunRanks, tmp_path: Path) -> None:
    results = run_ranks("progress", 3, steps=STEPS)
    check({}, results)
    (window,) = windows(tmp_path / "first" / "journal.jsonl")
    for level, sums in zip(window.levels, results[0]["sums"].values(), strict=True):
        reported = level.sums.model_dump()
        names = {"progress_steps": "steps", "raw_mean_sq": "raw_sq"}
        new = list(reported)[list(reported).index("progress_steps") :]
        assert {name: reported[name] for name in new} == {name: sums[names.get(name, name)] for name in new}
    total = figures.total_sums(window)
    assert 0.05 < total.moved_dot_reference / total.reference_sq < 0.9


@needs_lab
@pytest.mark.parametrize("clip", [None, 0.3])
def test_simulated_ranks_measure_the_same(run_ranks: RunRanks, clip: float | None) -> None:
    results = run_ranks("progress_as_simulated", 2, clip=clip)
    live, simulated = results[0]["live"], results[0]["simulated"]
    assert results[0]["off"] < 1e-4, "the simulation must train the same, or the comparison says nothing"
    assert results[1]["live"] == live
    assert live["steps"] == simulated["steps"] == 80
    assert live == pytest.approx(simulated, rel=1e-3, abs=1e-6)
    assert live["moved_dot_reference"] / live["reference_sq"] < 0.8


def windows(journal: Path) -> list[WindowReport]:
    return [line.record for line in read_trace(journal) if isinstance(line.record, WindowReport)]


def test_off_where_it_cannot_be_measured(run_each: RunEach, tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [{"optimizer": "subclass"}, {"optimizer": "closure"}]
    for number, (case, results) in enumerate(run_each("progress_off", 2, cases)):
        assert not any(result["on"] for result in results), case
        journal = tmp_path / str(number) / "off" / "journal.jsonl"
        assert {level.sums.progress_steps for window in windows(journal) for level in window.levels} == {0}
        notes = [line.record.message for line in read_trace(journal) if isinstance(line.record, Event)]
        said = [
            note for note in notes if note.startswith("The progress next to dense training is not measured: ")
        ]
        assert len(said) == 1, (case, notes)
