"""The verdict: its cause, its three lines, and what it assumes."""

from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from gravac.wording import format_fewer
from gravac_observe.findings.forecast import Question
from gravac_observe.findings.verdict import DRIVERS, OTHERWISE, ProfileVerdict, judge
from gravac_observe.measure import Measurement
from gravac_observe.measure.patterns import WORDS
from gravac_observe.page import page
from tests.support.efficiencies import fixed_efficiencies
from tests.support.profiles import MAIN, Made, late, of, recorded


@pytest.fixture(autouse=True, scope="module")
def fixed_table() -> Iterator[None]:
    with fixed_efficiencies():
        yield


def large(folder: Path, stretch: float = 1000.0, **settings: object) -> Measurement:
    """A job of 25 M parameters: what is a microsecond in ``Made.usual`` is a millisecond."""
    made = Made.usual(**settings)
    for event in made.events:
        event["ts"] *= stretch
        event["dur"] *= stretch
        if "In msg nelems" in event.get("args", {}):
            event["args"] |= dict.fromkeys(
                ("In msg nelems", "Out msg nelems"), 25 * event["args"]["In msg nelems"]
            )
        if event["name"].endswith("AccumulateGrad") and "args" in event:
            event["args"]["Input Dims"] = [[25, 1000, 1000]]
    return of(folder, made)


def dense(found: ProfileVerdict) -> float:
    assert found.forecast is not None
    return found.forecast.dense


def test_a_step_that_waits(tmp_path: Path) -> None:
    found = judge(large(tmp_path))
    assert found.finding.kind == "network or late ranks", "there is one trace"
    verdict, why, following = found.finding.lines
    assert verdict == (
        "Network or late ranks: 25 % of a step is exposed communication (250 ms of 1 s); how much of it waits for late "
        "ranks is not known."
    )
    assert why == (
        "Why: gradients (all-reduce, 8 ranks, 100 MB, 427 MB/s achieved): 250 ms, and 160 ms hidden; of a step, "
        "computation 60 %, idle GPU 15 %."
    )
    assert found.forecast is not None
    chosen = found.forecast.chosen
    assert following.startswith(f"Next: send {format_fewer(chosen.wire_cf)} with {chosen.label} (")
    assert following.endswith(" of the progress under AdamW, by gravac.Agent(model, optimizer).")
    assert chosen.step.seconds < dense(found)
    assert dense(found) == pytest.approx(1.0), "the recorded exchange takes what it took"
    assert (
        "codecs encode 95.0 GB/s, and the host needs 2.35 ms a bucket, as Top-k 1 % on an H100 (docs/gpu-h100.md, "
        "2026-11-26)"
    ) in found.assumed
    assert chosen.step.compress == pytest.approx(5 * 2.35e-3), "the host of a GPU queues five buckets"
    assert any(sentence.startswith("how much of the exposed time is waiting") for sentence in found.unknown)


def test_what_another_optimizer_would_bring_is_said_where_the_network_is_the_cause(tmp_path: Path) -> None:
    slow = Question(bits_per_second=1e8)
    found = judge(large(tmp_path), slow)
    assert found.others.startswith("With gravac.optim.AdamW, training is predicted to be ")
    assert found.record()["other_optimizers"] == found.others
    assert found.others in unescape(page([("job", found)]))
    for nothing in (judge(large(tmp_path), replace(slow, kind="sgd")), judge(recorded("late"))):
        assert nothing.record()["other_optimizers"] is None
        assert nothing.others == ""


def test_traces_of_other_times_and_steps_that_scatter(tmp_path: Path) -> None:
    near, far = Made.usual(), Made.usual(rank=1)
    assert not any("one run" in each or "scatter" in each for each in judge(of(tmp_path, near, far)).unknown)
    for event in far.events:
        event["ts"] += 7200e6
    near.events[-1]["dur"] = 1.0
    assert any(
        each.startswith("whether all traces are of one run: by their clocks they were recorded 7200 s apart")
        for each in judge(of(tmp_path, near, far)).unknown
    )
    made = Made.usual()
    made.step(2, 2000.0, 9000.0)
    assert any(
        each.startswith("what a usual step takes: the recorded ones scatter by ")
        for each in judge(of(tmp_path, made)).unknown
    )


def test_advice_that_gains_less_than_steps_scatter_says_so(tmp_path: Path) -> None:
    measured = large(tmp_path)
    assert "scatter" not in judge(measured).finding.action
    wild = judge(replace(measured, spread=0.9))
    assert wild.forecast is not None
    assert wild.forecast.chosen.cf > 1.0
    assert wild.finding.action.endswith(
        "; but steps scatter by ±127 %, more than that gains: first record more (gravac observe --steps 60)"
    )
    longer = judge(replace(measured, spread=0.9, steps=20 * measured.steps))
    assert longer.finding.action.endswith("first record more (gravac observe --steps 60)")
    assert judge(replace(measured, spread=9.0)).finding.action.endswith("first use a quieter machine")


