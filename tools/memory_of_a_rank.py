"""Print what a rank holds beside plain DDP, by part: two gloo ranks train an LSTM, first plain, then under an agent.

    python -m tools.memory_of_a_rank [--steps 20] [--optimizer AdamW] [--policy static:cf=10]

Each line is what one thing added to rank 1's memory (USS: what the process would give back; PSS: with its share of what
the ranks map together). What was freed is returned to the system before each reading; the lines "kept free" say how
much that was, after steps of each kind: glibc keeps it for the next step. Run it twice: the first run may compile.
"""

import argparse
import ctypes
import gc
import importlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

MIB = 1 << 20


class Model(nn.Module):
    """An LSTM of two layers over characters, 3.5 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 256)
        self.lstm = nn.LSTM(256, 480, 2, batch_first=True)
        self.head = nn.Linear(480, 256)

    def forward(self, text: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.embedding(text[:, :-1]))[0])
        return nn.functional.cross_entropy(out.flatten(0, 1), text[:, 1:].flatten())


def held() -> tuple[float, float]:
    """Return USS and PSS of this process in MiB."""
    lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]]
    kib = {words[0]: int(words[1]) for words in lines}
    return (kib["Private_Clean:"] + kib["Private_Dirty:"]) / 1024, kib["Pss:"] / 1024


def added(rows: list[tuple[str, float, float]]) -> tuple[float, float]:
    """Return the sums of both columns."""
    return sum(uss for _, uss, _ in rows), sum(pss for _, _, pss in rows)


def rank(steps: int, kind: str, policy: str, folder: str) -> None:
    """Train, and print the parts on rank 1."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    module = DistributedDataParallel(Model())
    optimizer = getattr(torch.optim, kind)(module.parameters(), lr=0.01)
    rows: list[tuple[str, float, float]] = []
    last = 0.0, 0.0

    def row(name: str, *, trim: bool = True) -> None:
        nonlocal last
        dist.barrier()
        if trim:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        now = held()
        rows.append((name, now[0] - last[0], now[1] - last[1]))
        last = now

    def train() -> float:
        """Train, and return the peak of the second half in MiB (RSS, with files that are mapped)."""
        for step in range(steps):
            if step == steps // 2:
                Path("/proc/self/clear_refs").write_text("5")
            module(torch.randint(256, (8, 65))).backward()
            optimizer.step()
            optimizer.zero_grad()
        status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        return int(status["VmHWM"].split()[0]) / 1024

    plain_peak = train()
    row(f"plain DDP, {steps} steps", trim=False)
    row("  kept free")
    importlib.import_module("pydantic_settings")
    row("pydantic")
    from gravac import Agent, kernels

    row("modules of gravac and its agent")
    kernels.warm()
    row("compiled kernels")
    agent = Agent(module, optimizer, policy=policy, controller=None, data_dir=folder, job="memory")
    agent.__enter__()
    row("entering the agent: threads, groups, network")
    peak = train()
    row(f"{steps} steps with it", trim=False)
    row("  kept free")
    assert agent._parts is not None
    residual = agent._parts.memory.nbytes() / MIB
    agent._parts.loop.progress._reference = None
    gc.collect()
    row("  the second optimizer")
    if dist.get_rank() == 1:
        elements = sum(p.numel() for p in module.parameters())
        print(f"{elements:,} parameters, {kind}, {policy}; MiB of rank 1 of 2")
        print(f"{'':56}    USS     PSS")
        for name, uss, pss in rows:
            print(f"{name:56}{uss:7.1f} {pss:7.1f}")
        uss, pss = added(rows[1:-2])
        print(f"{'together, beside plain DDP, with what is kept free':56}{uss:7.1f} {pss:7.1f}")
        uss, pss = added(rows[2:-1])
        print(f"{'together, beside plain DDP, without it':56}{uss:7.1f} {pss:7.1f}")
        print(f"of which the residual is {residual:.1f}; Python's threads: {threading.active_count()}")
        over = peak - plain_peak
        print(
            f"peak of RSS within steps: {over:.1f} above plain DDP, {over - residual:.1f} without the residual"
        )
    agent.close()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--optimizer", default="AdamW")
    parser.add_argument("--policy", default="static:cf=10")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank(given.steps, given.optimizer, given.policy, os.environ["FOLDER"])
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tools.memory_of_a_rank", "--rank"]
    command += ["--steps", str(given.steps), "--optimizer", given.optimizer]
    command += ["--policy", given.policy]
    with tempfile.TemporaryDirectory() as folder:
        common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "FOLDER": folder}
        ranks = [
            subprocess.Popen(command, env={**common, "RANK": str(one), "WORLD_SIZE": "2"}) for one in (0, 1)
        ]
        sys.exit(max(one.wait() for one in ranks))


if __name__ == "__main__":
    main()
