"""What gravac costs on a GPU. Run by `make gpu`, or alone: one line a figure.

    python -m lab.benchmarks.gpu [PART ...] [--small] [--pairs N] [--lines]

machine: versions. topk: Top-k with error feedback against torch.topk and against the memory's own speed. kernels: the
others against plain torch. gpt: what a step of a GPT of 124 million parameters costs more than with plain DDP, in
bfloat16 and under autocast. host: how long the trainer's thread is inside the agent. memory: what the device holds.
loopback: two ranks on one GPU over NCCL and sockets, which is a slow link, dense against compressed.

Seconds are the device's, between events on its stream, or a synchronized clock's for whole steps. Two sides take turns,
and ratios are of pairs: the median, with quartiles. `--device cpu --small` runs all of it on the CPU in sizes that say
nothing, to try the program.
"""

import argparse
import platform
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import torch

from gravac import kernels
from gravac.version import __version__
from tools.gpu.figures import Figure, figures_in, machine_line
from tools.gpu.launch import Backend, RanksFailed, run_ranks
from tools.gpu.measure.kernels import OTHERS_SIZE, SIZES, others, topk

STEPS = "tools.gpu.measure.steps"
RANKS_SECONDS = 280
"""Until ranks that hang are killed."""
SMALL = (20_000, 100_000)
Options = argparse.Namespace


def versions(options: Options) -> Iterator[Figure]:
    """Print what the machine is; no figures."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gravac": __version__,
        "device": "the CPU",
    }
    if options.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "device": properties.name,
            "memory": f"{properties.total_memory / 2**30:.1f} GiB",
            "compute capability": f"{properties.major}.{properties.minor}",
            "CUDA": torch.version.cuda,
            "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
        }
    for name in ("triton", "numba", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    found["kernels"] = "Triton" if kernels.backend.gpu_kernels(device_of(options)) else kernels.active()
    print(machine_line(found), flush=True)
    yield from ()


def device_of(options: Options) -> torch.device:
    return torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")


def ready(options: Options) -> torch.device:
    """Compile the kernels that the device takes. Returns the device."""
    device = device_of(options)
    if device.type == "cuda":
        torch.cuda.init()
        kernels.use("cuda")
    kernels.warm()
    return device


def on_ranks(options: Options, function: str, world: int, **arguments: Any) -> Iterator[Figure]:
    """Run a function of ``STEPS`` on ranks of their own, and yield rank 0's figures."""
    backend: Backend = "nccl" if options.device == "cuda" else "gloo"
    try:
        found = run_ranks(
            f"{STEPS}:measured",
            device=options.device,
            backend=backend,
            world=world,
            seconds=RANKS_SECONDS,
            function=function,
            **arguments,
        )
    except RanksFailed as error:  # what was measured before is worth keeping
        yield from figures_in(error.outputs[0].splitlines())
        raise
    yield from (Figure(**figure) for figure in found[0])


def steps(options: Options, function: str, **arguments: Any) -> Iterator[Figure]:
    for precision in ("bf16", "autocast"):
        shape = "tiny" if options.small else "124m"
        yield from on_ranks(options, function, 1, shape=shape, precision=precision, **arguments)


def loopback(options: Options) -> Iterator[Figure]:
    shape = "tiny" if options.small else "124m, 1 sequence"
    yield from on_ranks(
        options, "loopback", 2, shape=shape, precision="autocast", steps=3 if options.small else 10
    )


PARTS: dict[str, Callable[[Options], Iterator[Figure]]] = {
    "machine": versions,
    "topk": lambda o: topk(ready(o), SMALL if o.small else SIZES, o.pairs),
    "kernels": lambda o: others(ready(o), SMALL[0] if o.small else OTHERS_SIZE, o.pairs),
    "host": lambda o: steps(o, "host_time", steps=3 if o.small else 30),
    "gpt": lambda o: steps(o, "against_ddp", pairs=2 if o.small else 9, block=2 if o.small else 20),
    "memory": lambda o: steps(o, "peak_memory", steps=3 if o.small else 6),
    "loopback": loopback,
}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lab.benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--pairs", type=int, default=21, help="pairs of the parts topk and kernels")
    parser.add_argument("--small", action="store_true", help="small sizes, to try the program")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--lines", action="store_true", help="write figures as JSON, as tools.gpu reads them")
    options = parser.parse_args(arguments)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit(
            "lab/benchmarks/gpu.py needs a CUDA GPU, and torch sees none here: run it on a machine that has one, or "
            "try the program with --device cpu --small"
        )
    for part in options.parts or PARTS:
        for figure in PARTS[part](options):
            target = figure.target()
            print(
                figure.line()
                if options.lines
                else f"{figure.name}: {figure.text()}{target and f' [{target}]'}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
