"""``StreamExecutor`` on a simulated device: bit-equal to the host's executor in any order of work, and no dependency
that it declares is superfluous."""

import re
from typing import Any, Literal

import pytest
import torch

from gravac.aggregators import AGGREGATORS
from gravac_agent.streams.executor import StreamExecutor
from tests.support.streams.codecs import CHOSEN, fast, switching
from tests.support.streams.compare import Outcome, differences
from tests.support.streams.lives import LIVES, Life
from tests.support.streams.mutants import mutants
from tests.support.streams.task import Net, Task
from tests.support.streams.training import OnStreams, each_rank, on_host, on_streams

EXACT = ("dense", "bf16", "topk", "topk+bf16", "randomk", "blockrandomk", "mstopk", "dgc")
"""Those whose steps are undone without rounding, also on the rank that has the gradient that is not finite."""
ROUNDED = ("int8", "onebit", "powersgd", "majority", "terngrad-sum")
"""Others. The host finds such a gradient before it compresses, and that rank removes nothing from its residual. On a
device nobody looks: the rank compresses what is finite, removes what it sent and adds it again, which rounds. The other
ranks do the same on both, to the bit, unless the ranks compress together, so that what one sends depends on all."""
TOGETHER = ("powersgd", "majority", "terngrad-sum")
SEEDS = 6
"""Seeds that a mutant is given to fail in. ``python -m tools.schedules`` runs thousands of schedules."""


@pytest.mark.parametrize("codec", CHOSEN)
@pytest.mark.parametrize("buckets", [1, 6])
def test_a_codec_trains_as_on_the_host(codec: str, buckets: int) -> None:
    """A CF switch in each step, on two ranks. ``python -m tools.schedules --switches 500`` does it 500 times."""
    task = Task(codec, buckets, switching(17))
    assert not differences(on_streams(task, 1), on_host(task))


@pytest.mark.parametrize("codec", [one for one in fast() if one not in CHOSEN])
def test_each_other_fast_codec_trains_as_on_the_host(codec: str) -> None:
    task = Task(codec, 6, switching(9))
    assert not differences(on_streams(task, 2), on_host(task))


def test_work_that_runs_at_once_trains_as_on_the_host() -> None:
    task = Task("topk", 6, switching(17))
    assert not differences(on_streams(task, None), on_host(task))


@pytest.mark.parametrize("codec", EXACT)
def test_steps_that_are_not_finite_are_undone_as_on_the_host(codec: str) -> None:
    task = Task(codec, 6, switching(10), bad=frozenset({(3, 1), (4, 0), (4, 1), (7, 0)}))
    host = on_host(task)
    for seed in range(2):
        assert not _differences(task, seed, host)


def _differences(task: Task, seed: int, host: list[Outcome]) -> list[str]:
    found = differences(on_streams(task, seed), host)
    if (
        task.codec == "dgc"
    ):  # its payloads have any size, and that of a bad gradient is not the size of a blank
        found = [one for one in found if not re.fullmatch(r"rank \d, step [347]: bytes", one)]
    return found


@pytest.mark.parametrize("codec", ROUNDED)
def test_steps_that_are_not_finite_are_undone_to_rounding(codec: str) -> None:
    task = Task(codec, 6, switching(10), bad=frozenset({(3, 1), (4, 0), (4, 1), (7, 0)}))
    assert not differences(on_streams(task, 0), on_host(task), tolerance=1e-6)


@pytest.mark.parametrize("codec", [*EXACT, *ROUNDED])
@pytest.mark.parametrize("buckets", [1, 6])
def test_a_step_that_is_undone_rounds_only_where_it_must(codec: str, buckets: int) -> None:
    """The last step is not finite on rank 1: what differs is its undoing alone."""
    task = Task(codec, buckets, switching(4), bad=frozenset({(3, 1)}))
    host, streams = on_host(task), on_streams(task, 0)
    net = Net(task)
    net.parameters = host[1].parameters
    gradient = torch.cat(net.gradients(3, 1))
    for rank, (mine, theirs) in enumerate(zip(streams, host, strict=True)):
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters, theirs.parameters, strict=True))
        bound = 0.0
        if codec in TOGETHER or (codec in ROUNDED and rank == 1):
            largest = max(float(one.abs().max()) for one in theirs.residual.values())
            largest += float(
                gradient[gradient.isfinite()].abs().max()
            )  # no more than that is sent of any element
            bound = (
                3 * 2**-24 * 2 * largest
            )  # e + g is rounded with - s, + s and - g, at most by half a unit each
        assert mine.residual.keys() == theirs.residual.keys()
        for name, residual in theirs.residual.items():
            assert float((mine.residual[name] - residual).abs().max()) <= bound, name


