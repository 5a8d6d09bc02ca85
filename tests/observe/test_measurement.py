"""What a trace shows: exposed and hidden time, bandwidth, the loader, and ranks that come late."""

import json
from pathlib import Path
from typing import Any

import pytest

from gravac_observe.measure import measure
from gravac_observe.traces import ProfileError, read
from tests.support.profiles import KERNELS, MAIN, Made, late, of, patterns, recorded


def test_exposed_time_is_a_union_less_another(tmp_path: Path) -> None:
    found = of(tmp_path, Made.usual())
    assert (found.steps, found.gpu, found.world, found.ranks) == (2, True, 8, 1)
    assert found.step == pytest.approx(1e-3)
    assert found.exposed == pytest.approx(250e-6)
    assert found.computing == pytest.approx(600e-6)
    assert found.communicating == pytest.approx(410e-6)
    (row,) = found.rows
    assert (row.pattern, row.kind, row.size, row.calls) == ("gradients", "all-reduce", 8, 2)
    assert row.nbytes == 4_000_000
    assert row.hidden == pytest.approx(160e-6)
    assert row.bandwidth == pytest.approx(2 * 7 / 8 * 4e6 / 410e-6)
    assert found.parameters == 1_000_000
    assert found.optimizer == "AdamW"
    assert found.gradients is not None
    assert found.gradients.capacity == pytest.approx(160e-6)
    assert found.gradients.last == pytest.approx(0.4)


def test_calls_at_the_same_time_count_once(tmp_path: Path) -> None:
    made = Made.usual()
    made.call("allreduce", 620.0, 100.0, 64_000)
    one = of(tmp_path, Made.usual())
    two = of(tmp_path, made)
    assert two.exposed == pytest.approx(one.exposed)
    assert two.communicating == pytest.approx(one.communicating)


def test_calls_in_flight_together_share_the_link(tmp_path: Path) -> None:
    made = Made.usual()
    (alone,) = of(tmp_path, made).rows
    for event in [one for one in made.events if one["name"] == KERNELS["allreduce"]]:
        made.call("allreduce", event["ts"], event["dur"], int(event["args"]["In msg nelems"]))
    (together,) = of(tmp_path, made).rows
    assert together.nbytes == 2 * alone.nbytes
    assert together.seconds == pytest.approx(2 * alone.seconds)
    assert together.bandwidth == pytest.approx(2 * alone.bandwidth)


@pytest.mark.parametrize("clock", [0.0, 1e9])
def test_waiting_for_a_late_rank_is_no_transfer(clock: float, tmp_path: Path) -> None:
    """Also where the clock of one host is quite another one."""
    behind = late(Made.usual(rank=1), 80.0)
    for event in behind.events:
        event["ts"] += clock
    found = of(tmp_path, Made.usual(), behind)
    (row,) = found.rows
    # Rank 0 waits 80 µs at the begin of each of two calls; of the first wait, all is behind computation.
    assert found.waiting == pytest.approx(80e-6 / 2)
    assert row.waiting == found.waiting
    assert row.bandwidth == pytest.approx(2 * 7 / 8 * 4e6 / 250e-6)
    assert found.late == {0: 0.0, 1: pytest.approx(80e-6)}
    assert any("clocks of the ranks differ" in sentence for sentence in found.unknown) == (clock > 0)


def test_what_the_profiler_adds_is_no_part_of_a_step(tmp_path: Path) -> None:
    """It took 12 ms of each step, 8 of them where the call hides: without it, that much more is exposed."""
    made = Made.on_cpu()
    made.about = {"step_seconds": 0.096, "thread_seconds": 0.048, "recorded_thread_seconds": 0.060}
    found = of(tmp_path, made)
    assert found.step == pytest.approx(96e-3)
    assert found.exposed == pytest.approx(48e-3)
    assert found.computing == pytest.approx(48e-3)
    assert found.profiler == pytest.approx(12e-3)
    for broken in ({"thread_seconds": "soon"}, {"step_seconds": -1}, {"recorded_thread_seconds": None}):
        made.about |= broken
        assert of(tmp_path, made).step == pytest.approx(100e-3)


