"""What a step queues on a GPU, counted without one: a rank whose host tensors are taken for a GPU's.

Triton's kernels are counted and not run, so values are not those of a training. Of torch's operations those count that
would start a kernel, a fill or a copy there.
"""

import importlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gravac import aggregators, kernels, memories
from gravac.collectives import AllReduce, Communicator, Done
from gravac.kernels import backend, reference
from gravac.memories import Bucket
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.host_level import HostLevel
from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_agent.exchange.tick import Announcement, TickCodec
from gravac_agent.streams.executor import StreamExecutor
from tests.support.streams.at_once import AtOnce

_VIEWS = frozenset(
    [
        "_conj",
        "_reshape_alias",
        "_unsafe_view",
        "alias",
        "as_strided",
        "chunk",
        "detach",
        "expand",
        "lift_fresh",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unsqueeze",
        "view",
    ]
)
SIZE = 1 << 17
"""Elements of a bucket."""
_EMPTY = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"])
_READS = frozenset(("_local_scalar_dense", "item", "nonzero"))


@dataclass(slots=True)
class Counts:
    """What was queued.

    Attributes:
        launches: Kernels, fills and copies.
        allocations: Tensors that were made.
        waits: Reads for which the host would wait.
        names: Of the launches, how often each.
    """

    launches: int = 0
    allocations: int = 0
    waits: int = 0
    names: Counter[str] = field(default_factory=Counter)


class _Ends(Communicator):
    def __init__(self, size: int) -> None:
        self.rank, self.size = 0, size

    def sum(self, x: Tensor) -> Done:
        return Done()

    maximum = sum

    def gather(self, out: Tensor, x: Tensor) -> Done:
        return Done()

    def broadcast(self, x: Tensor, root: int) -> Done:
        return Done()

    exchange = scatter_sum = gather


class _Counting(TorchDispatchMode):
    def __init__(self, rank: "CountedRank") -> None:
        super().__init__()
        self._rank = rank

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket).removeprefix("aten.")
        self._rank.note(name, kernel=name not in _VIEWS | _EMPTY, given="out" in (kwargs or {}))
        return found


