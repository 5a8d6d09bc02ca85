"""Steps of a GPU and of a CPU, and what of a call is exposed on them."""

from pathlib import Path

import pytest

from tests.support.profiles import MAIN, Made, of, patterns


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
