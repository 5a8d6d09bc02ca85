"""One of many ranks of a small real job, which answers requests from standard input."""

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac import aggregators
from gravac.collectives import ProcessGroupCommunicator, Work
from gravac.compressors import Key
from gravac.memories import Bucket
from gravac_agent import Agent
from gravac_agent.network.doubling import Doubling
from gravac_lab.bench.namespaces import enter
from gravac_lab.programs.process import Answer, serve_requests

NAMESPACE = "MEMBER_NAMESPACE"
"""Variable with the network namespace of this rank's host."""
STEPS = 5
"""Steps of a window, where the policy orders no longer ones."""
JOB = "scale"


class SmallRank:
    """A rank. Its methods are the requests, by name, and their keyword arguments."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        assert dist.group.WORLD is not None
        self._world = dist.group.WORLD
        self._module = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)))
        self._optimizer = torch.optim.AdamW(self._module.parameters(), lr=1e-3)
        self._agent: Agent | None = None

    def start(self, folder: str, policy: str, levels: str) -> dict[str, Any]:
        """Start an agent. Returns the seconds that it took."""
        began = time.monotonic()
        agent = Agent(
            self._module,
            self._optimizer,
            data_dir=folder,
            job=JOB,
            policy=policy,
            levels=levels,
            window=STEPS,
        )
        agent.start()
        self._agent = agent
        return {"seconds": time.monotonic() - began}

    def train(self, steps: int) -> dict[str, Any]:
        """Train for as many steps. Returns the median seconds of a step."""
        generator = torch.Generator().manual_seed(self._world.rank())
        took = []
        for _ in range(steps):
            began = time.monotonic()
            inputs = torch.randn(4, 64, generator=generator, dtype=torch.float32)
            self._module(inputs).square().mean().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            took.append(time.monotonic() - began)
        return {"seconds": sorted(took)[len(took) // 2]}

    def tick(self, repeats: int) -> dict[str, Any]:
        """Send as many ticks. Returns the seconds and the bytes of one."""
        return self._sums(repeats, Doubling(self._world).sum)

    def ring(self, repeats: int) -> dict[str, Any]:
        """Send as many ticks by gloo's own all-reduce. Returns as ``tick``."""
        return self._sums(repeats, ProcessGroupCommunicator(self._world).sum)

    def _sums(self, repeats: int, issue: Callable[[torch.Tensor], Work]) -> dict[str, Any]:
        assert self._agent is not None
        assert self._agent._parts is not None
        codec = self._agent._parts.executor.tick_codec
        vector = torch.zeros(codec.size + codec.sampled, dtype=torch.float64)
        began = time.monotonic()
        for _ in range(repeats):
            issue(vector).wait()
        return {"seconds": (time.monotonic() - began) / max(1, repeats), "bytes": vector.nbytes}

    def exchange(self, codec: str, cf: float, collective: str, numel: int, repeats: int) -> dict[str, Any]:
        """Exchange a gradient as often. Returns the seconds of one."""
        aggregator = aggregators.build(codec, self._world, collective)
        rank = self._world.rank()
        gradient = torch.randn(numel, generator=torch.Generator().manual_seed(rank), dtype=torch.float32)
        began = time.monotonic()
        for step in range(repeats):
            bucket = aggregator.open(Bucket(0, ("x",), (numel,)))
            flight = bucket.prepare(gradient, (cf,), Key(0, step, 0, rank), torch.float32).send(cf)
            flight.work.wait()
            flight.mean_into(torch.empty(numel, dtype=torch.float32))
        return {"seconds": (time.monotonic() - began) / max(1, repeats)}

    def look(self) -> dict[str, Any]:
        """Return what this process holds: memory, of which a part is shared with others, and sockets."""
        files = (Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
        sockets = sum(1 for file in files if file.is_symlink() and "socket:" in os.readlink(file))
        return {"memory": memory("self"), "sockets": sockets}

    def page(self) -> dict[str, Any]:
        """Return, of rank 0, what the controller holds and shows once it has a window."""
        agent = self._agent
        if self._world.rank() or agent is None:
            return {}
        agent.wait_ready(120)
        until = time.monotonic() + 120
        while self._get(f"/v1/jobs/{JOB}")["windows"] == 0 and time.monotonic() < until:
            time.sleep(0.05)
        assert agent.url is not None
        with urllib.request.urlopen(f"{agent.url}/metrics", timeout=60) as answer:
            metrics = answer.read().decode()
        assert agent.trace_path is not None
        lines = agent.trace_path.read_text().splitlines()
        reports = [len(line) for line in lines if '"first_step"' in line]
        controller = controller_of(os.getpid())
        return {
            "windows": self._get(f"/v1/jobs/{JOB}")["windows"],
            "rows": len(self._get(f"/v1/jobs/{JOB}/ranks")["ranks"]),
            "page_bytes": len(json.dumps(self._get(f"/v1/jobs/{JOB}"))),
            "metrics_rows": metrics.count("\ngravac_rank_relative_speed_ratio{"),
            "metrics_bytes": len(metrics),
            "journal_bytes": sum(reports) / max(1, len(reports)),
            "controller_memory": None if controller is None else memory(controller),
        }

    def close(self) -> dict[str, Any]:
        """End the agent."""
        assert self._agent is not None
        self._agent.close()
        return {}

    def _get(self, path: str) -> Any:
        assert self._agent is not None
        assert self._agent.url is not None
        with urllib.request.urlopen(self._agent.url + path, timeout=60) as answer:
            return json.load(answer)


def memory(process: int | str) -> dict[str, int]:
    """Return the bytes of a process in memory: all, and its share where several have the same pages."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    values = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return {"rss": values["Rss"], "pss": values["Pss"]}


def controller_of(parent: int) -> int | None:
    """Return the controller that a process has started; None where there is none."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        if b"gravac_controller" in words and above == parent:
            return int(folder.name)
    return None


@contextmanager
def setup(began: float, rank: int, world_size: int) -> Iterator[tuple[dict[str, Any], Answer]]:
    """Answer requests ``{"do": name, …}``, a method of ``SmallRank``."""
    connected = time.monotonic() - began
    member = SmallRank()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = getattr(member, request.pop("do"))(**request)
        return found

    yield {"seconds": connected}, answer


def main() -> None:
    if namespace := os.environ.get(NAMESPACE):
        enter(namespace)
    serve_requests(partial(setup, time.monotonic()))
