"""Errors on one rank alone, uneven inputs, compiled modules, several optimizers."""

import copy
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from gravac.policies.base import Verdict
from gravac.protocol import JobSpec, WindowReport
from gravac.traces import read_trace
from gravac_agent import Agent, session
from gravac_agent.exchange import agreement
from gravac_agent.reporting.job_lock import JobLock
from tests.ranks.scenarios.model import Lines, batch, fingerprint, flat, net, train, wrapped
from tests.support.scripted import Play, ScriptedPolicy


def uneven(
    rank: int, world: int, folder: str, counts: list[int], samples: int = 0, **options: Any
) -> dict[str, Any]:
    """Ranks with different numbers of batches in a Join context, twice in a row; plainly and with the agent."""
    found = {}
    for name in ("plain", "agent"):
        module = wrapped(buckets=6)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)

        def passes(module: Any = module, optimizer: Any = optimizer) -> None:
            for begin in (0, 100):
                with Join([module]):
                    train(module, optimizer, rank, range(begin, begin + counts[rank]))

        if name == "plain":
            passes()
        else:
            with Agent(
                module, optimizer, data_dir=folder, controller=None, window=5, agreement_seconds=60, **options
            ) as agent:
                if samples:
                    agent.log(samples=samples)
                passes()
                assert agent._parts is not None
                assert agent._session is not None
                loop, trace = agent._parts.loop, agent.trace_path
                looks = agent._session.steps._unused.on or not agent._parts.channels.gradients_stay
        found[name] = fingerprint(module)
    return {
        **found,
        "steps": loop.step,
        "windows": loop.window.number,
        "saved": loop.totals.dense_bytes / loop.totals.payload_bytes,
        "samples": [] if trace is None else _samples(trace),
        "looks": looks,
    }


def _samples(trace: Path) -> list[int]:
    return [line.record.samples for line in read_trace(trace) if isinstance(line.record, WindowReport)]


def no_agent_on_rank_1(rank: int, world: int, folder: str, trains: bool) -> dict[str, Any]:
    """Rank 1 makes no agent, and waits, or ``trains`` under plain DDP. The others give up some seconds later."""
    module = wrapped(buckets=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    lines, error, before = Lines(), "", time.monotonic()
    if rank == 1:
        try:
            train(module, optimizer, rank, range(1)) if trains else time.sleep(8)
        except RuntimeError as caught:  # the other ranks have ended
            error = str(caught)
        _end_soon(trains)
        return {"logged": [], "error": error, "seconds": 0.0}
    if not trains:
        agreement.LATE_SECONDS = 1.0
    logging.getLogger("gravac.agent").addHandler(lines)
    try:
        with Agent(
            module, optimizer, data_dir=folder, controller=None, agreement_seconds=14 if trains else 5
        ):
            pass
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    _end_soon(trains)
    return {"logged": lines.texts, "error": error, "seconds": time.monotonic() - before}


def _end_soon(wanted: bool) -> None:
    """End this process when its result is written. A group in which a collective waits cannot be destroyed."""
    if wanted:
        threading.Timer(2.0, os._exit, (0,)).start()


def fails_alone(rank: int, world: int, folder: str, what: str) -> dict[str, Any]:
    """The setup fails on rank 1, or on rank 0 where only that can fail: every rank must raise at once."""
    module, other = wrapped(buckets=4), net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    options: dict[str, Any] = {"controller": None, "policy": "static:cf=4", "agreement_seconds": 60}
    state: dict[str, Any] = {}
    if what.startswith("load"):
        with Agent(module, optimizer, data_dir=folder, job="first", **options) as agent:
            train(module, optimizer, rank, range(4))
            state = flat(agent)
        module = wrapped(buckets=4)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    name = "0.weight"
    if what == "load another model" and rank == 1:
        state["shapes"][name] = [32, 128]
    if what == "load half a state" and rank == 1:
        del state["shapes"]
    if what == "load nonsense" and rank == 1:
        state["residual"][name] = "not a tensor"
    if what == "job" and rank == 1:
        options["job"] = "third"
    if what == "policy":
        options["policy"] = _StartsOnOthers(Play(None, 4.0)) if rank == 1 else ScriptedPolicy(Play(None, 4.0))
    if what == "optimizer" and rank == 1:
        optimizer = torch.optim.SGD(other.parameters(), lr=0.05)
    if what == "hook" and rank == 1:
        module.register_comm_hook(None, allreduce_hook)
    connect = session.connect
    if what == "reporter" and rank == 0:
        session.connect = _no_reporter
    error, before = "", time.monotonic()
    try:
        agent = Agent(module, optimizer, **{"data_dir": folder, "job": "second"} | options)
        with Join([module], enable=what == "join"), agent:
            if state and (what != "load not" or rank != 1):
                agent.load_state_dict(state)
            train(module, optimizer, rank, range(3))
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    finally:
        session.connect = connect
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("gravac")]
    if rank == 0 and (lock := JobLock.acquire(Path(folder), "second")) is not None:  # raises where it is held
        lock.release()
    return {"error": error, "seconds": time.monotonic() - before, "left": left}


