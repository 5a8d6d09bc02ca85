"""What a trace shows: exposed and hidden time, sizes, groups, purposes, steps, and ranks that come late."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gravac_observe.measure import Measurement, measure
from gravac_observe.traces import ProfileError, read
from tests.support.profiles import AUTOGRAD, KERNELS, MAIN, Made, late, of, recorded


def patterns(found: Measurement) -> dict[tuple[str, str], float]:
    """Return the calls of a step by what they are for."""
    calls: Counter[tuple[str, str]] = Counter()
    for row in found.rows:
        calls[row.pattern, row.kind] += row.calls  # type: ignore[assignment]
    return dict(calls)


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


@pytest.mark.parametrize("lag", [20.0, 5000.0])
def test_a_gpu_that_lags_behind_its_host_has_the_same_steps(lag: float, tmp_path: Path) -> None:
    """Kernels of the steps before, whose launches are not in the trace, do not count."""
    made = Made.usual()
    for event in made.events:
        if event["cat"] == "kernel":
            event["ts"] += lag
    made.number += 1
    before = made.number + 1000
    for event in made.events:
        number = event.get("args", {}).get("correlation")
        if number is not None:
            event["args"]["correlation"] = number + before
    made.add("kernel", "gemm", lag - 300.0, 300.0, 7, device=0, correlation=before - 2)
    made.add("kernel", "ncclDevKernel_Generic", lag - 200.0, 200.0, 40, device=0, correlation=before - 1)
    found = of(tmp_path, made)
    assert found.step == pytest.approx(1e-3, rel=0.1)
    assert found.exposed == pytest.approx(250e-6)
    assert patterns(found) == {("gradients", "all-reduce"): 2}
    assert (
        "the step of 1 calls that were issued before or after the recorded steps: they are left out"
        in found.unknown
    )


def test_sizes_and_groups_come_from_what_issued_a_call(tmp_path: Path) -> None:
    """Where kernels lack them: from its record, else from the shapes of its operator, else they are unknown."""
    made = Made(world=2)
    made.step(0, 0.0, 1000.0)
    made.compute(60.0, 100.0)
    made.backward(100.0, 500.0)
    made.call("allreduce", 300.0, 100.0, 1000, on_kernel=False)
    bare = Made(world=2, sizes=False)
    bare.events, bare.number = made.events, made.number
    issued = 350.0
    dims = {"Input Dims": [[[30, 100]], [], []], "Input type": ["TensorList", "", ""]}
    bare.add("cpu_op", "c10d::allreduce_", issued - 5.0, 20.0, AUTOGRAD, **dims)
    one = {"Input Dims": [[3000]], "Input type": ["c10::BFloat16"]}
    bare.add("user_annotation", "nccl:all_reduce", issued - 3.0, 12.0, AUTOGRAD, **one)
    bare.call("allreduce", 400.0, 50.0, 0)
    found = of(tmp_path, bare)
    (row,) = found.rows
    assert row.nbytes == 1000 * 4 + 3000 * 2
    bare.call("allreduce", 460.0, 50.0, 0)
    found = of(tmp_path, bare)
    assert found.rows[0].nbytes is None
    assert any("the size of 1 of 3 calls" in sentence for sentence in found.unknown)


def test_old_categories_and_steps_by_the_optimizer(tmp_path: Path) -> None:
    made = Made.usual()
    made.events = [event for event in made.events if not event["name"].startswith("ProfilerStep")]
    for event in made.events:
        event["cat"] = {"kernel": "Kernel", "cpu_op": "Operator", "cuda_runtime": "Runtime"}.get(
            event["cat"], event["cat"]
        )
    found = of(tmp_path, made)
    assert found.steps == 1
    assert found.step == pytest.approx(1e-3, rel=0.2)
    assert patterns(found) == {("gradients", "all-reduce"): 2}
    made.events = [event for event in made.events if "Optimizer" not in event["name"]]
    found = of(tmp_path, made)
    assert found.steps == 1
    assert any("nothing marks them" in sentence for sentence in found.unknown)


def test_purposes(tmp_path: Path) -> None:
    """HSDP with tensor parallelism and a pipeline: each call is what its phase, group and annotation make it."""
    shard, replica, tensor = (0, 1), (0, 2), (0, 4)
    made = Made(world=8)
    made.step(0, 0.0, 2000.0)
    made.compute(60.0, 100.0)
    made.named("FSDP::pre_forward (0)", 100.0, 60.0)
    made.call("_allgather_base", 160.0, 30.0, 5000, shard, MAIN)
    made.call("allreduce", 250.0, 30.0, 4096, tensor, MAIN)
    made.call("send", 290.0, 30.0, 4096, (0, 6), MAIN)
    made.call("alltoall", 330.0, 30.0, 4096, shard, MAIN)
    made.backward(400.0, 500.0)
    made.call("allreduce", 500.0, 30.0, 4096, tensor)
    made.call("_allgather_base", 540.0, 30.0, 5000, shard)
    made.call("_reduce_scatter_base", 600.0, 30.0, 5000, shard)
    made.call("allreduce", 700.0, 30.0, 2500, replica)
    made.named("Optimizer.step#AdamW.step", 1000.0, 200.0)
    made.call("broadcast", 1100.0, 30.0, 9999, shard, MAIN)
    made.call("allreduce", 1150.0, 10.0, 1, shard, MAIN)
    made.call("allreduce", 1400.0, 10.0, 3, tuple(range(8)), MAIN)
    assert patterns(of(tmp_path, made)) == {
        ("weights", "all-gather"): 2,
        ("activations", "all-reduce"): 2,
        ("pipeline", "send/recv"): 1,
        ("embeddings or experts", "all-to-all"): 1,
        ("gradients", "reduce-scatter"): 1,
        ("gradients between replicas", "all-reduce"): 1,
        ("optimizer", "broadcast"): 1,
        ("scalars", "all-reduce"): 2,
    }


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


@pytest.mark.parametrize("woken", [0.0, 3.0])
def test_a_thread_that_goes_on_before_the_end_is_noted_has_waited(woken: float, tmp_path: Path) -> None:
    """gloo's thread wakes the one that waits, which may take its core."""
    found = of(tmp_path, Made.on_cpu(woken=woken))
    assert found.exposed == pytest.approx((40 - woken) * 1e-3)
    assert found.computing == pytest.approx((60 + woken) * 1e-3)


