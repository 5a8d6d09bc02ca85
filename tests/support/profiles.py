"""Profiler traces made by hand, of which every figure is known. Times are in microseconds."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gravac_observe.measure import Measurement, measure
from gravac_observe.traces import read

KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevComm*)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL(ncclDevComm*)",
    "send": "ncclDevKernel_SendRecv(ncclDevComm*)",
    "alltoall": "ncclDevKernel_SendRecv(ncclDevComm*)",
}
MAIN, AUTOGRAD = 1, 2
RECORDED = Path(__file__).parents[1] / "observe" / "traces"
"""Small traces of programs on gloo, by ``tests/observe/record.py``."""


@dataclass
class Made:
    """A trace of one rank on a GPU. Methods add events; launches happen ``lag`` before their kernels."""

    rank: int = 0
    world: int = 8
    lag: float = 50.0
    sizes: bool = True
    events: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0
    about: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def usual(cls, **settings: Any) -> "Made":
        """Two steps of 1 ms with DDP: 600 µs of computation, and two buckets of which 250 µs are exposed."""
        made = cls(**settings)
        for step in range(2):
            at = 1000.0 * step
            made.step(step, at, 1000.0)
            made.named("DistributedDataParallel.forward", at, 100.0)
            made.compute(at + 60.0, 300.0)
            made.backward(at + 100.0, 300.0)
            made.compute(at + 360.0, 200.0)
            made.gradient(at + 150.0, [1000, 1000])
            made.call("allreduce", at + 400.0, 200.0, 600_000)
            made.call("allreduce", at + 600.0, 210.0, 400_000)
            made.named("Optimizer.step#AdamW.step", at + 700.0, 100.0)
            made.compute(at + 860.0, 100.0)
        return made

    @classmethod
    def on_cpu(cls, slower: float = 0.0, woken: float = 0.0, issuing: float = 0.0) -> "Made":
        """Two steps of 100 ms on a CPU: 60 ms of computation, 40 ms of which hide an all-reduce of 80 ms.

        Args:
            slower: Milliseconds by which each of four operators during the call takes longer; the pause is shorter.
            woken: Milliseconds by which the thread goes on before the call is noted to have ended.
            issuing: Milliseconds that the thread takes to issue the call, which begins and the pause is shorter by it.
        """
        made = cls(world=2)
        for step in range(2):
            at = 100e3 * step
            made.step(step, at, 100e3)
            for place in range(6):
                start = (
                    at
                    + 10e3 * place
                    + max(0, place - 2) * 1e3 * slower
                    + (1e3 * issuing if place > 1 else 0.0)
                )
                lasts = 1e3 * (10.0 + (slower if place > 1 else 0.0))
                made.add("cpu_op", "aten::mm", start, lasts, MAIN, **{"Input Dims": [[8, 8], [8, 8]]})
            made.backward(at + 19e3, 41e3)
            sent = 1e3 * issuing
            made.add("cpu_op", "c10d::allreduce_", at + 20e3, sent, MAIN, **{"Input Dims": [[[1000]]]})
            made.add(
                "cpu_op", "gloo:all_reduce", at + 20e3 + sent, 80e3 - sent, 9, **{"Input Dims": [[1000]]}
            )
            made.add("cpu_op", "aten::add_", at + 1e3 * (100.0 - woken), 1e3 * woken, MAIN)
        return made

    def add(self, category: str, name: str, start: float, lasts: float, thread: int, **args: Any) -> None:
        process = 0 if category == "kernel" else 100
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": process,
                "tid": thread,
                "ts": start,
                "dur": lasts,
            }
            | ({"args": args} if args else {})
        )

    def step(self, number: int, start: float, lasts: float) -> None:
        self.named(f"ProfilerStep#{number}", start, lasts)

    def named(self, name: str, start: float, lasts: float, thread: int = MAIN) -> None:
        self.add("user_annotation", name, start, lasts, thread)

    def backward(self, start: float, lasts: float) -> None:
        """Add a node of autograd, within which hooks issue calls."""
        self.add("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", start, lasts, AUTOGRAD)

    def gradient(self, start: float, shape: list[int]) -> None:
        dims = {"Input Dims": [shape]} if self.sizes else {}
        self.add("cpu_op", "torch::autograd::AccumulateGrad", start, 1.0, AUTOGRAD, **dims)

    def launch(self, start: float, thread: int) -> int:
        self.number += 1
        self.add("cuda_runtime", "cudaLaunchKernel", start, 2.0, thread, correlation=self.number)
        return self.number

    def compute(self, start: float, lasts: float, name: str = "gemm") -> None:
        number = self.launch(start - self.lag, MAIN)
        self.add("kernel", name, start, lasts, 7, device=0, stream=7, correlation=number)

    def call(
        self,
        name: str,
        start: float,
        lasts: float,
        elements: int,
        ranks: tuple[int, ...] | None = None,
        thread: int = AUTOGRAD,
        on_kernel: bool = True,
    ) -> None:
        """Add a call, on the thread of autograd, with what a newer Kineto says on the kernel."""
        issued = start - self.lag
        group = tuple(range(self.world)) if ranks is None else ranks
        args = {
            "Collective name": name,
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "dtype": "Float",
            "Group size": len(group),
            "Process Group Ranks": str(list(group)),
        }
        if not self.sizes:
            args = {}
        self.add("cpu_op", "record_param_comms", issued - 2.0, 10.0, thread, **args)
        number = self.launch(issued, thread)
        self.add(
            *("kernel", KERNELS[name], start, lasts, 40),
            **{"device": 0, "stream": 40, "correlation": number} | (args if on_kernel else {}),
        )

    def text(self) -> str:
        head = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.world},
            "baseTimeNanoseconds": 1_000_000,
            "gravac": self.about,
        }
        return json.dumps(head | {"traceEvents": self.events}, indent=1)

    def write(self, folder: Path) -> Path:
        path = folder / f"rank{self.rank}.json"
        path.write_text(self.text())
        return path


def of(folder: Path, *made: Made) -> Measurement:
    return measure([read(each.write(folder)) for each in made])


def patterns(found: Measurement) -> dict[tuple[str, str], float]:
    """Return the calls of a step by what they are for."""
    calls: Counter[tuple[str, str]] = Counter()
    for row in found.rows:
        calls[row.pattern, row.kind] += row.calls  # type: ignore[assignment]
    return dict(calls)


def recorded(name: str) -> Measurement:
    return measure([read(RECORDED / f"{name}-{rank}.json.gz") for rank in (0, 1)])


def late(made: Made, by: float) -> Made:
    """Return a trace whose calls begin later, and end when they did: the others wait for it."""
    for event in made.events:
        if "nccl" in event["name"]:
            event["ts"] += by
            event["dur"] -= by
    return made
