"""One step of ``make gpu`` that is no test: it prints each figure when it is known.

    python -m tools.gpu.step NAME [--seconds N] [--device cpu --small]

start: versions, and the seconds until kernels are loaded. host: how long the trainer's thread is inside the agent, and
what it launches there. cost: a step of a GPT of 124 million parameters against plain DDP. observe: ``gravac observe``
on two ranks. kernels: Top-k and whole messages against ``torch.topk`` and a copy. gpt: that GPT on two ranks of a slow
link, its loss by steps and by seconds.

Seconds are the device's, between events on its stream, or a synchronized clock's for whole steps. ``--device cpu
--small`` runs a step in sizes that say nothing, to try the program.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from gravac import kernels
from gravac.version import __version__
from tools.gpu.figures import Figure, figures_in, machine_line
from tools.gpu.launch import ON_ONE_GPU, Backend, RanksFailed, run_ranks
from tools.gpu.measure import observed
from tools.gpu.measure.kernels import SIZES, owned_messages, topk, whole_messages

SMALL = (20_000, 100_000)
SMALL_SECONDS = 25.0
BUCKET = 6_500_000
"""Elements of one of DDP's buckets."""
PAIRS = 11
LAST_SECONDS = 3.0
"""Left for writing down what ranks have found when their time is up."""
Options = argparse.Namespace


def facts(options: Options) -> dict[str, Any]:
    """Return what the machine is."""
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
    return found


def device_of(options: Options) -> torch.device:
    return torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")


def start(options: Options) -> Iterator[Figure]:
    """Measure what passes before the first step of a process, and how many kernels came with the checkout."""
    imported = time.time()
    yield Figure(name="start: Python, torch and gravac", value=imported - options.begun, unit="s")
    looked_up = Counter[bool]()
    device = device_of(options)
    if device.type == "cuda":
        import triton

        triton.knobs.compilation.listener = lambda *, cache_hit, **_: looked_up.update([cache_hit])
        torch.zeros(1, dtype=torch.float32, device=device)
        torch.cuda.synchronize(device)
        yield Figure(name="start: first use of the GPU", value=time.time() - imported, unit="s")
    print(machine_line(facts(options)), flush=True)
    begun = time.perf_counter()
    ready(options)
    yield Figure(name="start: kernels", value=time.perf_counter() - begun, unit="s")
    yield Figure(name="start: kernels that came compiled", value=float(looked_up[True]))
    yield Figure(name="start: kernels compiled here", value=float(looked_up[False]))


def ready(options: Options) -> torch.device:
    """Compile the kernels that the device takes. Returns the device."""
    device = device_of(options)
    if device.type == "cuda":
        torch.cuda.init()
        kernels.use("cuda")
    kernels.warm()
    return device


def on_ranks(options: Options, function: str, world: int, shape: str, **arguments: Any) -> Iterator[Figure]:
    """Run a function of ``tools.gpu.measure`` on ranks of their own, and yield rank 0's figures."""
    backend: Backend = "nccl" if options.device == "cuda" else "gloo"
    try:
        found = run_ranks(
            "tools.gpu.measure.cost:measured",
            device=options.device,
            backend=backend,
            world=world,
            seconds=max(1.0, options.until - time.monotonic() - LAST_SECONDS),
            function=function,
            shape="tiny" if options.small else shape,
            **arguments,
        )
    except RanksFailed as error:  # what was measured before is worth keeping
        yield from figures_in(error.outputs[0].splitlines())
        raise
    yield from (Figure(**figure) for figure in found[0])


def observe(options: Options) -> Iterator[Figure]:
    """Let ``gravac observe`` record two ranks that train densely, and read what it says of them."""
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    program += ["tools.gpu.measure.observed", options.device, *(["--small"] if options.small else [])]
    recording = ["--warmup", str(observed.WARM_UP), "--steps", str(observed.RECORDED)]
    command = [sys.executable, "-m", "gravac_controller", "observe", "--json", *recording, "--", *program]
    with TemporaryDirectory() as folder:
        surroundings = {
            **os.environ,
            **(ON_ONE_GPU if options.device == "cuda" else {"GLOO_SOCKET_IFNAME": "lo"}),
            "GRAVAC_DATA_DIR": folder,
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            command,
            env=surroundings,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            cwd=Path(__file__).parents[2],
        )
    if done.returncode:
        sys.exit(f"gravac observe ended with {done.returncode}")
    said = json.loads(done.stdout)
    for line in ("verdict", "why", "next"):
        print(said[line], flush=True)
    yield Figure(name="observe: traces", value=float(said["traces"]), least=2.0)
    yield Figure(name="observe: a step", value=said["step_seconds"], unit="s")
    exposed = 100 * said["exposed_seconds"] / said["step_seconds"]
    yield Figure(name="observe: exposed communication", value=exposed, unit="%")
    gradients = [row for row in said["communication"] if row["pattern"] == "gradients"]
    yield Figure(name="observe: gradients of a step", value=sum(row["bytes"] for row in gradients), unit="B")


def on_kernels(options: Options) -> Iterator[Figure]:
    """Measure kernels: whole messages of a bucket first, which no GPU has run yet."""
    device, pairs = ready(options), 1 if options.small else PAIRS
    yield from whole_messages(device, SMALL[0] if options.small else BUCKET, pairs)
    yield from owned_messages(device, SMALL[0] if options.small else BUCKET, pairs)
    yield from topk(device, SMALL if options.small else SIZES, pairs)


def gpt(options: Options) -> Iterator[Figure]:
    left = min(
        SMALL_SECONDS if options.small else math.inf, options.until - time.monotonic() - 2 * LAST_SECONDS
    )
    yield from on_ranks(options, "learning:learning", 2, "124m, 8 sequences", until=time.time() + left)


STEPS: dict[str, Callable[[Options], Iterator[Figure]]] = {
    "start": start,
    "host": lambda o: on_ranks(o, "cost:host_time", 1, "124m", steps=3 if o.small else 12),
    "cost": lambda o: on_ranks(
        o, "cost:against_ddp", 1, "124m", pairs=2 if o.small else 3, block=2 if o.small else 6
    ),
    "observe": observe,
    "kernels": on_kernels,
    "gpt": gpt,
}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="tools.gpu.step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=list(STEPS))
    parser.add_argument("--seconds", type=float, default=600.0, help="in which it should end")
    parser.add_argument("--begun", type=float, default=time.time(), help="when it was started, by the clock")
    parser.add_argument("--small", action="store_true", help="small sizes, to try the program")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(arguments)
    options.until = time.monotonic() + options.seconds
    for figure in STEPS[options.step](options):
        print(figure.line(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
