"""What calls are for: by their phase, their group and the annotation around them."""

import json
from pathlib import Path

from gravac_observe.measure import measure
from gravac_observe.traces import read
from tests.support.profiles import MAIN, Made, of, patterns


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