def test_a_call_that_ends_after_the_last_step_counts_up_to_its_end(tmp_path: Path) -> None:
    """Where the machine is busy, gloo's thread may note the end of a call long after the next step has begun."""
    made = Made.on_cpu()
    last = max(
        (each for each in made.events if each["name"] == "gloo:all_reduce"), key=lambda each: each["ts"]
    )
    last["dur"] += 70e3
    found = of(tmp_path, made)
    assert found.exposed == pytest.approx(0.04)
    assert found.exposed + found.computing == pytest.approx(found.step)


def test_operators_that_a_call_slows_down_are_exposed_to_it(tmp_path: Path) -> None:
    """As far as the same ones take less time where nothing is sent."""
    found = of(tmp_path, Made.on_cpu(slower=5.0))
    assert found.exposed == pytest.approx(40e-3)
    assert found.computing == pytest.approx(60e-3)
    (row,) = found.rows
    assert (row.exposed, row.hidden) == (pytest.approx(40e-3), pytest.approx(40e-3))
    assert found.gradients is not None
    assert found.gradients.exposed == pytest.approx(40e-3)


def test_issuing_a_call_is_exposed_and_what_runs_within_is_no_computation(tmp_path: Path) -> None:
    """gloo copies there, and its threads take the core. What stands around it is computation."""
    made = Made.on_cpu(issuing=5.0)
    made.add("cpu_op", "aten::copy_", 21e3, 3e3, MAIN)
    made.add("cpu_op", "_c10d_functional::all_reduce", 19e3, 6e3, MAIN, **{"Input Dims": [[1000]]})
    found = of(tmp_path, made)
    assert found.exposed == pytest.approx(40e-3)
    assert found.computing == pytest.approx(60e-3)
    assert found.communicating == pytest.approx(80e-3)


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


