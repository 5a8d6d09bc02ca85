"""Simulated jobs: real decisions in a real trace, and step times of a network that changes."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gravac.predict.exchange import volume
from gravac.predict.nominal import NominalJob, link
from gravac.protocol import Decision, JobSpec, WindowReport
from gravac.replays.replay import replay
from gravac.signals import figures
from gravac.traces import read_trace
from gravac_agent.errors import SetupError
from gravac_controller.cli import main
from gravac_lab.demo.figures import collect
from gravac_lab.simulate.clock import ModelClock, Phase, measure_compute
from gravac_lab.simulate.job import SimulatedJob, SimulationSettings
from gravac_lab.tasks import elements_of, make

RECIPE = replace(make("digits:width=8,optimizer=adamw"), bucket_mb=0.02)
ELEMENTS = elements_of(RECIPE.build_model(1))
COMPUTE = 0.002


def clock(*phases: tuple[int, float], ranks: int = 2) -> ModelClock:
    return ModelClock(ELEMENTS, ranks, COMPUTE, tuple(Phase(step, link(bits, 1e-5)) for step, bits in phases))


def job(
    folder: Path, policy: str, *phases: tuple[int, float], name: str = "job", **more: Any
) -> SimulatedJob:
    given = {"ranks": 2, "seed": 1, "steps": 44, "window": 8, "points": 4} | more
    times = clock(*phases, ranks=given["ranks"])
    return SimulatedJob(
        SimulationSettings(recipe=RECIPE, policy=policy, clock=times, name=name, **given), folder
    )


def records(result: dict[str, Any]) -> tuple[list[WindowReport], list[Decision]]:
    found = [line.record for line in read_trace(Path(result["trace"]))]
    windows = [record for record in found if isinstance(record, WindowReport)]
    return windows, [record for record in found if isinstance(record, Decision)]


@pytest.mark.long
def test_the_policy_decides_and_its_trace_replays_byte_for_byte(tmp_path: Path) -> None:
    """On a slow link the auto policy leaves dense, for a codec that is not the job's compressor or for that one."""
    result = job(tmp_path, "auto:bound=1,plans=nearest:levels=15/nearest:levels=3", (0, 2e6)).run()
    again = replay(Path(result["trace"]))
    assert not again.differing
    assert len(again.decisions) >= 4
    windows, decisions = records(result)
    assert len(result["plans"]) >= 2
    assert result["plans"][0][1] != "dense", "the first plan is sent at once"
    reasons = {decision.reason for decision in decisions}
    assert all(plan[3] in reasons for plan in result["plans"])
    ordered = decisions[0].window_steps
    assert ordered is not None
    assert windows[0].last_step == ordered - 1, "a decision sets the length of its window"
    changed = [plan[0] for plan in result["plans"]]
    assert changed[:2] == [0, ordered + 2], "a decision is in force two steps after its window"
    codec = result["plans"][0][1]
    sent = {level.codec for window in windows for level in window.levels if level.cf > 1}
    assert (None if codec == "topk+bf16" else codec) in sent
    assert sum(window.seconds for window in windows) == pytest.approx(44 * result["seconds"])
    compressed = [level.sums for window in windows for level in window.levels if level.cf > 1]
    assert any(sums.progress_steps for sums in compressed)
    assert any(sums.reference_sq > 0 for sums in compressed), "progress next to a dense reference, too"
    assert any(sums.residual_dot_gradient for sums in compressed)
    assert all(window.loss for window in windows)
    assert result["curve"][-1][:2] == [44, pytest.approx(44 * result["seconds"], abs=1e-5)]


@pytest.mark.long
def test_the_dense_step_is_predicted_where_the_job_starts_compressed(tmp_path: Path) -> None:
    """Against the same job sent dense, on links on which nothing hides behind backward."""
    for number, bits in enumerate((3e5, 2e6)):
        ours = job(tmp_path, "auto", (0, bits), name=f"auto-{number}", steps=36).run()
        dense = job(tmp_path, "dense", (0, bits), name=f"dense-{number}", steps=20).run()
        spec = next(
            line.record for line in read_trace(Path(ours["trace"])) if isinstance(line.record, JobSpec)
        )
        windows, _ = records(ours)
        assert not any(level.cf == 1.0 for level in windows[-1].levels)
        predicted = figures.predicted_dense_step_seconds(windows[-1], spec.plans)
        assert predicted == pytest.approx(dense["seconds"], rel=0.1)
        assert figures.predicted_dense_step_seconds(windows[-1], ()) is None
        assert collect(Path(ours["trace"])).predicted_dense_step_seconds == pytest.approx(predicted, rel=0.1)
        explained = CliRunner().invoke(main, ["explain", ours["trace"]], env={"COLUMNS": "200"}).output
        assert re.search(r"per step \(dense [0-9.]+ m?s predicted\)", explained)


@pytest.mark.long
def test_the_same_seed_gives_the_same_job(tmp_path: Path) -> None:
    first, again = (job(tmp_path, "auto", (0, 1e7), name=name, steps=20).run() for name in ("a", "b"))
    for result in (first, again):
        del result["trace"]
    assert first == again


