"""One rank of a training: steps of about ten milliseconds with an agent, until it is asked to stop.

It runs in a process of its own and writes down what the checks need.
"""

import ctypes
import hashlib
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP imports it, which takes seconds: do that before the ranks are forked
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac.protocol import WindowReport
from gravac_agent import Agent
from tools.chaos.controllers import children
from tools.chaos.launch import Launch

FINGERPRINT_STEPS = 20
STEP_SECONDS = 0.01
SETTLE_SECONDS = 0.3
"""Between the agent's end and the search for controllers that it left behind."""
WIDTH, LAYERS = 48, 6


def main(launch: Launch, rank: int, orders: Connection | None) -> None:
    """Run one rank. Rank 0 sends its status on ``orders``, and stops when it receives anything."""
    code = 1
    with launch.file(rank, "log").open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    try:
        for name in [name for name in os.environ if name.startswith("GRAVAC_")]:
            del os.environ[name]
        os.environ |= launch.environment
        logging.basicConfig(
            level=logging.INFO, format="%(relativeCreated)d %(levelname)s %(name)s: %(message)s"
        )
        torch.set_num_threads(1)
        store = f"file://{launch.folder}/{launch.name}.store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=launch.world)
        train(launch, rank, orders)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # gloo's threads outlive the group and may abort the interpreter's shutdown


def train(launch: Launch, rank: int, orders: Connection | None) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    module = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, 10)), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    notes = launch.file(rank, "notes").open("w", buffering=1)
    stop, longest, closing, step = torch.zeros(1, dtype=torch.int8), (0.0, 0, 0.0), 0.0, 0

    def note(**what: Any) -> None:
        notes.write(json.dumps(what) + "\n")

    agent = Agent(module, optimizer, **launch.options)
    try:
        with agent:
            reporter = agent._parts.reporter if agent._parts is not None else None
            if reporter is not None:
                note(
                    job=agent._parts.loop.reports.job if agent._parts else "", incarnation=_incarnation(agent)
                )
                recorded(reporter, launch.handed_in)
            while not stop.item():
                began, began_at = time.monotonic(), time.time()
                x = torch.randn(8, WIDTH, generator=generator)
                loss = nn.functional.cross_entropy(module(x), (x[:, :10].argmax(1)))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                agent.log(loss=loss.detach())
                seconds = time.monotonic() - began
                if step > 2 and seconds > longest[0]:  # in the first steps DDP rebuilds its buckets
                    longest = (seconds, step, began_at)
                    note(longest=longest, busy=busy())
                step += 1
                if step % FINGERPRINT_STEPS == 0:
                    note(step=step, fingerprint=fingerprint(module))
                if orders is not None:
                    if orders.poll(0):
                        stop.fill_(1)
                    orders.send(status(agent, step))
                time.sleep(max(0.0, STEP_SECONDS - seconds))
                dist.broadcast(stop, 0)  # all ranks stop after the same step
            note(step=step, fingerprint=fingerprint(module))
            began = time.monotonic()
        closing = time.monotonic() - began
        time.sleep(SETTLE_SECONDS)
        note(left=children(os.getpid()))
    except BaseException as error:
        note(end="error", error=f"{type(error).__name__}: {error}"[:1000], steps=step)
        raise
    note(end="finished", steps=step, closing=closing, busy=busy())


def busy() -> float:
    """Return the load per core."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def _incarnation(agent: Agent) -> str:
    return agent._parts.spec.incarnation if agent._parts is not None else ""


def recorded(reporter: Any, path: Path) -> None:
    """Write each window to a file, a line each, before the reporter gets it."""
    report_window: Callable[[WindowReport], None] = reporter.report_window
    file = path.open("w", buffering=1)

    def record(report: WindowReport) -> None:
        file.write(report.model_dump_json() + "\n")
        report_window(report)

    reporter.report_window = record


def status(agent: Agent, step: int) -> dict[str, Any]:
    """Return what the chaos test watches on rank 0."""
    state = agent.state
    assert state is not None
    return {
        "step": step,
        "window": state.window,
        "epoch": state.epoch,
        "phase": state.phase,
        "cf": state.cf,
        "url": agent.url,
    }


def fingerprint(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in module.parameters():
        whole = parameter.detach().contiguous()
        digest.update(ctypes.string_at(whole.data_ptr(), whole.nbytes))
    return digest.hexdigest()
