"""What an agent leaves behind: copies of its module, threads, open files, process groups."""

import copy
import gc
import io
import operator
import os
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gravac_agent import Agent
from gravac_agent.exchange import agreement, host_executor
from tests.ranks.scenarios.model import batch, fingerprint, train, wrapped


def _copies(module: nn.Module) -> dict[str, nn.Module]:
    saved = io.BytesIO()
    torch.save(module, saved)
    saved.seek(0)
    return {
        "deepcopy": copy.deepcopy(module),
        "averaged": AveragedModel(module).module,
        "saved": torch.load(saved, weights_only=False),
    }


def copied(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Copies of a DDP module before, during and after an agent: what each holds, and how it trains without one."""
    plain, module = wrapped(buckets=4), wrapped(buckets=4)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.05, momentum=0.9) for one in (plain, module)]
    options: dict[str, Any] = {"controller": None, "policy": "static:cf=10", "window": 5, "data_dir": folder}
    ema = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    agent = Agent(module, optimizers[1], job="first", **options)
    found: dict[str, Any] = {}
    taken = {"made": _copies(module)}
    with agent:
        train(module, optimizers[1], rank, range(8), each=lambda _: ema.update_parameters(module))
        taken["open"] = _copies(module)
        kept = fingerprint(module)
        found["equal"] = [fingerprint(one) == kept for one in taken["open"].values()]
        steps = agent.state.step if agent.state else -1
        with torch.no_grad():
            found["ema"] = bool(torch.isfinite(ema(batch(rank, 0)[0])).all())
        for one in taken["open"].values():  # the copies' steps are none of the agent's
            one_optimizer = torch.optim.SGD(one.parameters(), lr=0.05)
            train(one, one_optimizer, rank, range(2))  # type: ignore[arg-type]
        found["steps"] = [steps, agent.state.step if agent.state else -1]
        found["kept"] = fingerprint(module) == kept
    taken["closed"] = _copies(module)
    train(module, optimizers[1], rank, range(8, 10))
    # A copy trains as plain DDP does, and can have an agent of its own.
    found["plain"] = []
    for name, ours in taken["made"].items():
        control = wrapped(buckets=4)
        for one in (ours, control):
            train(one, torch.optim.SGD(one.parameters(), lr=0.05), rank, range(4))  # type: ignore[arg-type]
        found["plain"].append(fingerprint(ours) == fingerprint(control) or name)
    again = taken["closed"]["saved"]
    optimizer = torch.optim.SGD(again.parameters(), lr=0.05)
    with Agent(again, optimizer, job="second", **options) as agent:
        train(again, optimizer, rank, range(6))  # type: ignore[arg-type]
        found["cf"] = agent.state.cf if agent.state else 0.0
    found["parameters"] = fingerprint(again)
    return found


def _counts(most: list[int] | None = None) -> list[int]:
    """Threads, open files, and groups. Waits until there are no more than ``most`` of each.

    A peer's connection to the store is closed by the store's own thread, when it gets to it.
    """
    deadline = time.monotonic() + 10
    while True:
        open_files, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        counts = [threads, open_files, len(dist.distributed_c10d._world.pg_names)]
        if most is None or time.monotonic() > deadline or all(map(operator.le, counts, most)):
            return counts
        time.sleep(0.02)


def sweep(rank: int, world: int, folder: str, trials: int) -> dict[str, Any]:
    """Many agents one after the other; every fifth trial ends by an error on all ranks."""
    gc.collect()
    gc.disable()  # what an agent made is freed when it closes, and not when garbage is collected
    counts, fingerprints = [_counts()], []
    for trial in range(trials):
        module = DistributedDataParallel(
            nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 10)), bucket_cap_mb=0.004
        )
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        try:
            with Agent(module, optimizer, controller=None, data_dir=folder, policy="static:cf=4", window=2):
                train(module, optimizer, rank, range(3))
                if trial % 5 == 4:
                    raise MemoryError
        except MemoryError:
            pass
        fingerprints.append(fingerprint(module))
        del module, optimizer
        counts.append(_counts(counts[1] if trial else None))
    return {
        "counts": counts,
        "threads": [one.name for one in threading.enumerate()],
        "fingerprints": fingerprints,
    }


def one_leaves(rank: int, world: int, folder: str, how: str) -> dict[str, Any]:
    """The last rank leaves its agent by an error, or stops for long; the others close theirs in bounded time."""
    agreement.LEAVE_SECONDS = host_executor.LEAVE_SECONDS = 2.0
    module = wrapped(buckets=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    error, began = "", 0.0
    try:
        with Agent(module, optimizer, controller=None, data_dir=folder, policy="static:cf=10", window=5):
            train(module, optimizer, rank, range(4))
            began = time.monotonic()
            if rank == world - 1:
                if how == "hangs":
                    time.sleep(8)
                raise MemoryError
            if how == "raises":
                train(module, optimizer, rank, range(4, 8))
    except Exception as caught:
        error = type(caught).__name__
    return {"error": error, "seconds": time.monotonic() - began}