@pytest.mark.parametrize("memory", ["none", "partial", "conef", "residual-bf16"])
def test_memories_that_keep_drafts_or_round(memory: str) -> None:
    """A draft must be taken in before the residual follows a learning rate."""
    task = Task("topk", 6, switching(10), bad=frozenset({(3, 1), (7, 0)}), memory=memory, rescaled=True)
    assert not differences(on_streams(task, 0), on_host(task))


TRAINERS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": torch.bfloat16, "bad": frozenset({(3, 1), (7, 0)})},
    "bfloat16 with a GradScaler": {"dtype": torch.bfloat16, "scaled": True},
    "float16 with a GradScaler": {"dtype": torch.float16, "scaled": True},
    "clipping": {"clip": 0.3},
    "regrouped buckets": {"regrouped": True, "bad": frozenset({(0, 0), (4, 1)})},
}


@pytest.mark.parametrize("codec", ["topk", "int8"])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_trainers_do_besides(trainer: str, codec: str) -> None:
    """Where no mean leaves float16: on the host the excess waits in the memory, on a device the step does not count."""
    task = Task(codec, 6, switching(12), **TRAINERS[trainer])
    host = on_host(task)
    counted = [result.finite and not result.tick.sums.nonfinite for result in host[0].results]
    assert any(counted)
    if task.dtype is torch.float16:
        assert not all(counted[3:]), "the scale has grown until something overflowed"
    assert not differences(on_streams(task, 0), host)


@pytest.mark.parametrize("fsdp", ["rows", "replicas"])
@pytest.mark.parametrize("codec", fast())
def test_fsdp2_trains_as_on_the_host(codec: str, fsdp: Literal["rows", "replicas"]) -> None:
    """Also through steps that are not finite, which need no rounding to be undone: the gradient is gone by then."""
    if fsdp == "rows" and codec in AGGREGATORS:
        pytest.skip("aggregators of several rounds average whole gradients")
    task = Task(codec, 6, switching(9), frozenset({(3, 1), (4, 0), (7, 0)}), fsdp=fsdp)
    assert not _differences(task, 3, on_host(task))


@pytest.mark.parametrize("fsdp", ["rows", "replicas"])
@pytest.mark.parametrize(
    "changes",
    [{"memory": memory} for memory in ("none", "partial", "conef", "residual-bf16")]
    + [{"clip": 0.3}, {"dtype": torch.bfloat16}, {"dtype": torch.bfloat16, "scaled": True}],
    ids=str,
)
def test_what_trainers_do_besides_under_fsdp2(
    changes: dict[str, Any], fsdp: Literal["rows", "replicas"]
) -> None:
    bad = frozenset[tuple[int, int]]() if "scaled" in changes else frozenset({(3, 1), (7, 0)})
    task = Task("topk", 6, switching(10), bad, rescaled=True, fsdp=fsdp, **changes)
    host = on_host(task)
    for seed in range(2):
        assert not differences(on_streams(task, seed), host)


def test_a_schedule_depends_on_its_seed_alone() -> None:
    task = Task("topk", 6, switching(6))
    histories = [each_rank(task, seed, _history) for seed in (1, 1, 2)]
    assert histories[0] == histories[1] != histories[2]


def _history(one: OnStreams) -> list[str]:
    one.train()
    return one.device.history


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
def test_any_order_of_work_gives_the_same(life: Life) -> None:
    for seed in range(SEEDS):
        assert not life(StreamExecutor, seed), seed


HARMLESS = ("run_between_steps: self.device.run(self._side, job)",)
"""The trainer's stream waits for a step's futures, so between steps it is in order with the buckets as well."""


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in mutants() if name not in HARMLESS])
def test_each_dependency_is_needed(name: str) -> None:
    """Without it, some order of work gives another result, or reads what is not there yet."""
    mutant = mutants()[name]
    for seed in range(4 * SEEDS):
        for life in LIVES:
            try:
                found = life(mutant, seed)
            except Exception:
                return
            if found:
                return
    pytest.fail(f"without this the lives of {4 * SEEDS} schedules are the same: {name}")