def test_backward_within_an_optimizers_closure_is_backward(tmp_path: Path) -> None:
    """As Lightning steps its optimizers, and LBFGS always is. What follows the backward is the optimizer's."""
    made = Made.usual()
    for event in made.events:
        if event["name"].startswith("Optimizer.step#"):
            event["dur"] = event["ts"] % 1000.0 + event["dur"] - 10.0
            event["ts"] -= event["ts"] % 1000.0 - 10.0
    for step in (0, 1):
        made.backward(1000.0 * step + 500.0, 100.0)
        made.call("allreduce", 1000.0 * step + 840.0, 5.0, 5000, thread=MAIN)
    assert patterns(of(tmp_path, made)) == {("gradients", "all-reduce"): 2, ("optimizer", "all-reduce"): 1}


def test_steps_that_a_scaler_skipped_are_named(tmp_path: Path) -> None:
    made = Made.usual()
    for moment in (100.0, 600.0, 1600.0):
        made.add("cpu_op", "aten::_amp_update_scale_", moment, 1.0, MAIN)
    assert "how long 1 steps took that the gradient scaler skipped: each counts to the next one" in (
        of(tmp_path, made).unknown
    )


def test_what_ddp_counts_is_no_gradient(tmp_path: Path) -> None:
    """With find_unused_parameters, its last all-reduce says which parameters were used."""
    made = Made.on_cpu()
    for at in (0.0, 100e3):
        for name, dims, kind, thread, lasts in (
            ("c10d::allreduce_", [[[28]]], "TensorList", MAIN, 0.0),
            ("gloo:all_reduce", [[28]], "int", 8, 60e3),
        ):
            made.add("cpu_op", name, at + 30e3, lasts, thread, **{"Input Dims": dims, "Input type": [kind]})
    found = of(tmp_path, made)
    assert patterns(found) == {("gradients", "all-reduce"): 1, ("scalars", "all-reduce"): 1}
    assert found.gradients is not None
    assert (found.gradients.last, found.gradients.elements) == (1.0, 1000)


def test_deepspeed_gathers_weights_in_a_second_group_of_the_same_ranks(tmp_path: Path) -> None:
    """Without a mark, and gloo's calls do not name their group."""
    made = Made.on_cpu()
    for at in (0.0, 100e3):
        for name, thread, lasts in (("c10d::_allgather_base_", MAIN, 0.0), ("gloo:all_gather", 8, 5e3)):
            made.add(
                "cpu_op", name, at + 1e3, lasts, thread, **{"Input Dims": [[1000]], "Input type": ["float"]}
            )
    groups = {"rank": 0, "world_size": 2, "pg_config": [{"ranks": [0, 1]}, {"ranks": [0, 1]}, {"ranks": [0]}]}
    path, head = made.write(tmp_path), {"distributedInfo": groups, "gravac": {"framework": "deepspeed"}}
    path.write_text(json.dumps({**json.loads(made.text()), **head}))
    found = measure([read(path)])
    assert patterns(found) == {("gradients", "all-reduce"): 1, ("weights", "all-gather"): 1}
    assert {(row.group, row.size) for row in found.rows} == {((0, 1), 2)}


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


def test_the_calls_of_an_agent_are_gradients(tmp_path: Path) -> None:
    made = Made.usual()
    made.call("_allgather_base", 450.0, 5.0, 5000)
    path = made.write(tmp_path)
    assert patterns(measure([read(path)]))["activations", "all-gather"] == 0.5
    path.write_text(json.dumps({**json.loads(made.text()), "gravac": {"framework": "agent"}}))
    assert patterns(measure([read(path)]))["gradients", "all-gather"] == 0.5


def test_messages_are_an_agents_where_no_thread_that_trains_sends_them(tmp_path: Path) -> None:
    """On a CPU an agent of two ranks exchanges payloads by messages, on a thread of its own."""
    made = Made.usual()
    made.call("send", 450.0, 5.0, 5000, thread=5)
    made.call("send", 460.0, 5.0, 5000, thread=MAIN)
    path = made.write(tmp_path)
    assert patterns(measure([read(path)]))["pipeline", "send/recv"] == 1
    path.write_text(json.dumps({**json.loads(made.text()), "gravac": {"framework": "agent"}}))
    found = patterns(measure([read(path)]))
    assert (found["pipeline", "send/recv"], found["gradients", "send/recv"]) == (0.5, 0.5)