def test_a_larger_loss_than_the_network_is_named(tmp_path: Path) -> None:
    made = Made.usual()
    for event in made.events:
        if event["cat"] == "kernel" and "nccl" not in event["name"]:
            event["dur"] /= 4
    found = judge(of(tmp_path, made))
    assert found.finding.kind == "network or late ranks"
    assert "; a larger loss: keep the GPU busy, which waits for its host for " in found.finding.action
    assert "a larger loss" not in judge(large(tmp_path)).finding.action


def test_a_step_that_does_not_wait(tmp_path: Path) -> None:
    made = Made.usual()
    for event in made.events:
        if "nccl" in event["name"]:
            event["dur"] = 20.0
        if event["name"].startswith("ProfilerStep"):
            made.compute(event["ts"] + 560.0, 300.0)
    found = judge(of(tmp_path, made))
    assert found.finding.kind == "other"
    assert found.finding.sentence.startswith("Not the network: ")
    assert found.finding.sentence.endswith("compression can save at most that.")
    assert found.finding.action == (
        "keep the GPU busy, which waits for its host for 10 % of a step: look for .item() and for small kernels, and "
        "try torch.compile"
    )
    made.named("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0.0, 60.0)
    made.named("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 960.0, 100.0)
    assert "the loader more workers" in judge(of(tmp_path, made)).finding.action


def test_only_a_small_call_says_something_of_latency(tmp_path: Path) -> None:
    """What a large one takes is for its size, and so is saved by compression."""
    found = judge(large(tmp_path)).forecast
    assert found is not None
    assert found.latency == pytest.approx(1.4e-5)
    assert found.chosen.step.exposed < 0.1 * found.exposed
    made = Made.usual()
    made.call("allreduce", 900.0, 50.0, 3, thread=MAIN)
    small = judge(of(tmp_path, made)).forecast
    assert small is not None
    assert small.latency == pytest.approx(50e-6 / 14)


def test_a_job_that_waits_for_data_hears_of_that_first(tmp_path: Path) -> None:
    """Also where the network takes its share."""
    made = Made.on_cpu()
    assert judge(of(tmp_path, made)).finding.kind == "network or late ranks"
    for event in made.events:
        if event["ts"] >= 100e3:
            event["ts"] += 100e3
        if event["name"].startswith("ProfilerStep"):
            event["dur"] = 200e3
    for start in (106e3, 306e3):
        made.named("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, 90e3)
    found = judge(of(tmp_path, made))
    assert found.measurement.share == pytest.approx(0.2)
    assert found.finding.kind == "data first"
    assert found.finding.sentence.startswith(
        "Not the network first: a step waits 45 % of its time for data, and 20 % of a step"
    )
    assert "give the loader more workers" in found.finding.action


def test_late_ranks_are_not_the_network(tmp_path: Path) -> None:
    behind = late(Made.usual(rank=1), 190.0)
    found = judge(of(tmp_path, *(Made.usual(rank=rank) for rank in (0, 2, 3)), behind))
    assert found.finding.kind == "late ranks"
    assert found.finding.sentence.startswith("Late ranks, not the network: ")
    assert found.finding.action == "find what delays rank 1: it comes 0.19 ms a step later than the first"
    assert judge(recorded("late")).finding.action.startswith("find what delays rank 1: it comes ")
    assert judge(recorded("pipeline")).finding.action.startswith("balance the stages of the pipeline")


@pytest.mark.parametrize("sizes", [True, False])
def test_many_small_all_reduces(sizes: bool, tmp_path: Path) -> None:
    """By their size, or by their number where sizes are unknown: one for each gradient."""
    made = Made(sizes=sizes)
    made.step(0, 0.0, 1000.0)
    made.compute(100.0, 300.0)
    made.backward(100.0, 300.0)
    for place in range(30):
        made.gradient(110.0 + 8 * place, [300])
        made.call("allreduce", 410.0 + 8 * place, 6.0, 300, thread=MAIN)
    found = judge(of(tmp_path, made))
    assert found.finding.kind == "small messages"
    usual = " of usually 1.2 kB" if sizes else ""
    assert found.finding.why.startswith(f"30 all-reduces of gradients a step{usual}: nothing is bucketed; ")
    assert "DistributedDataParallel, which sends buckets of 25 MB" in found.finding.action
    assert judge(recorded("tiny")).finding.kind == "small messages"


def test_what_is_no_gradient_is_named_with_what_helps(tmp_path: Path) -> None:
    assert set(OTHERWISE) | {"gradients"} == set(WORDS)
    made = Made.usual()
    made.call("alltoall", 810.0, 50.0, 10_000_000, thread=MAIN)
    made.call("alltoall", 1560.0, 800.0, 10_000_000, thread=MAIN)
    found = judge(of(tmp_path, made))
    assert found.measurement.rows[0].pattern == "embeddings or experts"
    assert "all-to-all is not compressed" in found.finding.action


@pytest.mark.parametrize("wrapper", [*DRIVERS, "agent", "another"])
def test_the_next_step_fits_what_exchanges_gradients(tmp_path: Path, wrapper: str) -> None:
    following = judge(replace(large(tmp_path), wrapper=wrapper)).finding.action
    if wrapper == "agent":
        assert following == "gravac.Agent decides already how far to compress: gravac explain says why"
    else:
        assert following.endswith(f" under AdamW, {DRIVERS.get(wrapper, DRIVERS[''])}")