def test_a_rare_collection_of_garbage_is_no_part_of_a_step(tmp_path: Path) -> None:
    """One of 16 ms, 6 of which the loader seems to wait, in steps that are 5 ms longer than those before."""
    made = Made.on_cpu()
    made.named("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100e3, 6e3)
    for event in made.events[len(made.events) // 2 :]:
        event["ts"] += 16e3 if event["name"] != "ProfilerStep#1" and "enum" not in event["name"] else 0.0
        event["dur"] += 16e3 if event["name"] == "ProfilerStep#1" else 0.0
    made.about = {"step_seconds": 0.103, "thread_seconds": 0.06, "recorded_thread_seconds": 0.06}
    made.about["collections"] = [[100e3 + 1e3, 116e3 + 1e3]]  # the trace begins at 1 ms
    found = of(tmp_path, made)
    assert (found.step, found.loader) == (pytest.approx(103e-3), 0.0)
    assert found.exposed == pytest.approx(40e-3)
    for hostile in ("no", [3], [[1]], [[5, 1]], [["a", 2]], [[float("nan"), 2]]):
        made.about["collections"] = hostile
        assert of(tmp_path, made).step == pytest.approx(108e-3)


def test_two_traces_of_one_rank_are_refused(tmp_path: Path) -> None:
    path = Made.usual().write(tmp_path)
    other = tmp_path / "other.json"
    other.write_bytes(path.read_bytes())
    with pytest.raises(ProfileError, match="all are of rank 0; give one trace of each rank"):
        measure([read(path), read(other)])


def test_the_data_loader_counts_where_nothing_else_goes_on(tmp_path: Path) -> None:
    made = Made.usual()
    made.named("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 500.0, 350.0)
    assert of(tmp_path, made).loader == pytest.approx((860 - 810 - 10) / 2 * 1e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ddp", {("gradients", "all-reduce"): 2, ("scalars", "all-reduce"): 1}),
        (
            "fsdp2",
            {("weights", "all-gather"): 4, ("gradients", "reduce-scatter"): 2, ("scalars", "all-reduce"): 1},
        ),
        ("tensor", {("activations", "all-reduce"): 1, ("scalars", "all-reduce"): 1}),
        ("tiny", {("gradients", "all-reduce"): 24}),
        ("pipeline", {("pipeline", "send/recv"): 2}),
    ],
)
def test_recorded_programs_on_gloo(name: str, expected: dict[Any, float]) -> None:
    """The backend calls gloo's reduce-scatter an all-reduce; the operator that issued it knows better."""
    found = recorded(name)
    assert patterns(found) == expected
    assert (found.ranks, found.world, found.steps, found.gpu) == (2, 2, 2, False)
    assert 0.0 < found.exposed <= found.communicating < found.step
    for row in found.rows:
        assert row.size == 2
        assert row.group == (0, 1)
        assert row.bandwidth is not None
        assert row.waiting is not None
    sizes = {"ddp": 3 * (256 * 256 + 256), "fsdp2": 2 * (256 * 256 + 256), "tiny": 12 * 72}
    if name in sizes:
        assert found.gradients is not None
        assert found.gradients.elements == found.parameters == sizes[name]


def test_a_rank_that_sleeps_is_late_by_its_sleep() -> None:
    found = recorded("late")
    assert found.waiting is not None
    assert found.waiting > found.exposed / 2
    assert found.late[1] == pytest.approx(50e-3, rel=0.2)
    assert found.late[0] < 5e-3


def test_steps_that_a_scaler_skipped_are_named(tmp_path: Path) -> None:
    made = Made.usual()
    for moment in (100.0, 600.0, 1600.0):
        made.add("cpu_op", "aten::_amp_update_scale_", moment, 1.0, MAIN)
    assert "how long 1 steps took that the gradient scaler skipped: each counts to the next one" in (
        of(tmp_path, made).unknown
    )


def test_what_gravac_observe_writes_beside_the_events(tmp_path: Path) -> None:
    made = Made.usual()
    about = {"optimizer": "Lion", "parameters": 77, "host": "one", "framework": "deepspeed", "whole_steps": 1}
    path = made.write(tmp_path)
    path.write_text(json.dumps({**json.loads(made.text()), "gravac": about}))
    found = measure([read(path)])
    assert (found.optimizer, found.parameters, found.hosts, found.wrapper) == (
        "Lion",
        77,
        ("one",),
        "deepspeed",
    )
    assert found.steps == 1, "the second one did not end"
    hostile = {"optimizer": [], "parameters": -1, "host": {}, "framework": 3, "whole_steps": "x"}
    path.write_text(json.dumps({**json.loads(made.text()), "gravac": hostile}))
    found = measure([read(path)])
    assert (found.optimizer, found.parameters, found.hosts, found.wrapper) == ("AdamW", 1_000_000, (), "ddp")
