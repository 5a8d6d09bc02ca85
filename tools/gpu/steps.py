"""The steps of ``make gpu``, in the order in which they are worth a GPU's time. None takes ten minutes."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Step:
    """A program with a time limit.

    Attributes:
        name: What ``--step`` takes.
        title: Its heading in the table.
        kind: ``figures``: a part of ``lab/benchmarks/cuda.py``; ``tests``: pytest.
        arguments: Of the program, on a GPU.
        rehearsal: Of the program, on the CPU.
        seconds: Its limit.
    """

    name: str
    title: str
    kind: Literal["figures", "tests"]
    arguments: tuple[str, ...]
    rehearsal: tuple[str, ...]
    seconds: int


def _figures(name: str, title: str, seconds: int) -> Step:
    return Step(name, title, "figures", (name,), (name, "--device=cpu", "--small", "--pairs=2"), seconds)


def _tests(name: str, title: str, seconds: int, file: str, chosen: str = "") -> Step:
    gpu = ("-m", "gpu", "-k", chosen) if chosen else ()
    return Step(name, title, "tests", (file, *gpu), (file, "-k", "cpu") if chosen else (file,), seconds)


TWO_RANKS = "tests/gpu/test_two_ranks.py"
STEPS = (
    _figures("machine", "The machine", 120),
    _tests(
        "kernel-tests", "Kernels give the results of plain torch", 420, "tests/maths/test_kernels_cuda.py"
    ),
    _figures("topk", "Top-k", 300),
    _tests(
        "one-rank",
        "One rank over NCCL: streams, waits, CFs, compile",
        540,
        "tests/gpu/test_one_rank.py",
        "nccl",
    ),
    _figures("host", "Host time", 240),
    _figures("gpt", "A step against plain DDP", 540),
    _figures("memory", "Memory", 240),
    _tests("gloo", "Two ranks on one GPU over gloo", 540, TWO_RANKS, "gloo-cuda"),
    _tests("nccl", "Two ranks on one GPU over NCCL and sockets", 540, TWO_RANKS, "nccl"),
    _figures("loopback", "Steps of two ranks over NCCL and sockets", 300),
    _figures("kernels", "Other kernels", 240),
)
