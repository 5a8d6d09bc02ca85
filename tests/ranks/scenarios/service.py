"""Jobs and their controllers: checkpoints, deaths, watching, orders."""

import json
import logging
import logging.config
import math
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import PackageNotFoundError
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac.kernels.cpu import load
from gravac.optim import AdamW
from gravac_agent import Agent, SetupError
from gravac_agent.reporting import controller_link
from gravac_agent.windows import step_loop
from tests.ranks.scenarios.aged import digest, states
from tests.ranks.scenarios.model import Lines, batch, fingerprint, flat, train, wrapped


def resumed(rank: int, world: int, folder: str, aged: bool = False, **options: Any) -> dict[str, Any]:
    """20 clipped steps in one go against 10, a checkpoint on disk (weights_only), and 10 more in new objects.

    ``aged``: with ``gravac.optim.AdamW``. What they end with: parameters, the optimizer's state, and residuals.
    """

    def make() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
        module = wrapped(buckets=8)
        if aged:
            return module, AdamW(module.parameters(), lr=0.05)
        return module, torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)

    def end(module: DistributedDataParallel, optimizer: torch.optim.Optimizer, agent: Agent) -> list[str]:
        of_optimizer = states(optimizer, list(module.parameters()))
        return [fingerprint(module), digest(of_optimizer), digest([flat(agent)["residual"]])]

    def decay(agent: Agent, optimizer: torch.optim.Optimizer) -> Any:
        def lower(step: int) -> None:
            agent.clip_grad_norm_(0.1)
            optimizer.param_groups[0]["lr"] = 0.05 * 0.9**step

        return lower

    options |= {"data_dir": folder, "controller": None, "policy": "static:cf=25", "window": 5}
    module, optimizer = make()
    with Agent(module, optimizer, job="whole", **options) as agent:
        train(module, optimizer, rank, range(20), decay(agent, optimizer))
        whole, buckets = end(module, optimizer, agent), len(agent._session.layout) if agent._session else 0
    module, optimizer = make()
    path = f"{folder}/state{rank}.pt"
    with Agent(module, optimizer, job="first", **options) as agent:
        train(module, optimizer, rank, range(10), decay(agent, optimizer))
        torch.save(
            {"agent": agent.state_dict(), "model": module.state_dict(), "optimizer": optimizer.state_dict()},
            path,
        )
    module, optimizer = make()
    # DDP regroups its buckets after the first step: resume must not depend on them.
    with Agent(module, optimizer, job="second", **options) as agent:
        state = torch.load(path, weights_only=True)
        agent.load_state_dict(state["agent"])
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        train(module, optimizer, rank, range(10, 20), decay(agent, optimizer))
        return {"whole": whole, "resumed": end(module, optimizer, agent), "buckets": buckets}


