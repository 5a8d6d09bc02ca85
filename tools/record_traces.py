"""Records the stored traces again: ``python -m tools.record_traces [NAME …]``. Real ranks and networks; 20 minutes.

Shaped links are network namespaces (needs root and ``tc``); emulated ones are paced by the agent. Each trace
goes to tests/traces as NAME.jsonl.gz and must replay.
"""

import argparse
import gzip
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gravac.replays.replay import check
from gravac.traces import read_trace
from gravac.traces.line import encode
from gravac_agent import Agent
from gravac_lab.bench.ranks import on_hosts, side_by_side
from gravac_lab.tasks import digits, lm

HERE = Path(__file__).parents[1] / "tests" / "traces"
TOKEN = "a-token-of-this-recording-only-0123"
MAX_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class Run:
    """One job. ``shaped``: bits a second of real links between hosts; None: this machine's loopback.

    ``killed``: steps before which the controller is killed; ``spoilt``: steps at which one rank's loss is NaN;
    ``orders``: orders of an operator, by the step before which they come. ``part_bytes``: at which size the journal
    begins a new part.
    """

    task: str
    windows: int
    compressor: str
    policy: str
    ranks: int = 2
    window: int = 10
    memory: str = "residual"
    shaped: float | None = None
    emulated: str = "none"
    killed: tuple[int, ...] = ()
    spoilt: tuple[int, ...] = ()
    orders: dict[int, dict[str, Any]] = field(default_factory=dict)
    part_bytes: int = 0


RUNS = {
    "digits-topk-shaped": Run(
        task="digits", windows=30, compressor="topk+bf16", policy="gravac:ladder=geometric", shaped=1e8
    ),
    "lm-topk-shaped": Run(task="lm", windows=30, compressor="topk", policy="gravac", window=8, shaped=1e8),
    "mlp-loopback": Run(task="mlp", windows=30, compressor="topk+bf16", policy="gravac"),
    "mlp-dgc-paper": Run(
        task="mlp", windows=40, compressor="dgc", memory="momentum", policy="gravac:variant=paper", emulated="50mbit"
    ),
    "digits-blockrandomk-warmup": Run(
        task="digits", windows=24, compressor="blockrandomk", policy="warmup:windows=8", emulated="1gbit"
    ),
    "mlp-qsgd-static": Run(
        task="mlp", windows=24, compressor="qsgd", policy="static:cf=4,warmup_windows=3", emulated="100mbit"
    ),
    "lm-powersgd": Run(
        task="lm", windows=20, window=8, compressor="powersgd", policy="gravac:ladder=16/64", emulated="200mbit"
    ),
    "mlp-four-ranks-shaped": Run(
        task="mlp", windows=30, compressor="sidco", policy="gravac:warmup_windows=3", ranks=4, shaped=5e7
    ),
    "mlp-controller-killed": Run(
        task="mlp", windows=40, compressor="topk+bf16", policy="gravac", emulated="50mbit", killed=(120, 240)
    ),
    "mlp-nan": Run(
        task="mlp", windows=30, compressor="topk+int8", policy="gravac", emulated="50mbit", spoilt=(87, 143, 144)
    ),
    "mlp-ruled-out": Run(
        task="mlp", windows=24, compressor="topk", policy="gravac:ladder=10/1000", emulated="50mbit"
    ),
    "mlp-steered-parts": Run(
        task="mlp",
        windows=40,
        compressor="redsync",
        policy="gravac",
        emulated="50mbit",
        part_bytes=1 << 16,
        orders={
            115: {"action": "pin", "cf": 40.0, "actor": "ada", "note": "to see what it does"},
            195: {"action": "resume", "actor": "ada"},
            265: {"action": "pause", "actor": "grace", "note": "talk to me first"},
            325: {"action": "dense", "actor": "grace"},
        },
    ),
}  # fmt: skip