class CountedRank:
    """One rank that sends buckets under one plan, its device's work counted.

    Args:
        codec: Of the plan.
        cf: Of the plan; 1: dense.
        ranks: World size.
        clipped: Whether the trainer clips by the agent.
        collective: How payloads meet.
        buckets: How many.
        inside: Ranks of a host, which divide gradients; 1: nobody does. ``ranks`` are then those between hosts.
    """

    def __init__(
        self,
        codec: str,
        cf: float,
        ranks: int,
        clipped: bool = False,
        collective: str = "auto",
        buckets: int = 1,
        inside: int = 1,
    ) -> None:
        ends, device, others = _Ends(ranks), _Quiet(), _Ends(inside)
        aggregator = aggregators.build(codec, ends, collective)
        channels = Channels(memories.build("residual"), (codec,), (aggregator,))
        channels.raw_mean.wanted = channels.cuts = clipped
        channels.memory.world_size, channels.gradients_stay = ranks, True
        plan = StepPlan(Directive(1, "hold", cf, cf, 0.0), cf)
        dense = AllReduce(ends)
        self._channels, self._plan = channels, plan
        self.executor = StreamExecutor(
            device=device,
            channels=channels,
            dense=lambda submitted: dense.reduce_in_place(submitted.buffer),
            ticks=ends,
            link=None,
            tick_codec=TickCodec(0, ranks),
            announcement=Announcement("", plan, None),
            compiled=True,
            host=None if inside == 1 else HostLevel(others, others, device),
        )
        self._buckets = [Bucket(number, (f"p{number}",), (SIZE,), ((SIZE,),)) for number in range(buckets)]
        self._buffers = [torch.randn(SIZE) for _ in range(buckets)]
        self._step, self._where = 0, ""
        self.found: dict[str, Counts] = {}
        for name in ("_encode", "_finish", "_join", "_sum_tick", "_decide", "_fetch"):
            self._watch(name)

    def step(self, surveyed: bool = False) -> None:
        """Run a step."""
        executor = self.executor
        executor.begin_step(self._plan, self._step, surveyed)
        for bucket, buffer in zip(self._buckets, self._buffers, strict=True):
            executor.submit(bucket, buffer, bucket is self._buckets[-1])
        assert executor._step is not None
        assert executor._step.error is None
        executor.wait_step()
        self._channels.commit()
        self._step += 1

    def settled(self, surveyed: bool = False) -> tuple[Counts, Counts]:
        """Return what the buckets, and what the step beside them, queues in the fourth step."""
        for _ in range(3):
            self.step()
        self.found = {}
        with _Counting(self):
            self.step(surveyed)
        ofs = ("_encode", "_finish", "_join")
        buckets = [counts for place, counts in self.found.items() if place in ofs]
        return _sum(buckets), _sum(counts for place, counts in self.found.items() if place not in ofs)

    def note(self, name: str, kernel: bool = True, given: bool = False) -> None:
        """Count one operation."""
        if not self._where:
            return
        counts = self.found.setdefault(self._where, Counts())
        if name in _READS:
            counts.waits += 1
        elif kernel:
            counts.launches += 1
            counts.names[name] += 1
        if name in _EMPTY or (kernel and not given and not name.endswith("_") and name not in _READS):
            counts.allocations += 1

    def _watch(self, name: str) -> None:
        inner: Callable[..., None] = getattr(self.executor, name)

        def watched(step: Any, *arguments: Any) -> None:
            self._where = name
            try:
                inner(step, *arguments)
            finally:
                self._where = ""

        setattr(self.executor, name, watched)


class _Quiet(AtOnce):
    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(size, dtype=dtype, device="cpu")


def _sum(parts: Any) -> Counts:
    total = Counts()
    for part in parts:
        total.launches += part.launches
        total.allocations += part.allocations
        total.waits += part.waits
        total.names += part.names
    return total


class _Again:
    """Counts a launch that was made before."""

    def __init__(self, name: str, ranks: list["CountedRank"]) -> None:
        self._name, self._ranks = name, ranks

    def holding(self, first: int) -> "_Again":
        return self

    def __call__(self, *first: Any) -> None:
        for rank in self._ranks:
            rank.note(self._name, given=True)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list["CountedRank"]]:
    """Take the host for a GPU. Ranks in the list count Triton's launches, which are not run."""
    ranks: list[CountedRank] = []
    kernels.use("auto")
    monkeypatch.setattr(backend, "_GPUS", ("cpu",))
    monkeypatch.setattr(backend, "_gpu", True)
    monkeypatch.setattr(reference, "AT_ONCE", 1 << 40)

    def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> _Again:
        again = _Again(kernel.fn.__name__, ranks)
        again()
        _pretend(kernel.fn.__name__, arguments)
        return again

    def table_of(*given: Any) -> Tensor:
        for rank in ranks:
            rank.note("table_of")  # a copy to the device
        return made(*given)

    made = importlib.import_module("gravac.kernels.cuda.tables").table_of
    for module in map(
        importlib.import_module, (f"gravac.kernels.cuda.{name}" for name in backend._GPU_KERNELS)
    ):
        monkeypatch.setattr(module, "launch", launch)
        if hasattr(module, "table_of"):
            monkeypatch.setattr(module, "table_of", table_of)
    with kernels.treated_as_device():
        yield ranks


def _pretend(name: str, arguments: tuple[Any, ...]) -> None:
    """Leave places in bounds where a kernel would have written some."""
    for number in {"_take": (4, 5), "_find": (3,), "_keep": (3,)}.get(name, ()):
        with torch.utils._python_dispatch._disable_current_modes():
            arguments[number].zero_()