class _StartsOnOthers(ScriptedPolicy):
    """Raises after the ranks have compared their settings."""

    def fitted(self, spec: JobSpec) -> ScriptedPolicy:
        return self

    def start(self, epoch: int = 0) -> Verdict:
        raise ValueError("no policy on this host")


def _no_reporter(*_: Any) -> Any:
    raise OSError("no reporter on this host")


def peer_dies(rank: int, world: int, folder: str, cf: float) -> dict[str, Any]:
    """The last rank ends in the middle of training, as one that is out of memory does."""
    module = wrapped(buckets=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    policy = f"static:cf={cf}" if cf > 1 else "dense"
    error, kept, began = "", "", 0.0
    try:
        with Agent(module, optimizer, data_dir=folder, controller=None, policy=policy, window=5):
            train(module, optimizer, rank, range(5))
            if rank == world - 1:
                Path(folder, f"rank{rank}.json").write_text("{}")
                os._exit(0)
            kept, began = fingerprint(module), time.monotonic()
            train(module, optimizer, rank, range(5, 8))
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    result = {"error": error, "kept": kept == fingerprint(module), "seconds": time.monotonic() - began}
    Path(folder, f"rank{rank}.json").write_text(json.dumps(result))
    os._exit(0)  # a group that lost a member cannot be taken down in order


class Wide(nn.Module):
    """About 3 MB."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [layer for _ in range(9) for layer in (nn.Linear(280, 280), nn.Tanh())]
        self.layers = nn.Sequential(nn.Linear(64, 280), *layers, nn.Linear(280, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def compiled(rank: int, world: int, folder: str) -> dict[str, Any]:
    """torch.compile(DDP): plainly, with a dense agent, and compressed; the last beside a module not compiled."""
    found: dict[str, Any] = {}
    for name in ("plain", "dense", "compressed", "not compiled"):
        module = DistributedDataParallel(
            Wide(), bucket_cap_mb=1.1
        )  # torch.compile wants buckets of at least 1 MB
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        called: Any = module if name == "not compiled" else torch.compile(module, backend="eager")
        train(called, optimizer, rank, range(3))  # compiled before the agent came
        if name == "plain":
            train(called, optimizer, rank, range(3, 20))
        else:
            policy = "dense" if name == "dense" else "static:cf=10"
            with Agent(called, optimizer, data_dir=folder, controller=None, policy=policy, window=5) as agent:
                train(called, optimizer, rank, range(3, 20))
                assert agent.state is not None
                found[name + " steps"] = [agent.state.step, agent.state.window, len(agent._session.layout)]
        found[name] = fingerprint(module)
    return found


def several_optimizers(rank: int, world: int, folder: str) -> dict[str, Any]:
    """One optimizer for the body, one for the head, the agent knows the latter: a bad step touches no parameter."""
    module = wrapped(buckets=4)
    parameters = list(module.parameters())
    body = torch.optim.SGD(parameters[:-2], lr=0.05)
    head = torch.optim.SGD(parameters[-2:], lr=0.05)
    kept = moved = False
    with Agent(module, head, data_dir=folder, controller=None, policy="static:cf=10", window=5) as agent:
        for step in range(8):
            before = copy.deepcopy([p.detach() for p in parameters])
            x, y = batch(rank, step)
            loss = nn.functional.cross_entropy(module(x), y)
            (loss * (float("nan") if step == 5 and rank == 1 else 1.0)).backward()
            for optimizer in (body, head):
                optimizer.step()
                optimizer.zero_grad()
            same = all(torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
            kept, moved = (same, moved) if step == 5 else (kept, moved or not same)
        skipped = agent.state.nonfinite_steps if agent.state else -1
    body.step()  # whatever steps later is not the agent's
    return {"kept": kept, "moved": moved, "skipped": skipped, "parameters": fingerprint(module)}
