"""Calls are linked to what issued them, which knows their sizes, group and phase."""

from pathlib import Path

from tests.support.profiles import AUTOGRAD, MAIN, Made, of, patterns


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