@pytest.mark.long
def test_step_times_follow_the_network(tmp_path: Path) -> None:
    """Dense on a link that is 100 times slower from step 10 on, and faster again from step 20."""
    phases = ((0, 1e9), (10, 1e7), (20, 1e9))
    result = job(tmp_path, "dense", *phases, steps=30, window=10).run()
    windows, _ = records(result)
    fast, slow, again = (window.seconds / 10 for window in windows)
    nominal = NominalJob(ELEMENTS, 2, COMPUTE)
    assert fast == pytest.approx(again) == pytest.approx(nominal.step("dense", 1.0, link(1e9, 1e-5)).seconds)
    assert slow == pytest.approx(nominal.step("dense", 1.0, link(1e7, 1e-5)).seconds)
    transfer = 4 * ELEMENTS / (1e7 / 8 * 0.956)
    assert slow == pytest.approx(COMPUTE + transfer, rel=0.1)
    assert result["payload_bytes"] == 4 * ELEMENTS
    level = windows[0].levels[0]
    assert level.sums.progress_steps == level.steps
    assert level.sums.moved_dot_reference == pytest.approx(level.sums.reference_sq), (
        "dense is its own reference"
    )


@pytest.mark.long
def test_a_job_exchanges_by_the_collective_that_is_named(tmp_path: Path) -> None:
    """Bytes, step times and losses are those of a compressed all-reduce, which rounds the mean again."""
    named = {"compressor": "nearest:levels=7", "ranks": 4, "steps": 12}
    gathered, rounded = (
        job(tmp_path, "static:cf=10", (0, 2e6), name=collective, collective=collective, **named).run()
        for collective in ("gather", "compressed-all-reduce")
    )
    assert gathered["seconds"] > 1.3 * rounded["seconds"]
    assert gathered["payload_bytes"] < rounded["payload_bytes"], (
        "it hands over its payload and a part of the mean"
    )
    assert [point[2] for point in gathered["curve"]] != [point[2] for point in rounded["curve"]]
    with pytest.raises(SetupError, match="collective='compressed-all-reduce' needs a quantizer"):
        job(tmp_path, "static:cf=10", (0, 2e6), compressor="topk", collective="compressed-all-reduce")


def test_what_is_wrong_is_said_before_anything_is_written(tmp_path: Path) -> None:
    for more, says in (
        ({"policy": "autoo"}, "autoo.*did you mean"),
        ({"policy": "auto", "compressor": "topkk"}, "topkk.*did you mean"),
        ({"policy": "auto", "memory": "residul"}, "residul.*did you mean"),
    ):
        with pytest.raises(SetupError, match=says):
            job(tmp_path, more.pop("policy"), (0, 1e9), **more)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "job").mkdir()
    with pytest.raises(SetupError, match="choose another name"):
        job(tmp_path, "auto", (0, 1e9))
    for wrong in (((1, 1e9),), ((0, 1e9), (0, 1e8)), ()):
        with pytest.raises(ValueError, match="must begin at step 0"):
            clock(*wrong)


def test_a_step_costs_what_its_codec_does() -> None:
    """Quantizers touch every element of every payload, selectors those that they kept; more ranks decode more."""
    network = link(1e12, 0.0)
    job = NominalJob(10_000_000, 2, 0.1)
    dense, ternary, strong = (
        job.step(codec, cf, network)
        for codec, cf in (("", 1.0), ("nearest:levels=3", 17.0), ("topk", 1000.0))
    )
    assert (dense.compress, dense.decompress) == (0.0, 0.0)
    assert ternary.compress == pytest.approx(10_000_000 * 3.9e-9)
    assert ternary.decompress == pytest.approx(2 * 10_000_000 * 3e-9)
    assert 10_000_000 * 3e-9 < strong.compress < 10_000_000 * 3.2e-9
    assert strong.decompress < ternary.decompress / 5
    many, slow = NominalJob(1_000_000, 8, 0.1), link(1e8, 0.0)
    assert many.volume("dither:levels=3", 17.0, slow).collective == "gather"
    assert many.step("dither:levels=3", 17.0, slow).decompress == pytest.approx(8 * 1_000_000 * 3e-9)
    rounds = job.step("powersgd:rank=2", 40.0, network, payload_bytes=1e6)
    assert rounds.seconds > dense.compute


@pytest.mark.parametrize(("optimizer", "way"), [("adamw-aged", "owners"), ("adamw", "gather")])
def test_payloads_meet_as_those_of_agents(tmp_path: Path, optimizer: str, way: str) -> None:
    recipe = make(f"digits:width=64,optimizer={optimizer},batch=35")
    times = ModelClock(elements_of(recipe.build_model(1)), 5, COMPUTE, (Phase(0, link(1e5, 1e-5)),))
    given = SimulationSettings(
        recipe=recipe,
        policy="static:cf=16.6",
        compressor="topk+twobit",
        clock=times,
        ranks=5,
        steps=3,
        seed=1,
        window=8,
        points=1,
    )
    made = SimulatedJob(given, tmp_path)
    made.run()
    (said,) = made.learner.ranks.channels[0].aggregators[0].notes()
    assert f": {way} for" in said
    aged = optimizer == "adamw-aged"
    expected = volume("topk+twobit", times.elements, 16.6, 5, times.network(0), aged=aged)
    assert expected.collective == way
    assert made.result["payload_bytes"] == pytest.approx(expected.payload_bytes, rel=0.02)


def test_computation_is_measured() -> None:
    assert 0 < measure_compute(RECIPE, 2, 1) < 5