def controller_dies(
    rank: int, world: int, folder: str, kills: list[int], steps: int, window: int = 10
) -> dict[str, Any]:
    """A job with its own controller process, killed (SIGKILL) before the given steps."""
    module = wrapped(buckets=8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    longest, killed = 0.0, []
    with Agent(
        module, optimizer, data_dir=folder, job="killed", policy="gravac:warmup_windows=1", window=window
    ) as agent:
        ready = agent.wait_ready(60)
        dist.barrier()
        reporter = agent._parts.reporter if agent._parts else None
        for step in range(steps):
            if step in kills and reporter is not None:
                until = time.monotonic() + 60
                process = reporter._link.process  # type: ignore[attr-defined]
                # On a busy machine the last one killed may not have been started again yet.
                while (not process.alive() or process.pid in killed) and time.monotonic() < until:
                    time.sleep(0.01)
                os.kill(process.pid, signal.SIGKILL)
                killed.append(process.pid)
            begun = time.monotonic()
            train(module, optimizer, rank, range(step, step + 1))
            agent.log(loss=1.0 + step)
            longest = max(longest, time.monotonic() - begun)
            time.sleep(0.01)
        if reporter is not None:
            until = time.monotonic() + 60
            while reporter._outbox and time.monotonic() < until:  # type: ignore[attr-defined]
                time.sleep(0.05)
        dist.barrier()
        last = reporter._link.process.pid if reporter is not None else None  # type: ignore[attr-defined]
        url = agent.url
    return {
        "parameters": fingerprint(module),
        "ready": ready,
        "killed": killed,
        "last_pid": last,
        "longest": longest,
        "url": url,
    }


def controller_missing(rank: int, world: int, folder: str, url: str, steps: int) -> dict[str, Any]:
    """No controller answers at the address: training goes on dense."""
    module = wrapped(buckets=8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    options: dict[str, Any] = {
        "controller": url,
        "window": 5,
        "policy": "static:cf=10",
    }
    with (
        mock.patch.multiple(controller_link, REQUEST_SECONDS=0.5, FALLBACK_WINDOWS=2),
        Agent(module, optimizer, data_dir=folder, **options) as agent,
    ):
        longest, phases = 0.0, []
        for step in range(steps):
            begun = time.monotonic()
            train(module, optimizer, rank, range(step, step + 1))
            longest = max(longest, time.monotonic() - begun)
            phases.append(agent.state.phase if agent.state else "")
        last = agent.state.cf if agent.state else 0
        begun = time.monotonic()
    return {
        "parameters": fingerprint(module),
        "longest": longest,
        "phases": phases,
        "cf": last,
        "closing": time.monotonic() - begun,
    }


def monitored(rank: int, world: int, folder: str, url: str, job: str) -> dict[str, Any]:
    """Trains over a slow link until ``folder/stop`` is there; from ``folder/fault`` on, each fourth gradient is bad."""
    module = wrapped(buckets=2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    steps, bad = 0, 0
    # so little fewer bytes that it measures dense, too, which some panels compare with
    options: dict[str, Any] = {"policy": "auto:plans=topk@1.3", "window": 10, "link": "20mbit"}
    with Agent(module, optimizer, controller=url, job=job, data_dir=folder, **options) as agent:
        while True:
            orders = [os.path.exists(f"{folder}/{order}") for order in ("stop", "fault")]
            orders_of_rank_0 = torch.tensor(orders, dtype=torch.int8)
            dist.broadcast(orders_of_rank_0, 0)  # all ranks obey at the same step
            stop, fault = orders_of_rank_0.tolist()
            if stop:
                return {"steps": steps, "bad": bad}
            x, y = batch(rank, steps)
            spoilt = bool(fault) and steps % 4 == 0
            loss = nn.functional.cross_entropy(module(x), y) * (math.nan if spoilt and rank == 1 else 1.0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            agent.log(loss=loss)
            steps, bad = steps + 1, bad + spoilt


def same_job_twice(rank: int, world: int, folder: str) -> dict[str, Any]:
    """A trainer that is restarted under the same job name, each time with its own controller."""
    epochs = []
    for _ in range(2):
        module = wrapped(buckets=4)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        with Agent(
            module, optimizer, data_dir=folder, job="twice", policy="gravac:warmup_windows=1", window=10
        ) as agent:
            agent.wait_ready(60)
            dist.barrier()
            train(module, optimizer, rank, range(45))
            epochs.append(agent.state.epoch if agent.state else -1)
    return {"parameters": fingerprint(module), "epochs": epochs}


def resumed_under_another_policy(rank: int, world: int, folder: str) -> dict[str, Any]:
    """A checkpoint of one policy, loaded under another: by a reporter in process, and by one that asks a controller."""

    def agent(policy: str, **options: Any) -> tuple[Agent, DistributedDataParallel, torch.optim.Optimizer]:
        module = wrapped(buckets=4)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        return (
            Agent(module, optimizer, data_dir=folder, policy=policy, window=3, **options),
            module,
            optimizer,
        )

    messages, waits = [], []
    for saved, loaded in (
        *(("static:cf=10", "gravac"), ("dense", "auto"), ("dense", "static:cf=10")),
        ("static:cf=10", "dense"),
    ):
        first, module, optimizer = agent(saved, controller=None)
        with first:
            train(module, optimizer, rank, range(5))
            state = first.state_dict()
        for controller in (None, "auto"):
            other, module, optimizer = agent(loaded, controller=controller)
            try:
                with other:
                    other.load_state_dict(state)
                    messages.append(f"{loaded} took it")
                    train(module, optimizer, rank, range(5, 7))
                    left = flat(other)
                    largest = max(
                        (float(each.abs().max()) for each in left["residual"].values()), default=0.0
                    )
                    assert other.state is not None
                    waits.append((left["step"], other.state.cf, largest))
            except SetupError as error:
                messages.append(str(error))
    return {"messages": messages, "waits": waits}


def names_taken(rank: int, world: int, folder: str, job: str) -> dict[str, Any]:
    """The name of a live run, with a controller and without, and then names made by the agent."""
    messages, names = [], []
    for controller in ("auto", None):
        module = wrapped(buckets=4)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        try:
            with Agent(module, optimizer, data_dir=folder, job=job, controller=controller):
                messages.append("began")
        except SetupError as error:
            messages.append(str(error))
    for _ in range(3):  # within one second, most likely
        module = wrapped(buckets=4)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        with Agent(module, optimizer, data_dir=folder, controller=None, policy="static:cf=10") as agent:
            train(module, optimizer, rank, range(3))
            assert agent.state is not None
            names.append(agent.state.job)
    return {"messages": messages, "names": names if rank == 0 else None}


def steered(
    rank: int,
    world: int,
    folder: str,
    token: str,
    orders: dict[str, dict[str, Any]],
    steps: int,
    policy: str = "static:cf=10",
) -> dict[str, Any]:
    """A job whose own controller gets ``orders`` (by step) over HTTP.

    Returns what each step sent, with its epoch, codec and bytes, and what the controller said to orders it refused.
    Then the job starts again, also from a checkpoint of its end: ``again`` has the rules in force, and what was logged.
    """
    os.environ["GRAVAC_CONTROLLER_CONTROL_TOKEN"] = token
    module = wrapped(buckets=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    sent: list[tuple[float, int]] = []
    codecs, wire, refused = list[str](), list[float](), dict[str, str]()
    options: dict[str, Any] = {"policy": policy, "window": 10}
    with (
        mock.patch.object(step_loop, "SETTLE_STEPS", 0),
        Agent(module, optimizer, data_dir=folder, job="steered", **options) as agent,
    ):
        assert agent.wait_ready(60)
        dist.barrier()
        reporter = agent._parts.reporter if agent._parts else None
        for step in range(steps):
            if reporter is not None and str(step) in orders:
                try:
                    _order(agent.url or "", token, orders[str(step)])
                except urllib.error.HTTPError as error:
                    refused[str(step)] = json.load(error)["detail"]
            if step % 10 == 5:  # the decision on the last window is there before this one is over
                until = time.monotonic() + 60
                while reporter is not None and reporter._outbox and time.monotonic() < until:  # type: ignore[attr-defined]
                    time.sleep(0.01)
                dist.barrier()
            before = agent.state
            assert before is not None
            train(module, optimizer, rank, range(step, step + 1))
            after = agent.state
            assert after is not None
            sent.append((after.cf, after.epoch))
            codecs.append(before.codec)
            wire.append(
                (after.dense_bytes - before.dense_bytes) / (after.payload_bytes - before.payload_bytes)
            )
        saved = agent.state_dict()
    found: dict[str, Any] = {
        "sent": sent,
        "codecs": codecs,
        "wire": wire,
        "parameters": fingerprint(module),
    }
    lines = Lines()
    logging.getLogger("gravac.agent").addHandler(lines)
    again = []
    for state in (None, saved):
        with Agent(module, optimizer, data_dir=folder, job="steered", **options) as agent:
            assert agent.wait_ready(60)
            if state is not None:
                agent.load_state_dict(state)
                assert agent.wait_ready(60)
            reporter = agent._parts.reporter if agent._parts else None
            dist.barrier()
            train(module, optimizer, rank, range(25))
            if reporter is not None:
                again.append(json.loads(reporter.policy_state or "{}"))
    orders_left = [(one["decision"]["rule"], one["override"]) for one in again]
    return found | ({"refused": refused, "again": orders_left, "logged": lines.texts} if rank == 0 else {})


def another_training(rank: int, world: int, folder: str, controller: str | None) -> dict[str, Any]:
    """A job with SGD, then with AdamW under its name: afresh, and from the checkpoint. Returns the names."""
    lines, names, saved = Lines(), [], None
    logging.getLogger("gravac.agent").addHandler(lines)
    for number, made in enumerate((torch.optim.SGD, torch.optim.AdamW, torch.optim.AdamW)):
        module = wrapped(buckets=4)
        optimizer = made(module.parameters(), lr=0.01)
        options: dict[str, Any] = {"policy": "static:cf=10", "window": 5, "data_dir": folder}
        with Agent(module, optimizer, job="same", controller=controller, **options) as agent:
            if number == 2:
                assert saved is not None
                if controller not in (None, "auto"):
                    assert agent.wait_ready(60)  # a name that changes before the answer needs no warning
                agent.load_state_dict(saved)
            began = agent.state
            assert agent.wait_ready(60)
            train(module, optimizer, rank, range(10 if number == 2 else 0, 20))
            state = agent.state
            assert began is not None
            assert state is not None
            names.append([began.job, state.job])
            saved = saved or agent.state_dict()
    logging.getLogger("gravac.agent").removeHandler(lines)
    return {"names": names, "logged": lines.texts}


def absent(package: str) -> str:
    raise PackageNotFoundError(package)


def logged(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Jobs in a program that has configured no logging, and in one that has.

    The last two are of AdamW on a slow link, torch's and that of ``gravac.optim``.
    """
    root, agents = logging.getLogger(), logging.getLogger("gravac.agent")
    root.handlers.clear()  # as in a program of its own
    root.setLevel(logging.WARNING)
    load.version = absent
    slow = {"controller": None, "link": "1mbit"}
    variants = ({}, {"controller": None, "policy": "dense"}, slow, slow)
    for part, options in enumerate(variants):
        if part == 1:
            logging.basicConfig(level=logging.INFO, format="ours %(levelname)s %(message)s")
        module = wrapped(buckets=4)
        kind = (*2 * (torch.optim.SGD,), torch.optim.AdamW, AdamW)[part]
        optimizer = kind(module.parameters(), lr=0.05)
        print(f"--- {part}", file=sys.stderr, flush=True)
        with Agent(
            module,
            optimizer,
            data_dir=folder,
            job=f"job{part}",
            window=10,
            **{"policy": "static:cf=10", **options},  # type: ignore[arg-type]
        ) as agent:
            agent.wait_ready(60)
            dist.barrier()
            train(module, optimizer, rank, range(25 if "link" in options else 45))
            try:
                raise ValueError("\x1b[2J red")
            except ValueError:
                agents.exception("a controller answered %s", "\x1b[31m\nfake: line")
            url = agent.url
    return {"url": url, "level": agents.level, "handlers": len(agents.handlers)}


def reconfigured(rank: int, world: int, folder: str) -> dict[str, Any]:
    """The program configures logging after its imports, as hydra does, and disables the loggers that exist."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("gravac.")]
    configuration = {
        "version": 1,
        "disable_existing_loggers": True,
        "formatters": {"plain": {"format": "ours %(levelname)s %(name)s %(message)s"}},
        "handlers": {
            "file": {"class": "logging.FileHandler", "filename": f"{folder}/log{rank}", "formatter": "plain"}
        },
        "root": {"level": "INFO", "handlers": ["file"]},
    }
    module = wrapped(buckets=2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    logging.config.dictConfig(configuration)
    with Agent(module, optimizer, controller=None, data_dir=folder, job="heard", window=10) as agent:
        train(module, optimizer, rank, range(5))
        logging.config.dictConfig(configuration)  # a second entry point, also while the agent runs
        train(module, optimizer, rank, range(25))
        agent.log(loss=1.0)
    for name in names:
        logging.getLogger(name).warning("from %s", name)
    return {"names": names}


def _order(url: str, token: str, order: dict[str, Any]) -> None:
    path = f"{url}/v1/jobs/steered/override"
    with urllib.request.urlopen(path) as answer:
        seen = answer.headers["ETag"]
    headers = {"If-Match": seen, "Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(path, json.dumps(order).encode(), headers, method="PUT")
    urllib.request.urlopen(request).close()