class Training:
    """One rank's model and batches."""

    def __init__(self, task: str, rank: int, world: int) -> None:
        torch.manual_seed(0)
        self.batches: Iterator[tuple[Tensor, Tensor]]
        if task == "mlp":
            recipe = digits.recipe()
            model: nn.Module = nn.Sequential(
                nn.Flatten(),
                nn.Linear(64, 512),
                nn.ReLU(),
                nn.Linear(512, 256),
                nn.ReLU(),
                nn.Linear(256, 10),
            )
            made: Callable[..., torch.optim.Optimizer] = partial(torch.optim.Adam, lr=1e-3)
        else:
            recipe = lm.demo() if task == "lm" else digits.recipe()
            model, made = recipe.build_model(0), recipe.optimizer
        self.batches, self.clip = recipe.on_rank(rank, world, 0).batches, recipe.clip
        self.module = DistributedDataParallel(
            model, bucket_cap_mb=recipe.bucket_mb, gradient_as_bucket_view=True
        )
        self.optimizer = made(self.module.parameters())

    def step(self, spoilt: bool) -> Tensor:
        inputs, classes = next(self.batches)
        scores = self.module(inputs)
        loss: Tensor = cross_entropy(scores.flatten(0, -2), classes.flatten())
        (loss * (math.nan if spoilt else 1.0)).backward()
        self.clip(self.module.parameters())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def rank_of(name: str, folder: str) -> None:
    """One rank of a run, as torchrun would start it."""
    run = RUNS[name]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    training = Training(run.task, rank, world)
    options: dict[str, Any] = {"compressor": run.compressor, "memory": run.memory, "policy": run.policy}
    options |= {"link": run.emulated, "window": run.window, "job": name, "data_dir": folder}
    with Agent(training.module, training.optimizer, **options) as agent:
        agent.wait_ready(60)
        dist.barrier()
        reporter = agent._parts.reporter if agent._parts else None
        for step in range(run.windows * run.window):
            if reporter is not None and step in run.killed:
                os.kill(reporter._link.process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            if reporter is not None and step in run.orders:
                order(f"{agent.url}/v1/jobs/{name}/override", run.orders[step])
            agent.log(loss=training.step(step in run.spoilt and rank == world - 1))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads outlive the group


def order(address: str, wanted: dict[str, Any]) -> None:
    """Send an order about the epoch in force."""
    with urllib.request.urlopen(address) as answer:
        seen = answer.headers["ETag"]
    headers = {"If-Match": seen, "Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(address, json.dumps(wanted).encode(), headers, method="PUT")
    urllib.request.urlopen(request).close()


def record(name: str, folder: Path) -> None:
    """Run the job and store its trace. Raises SystemExit if the job fails or its trace does not replay."""
    run = RUNS[name]
    common = {key: value for key, value in os.environ.items() if not key.startswith("GRAVAC_")}
    common |= {"WORLD_SIZE": str(run.ranks), "OMP_NUM_THREADS": "1", "GRAVAC_CONTROLLER_CONTROL_TOKEN": TOKEN}
    if run.part_bytes:
        common["GRAVAC_CONTROLLER_JOURNAL_PART_BYTES"] = str(run.part_bytes)
    if run.shaped is None:
        ranks_on(side_by_side(run.ranks, "loopback", print).ranks, name, folder, common)
    else:
        with on_hosts(run.ranks, run.shaped, print) as places:
            if places.no_network is not None:
                raise SystemExit(f"{name}: {places.no_network}")
            ranks_on(places.ranks, name, folder, common)
    store(folder / name / "journal.jsonl", HERE / f"{name}.jsonl.gz")


def ranks_on(places: list[Any], name: str, folder: Path, common: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        common |= {"MASTER_ADDR": places[0].address, "MASTER_PORT": str(listener.getsockname()[1])}
    words = [sys.executable, "-m", "tools.record_traces", "--rank-of", name, str(folder)]
    processes = []
    for rank, place in enumerate(places):
        environment = {**common, "RANK": str(rank), "GLOO_SOCKET_IFNAME": place.interface}
        processes.append(subprocess.Popen(place.wrap(words), env=environment))
    try:
        until = time.monotonic() + MAX_SECONDS
        codes = [process.wait(max(1.0, until - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        raise SystemExit(f"{name}: ranks ended with {codes}")


def store(journal: Path, path: Path) -> None:
    """Compress all parts into one file, without a time in the gzip header."""
    digest, pieces = "", []
    for line in read_trace(journal):
        raw, digest = encode(line.record, line.time, digest)
        pieces.append(raw)
    path.write_bytes(gzip.compress(b"".join(pieces), 9, mtime=0))
    found = check(path)
    if not found.ok:
        raise SystemExit(f"{path.name}: {found.differences[0].message}")
    kinds: dict[str, int] = {}
    for line in read_trace(path):
        kinds[line.kind] = kinds.get(line.kind, 0) + 1
    print(f"{path.name}: {path.stat().st_size:,} bytes, {kinds}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(RUNS)}; all if none is named")
    parser.add_argument("--rank-of", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rank_of:
        rank_of(*chosen.rank_of)
    unknown = set(chosen.names) - set(RUNS)
    if unknown:
        parser.error(f"no run named {sorted(unknown)[0]!r}; there are {', '.join(RUNS)}")
    for name in chosen.names or RUNS:
        folder = Path(tempfile.mkdtemp(prefix="gravac-record-"))
        try:
            record(name, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
