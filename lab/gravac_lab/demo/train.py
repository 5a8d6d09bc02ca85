"""The training loop of the demo: an ordinary DDP loop with the agent around it, and how it reports its progress."""

import argparse
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from gravac_agent.errors import AgentError
from gravac_agent.network.link import Link, parse
from gravac_lab.tasks import Recipe, Score, Task, TaskError, digits, elements_of, evaluate, lm, loss_of

TASKS: dict[str, Callable[[], Recipe]] = {"lm": lm.demo, "digits": digits.recipe}
SEED = 0
"""Seed of weights, data and codecs."""
PR_SET_PDEATHSIG = 1
PAGE_SECONDS = 20.0
"""How long the demo waits for its page before it trains. Training does not need the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingLink(Link):
    """An emulated link that carries another rate once it has ``changed``, so that a decision follows."""

    then: Link | None
    changed: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    def seconds(self, sent_bytes: int) -> float:
        """Return how long a rank takes to send ``sent_bytes`` now."""
        if not self.changed.is_set():
            return Link.seconds(self, sent_bytes)
        return 0.0 if self.then is None else self.then.seconds(sent_bytes)


def link_of(text: str) -> Link | None:
    """Parse a rate, or two with a slash: the second one counts from the middle of the training. Raises ValueError."""
    first, slash, second = text.partition("/")
    link = parse(first)
    if not slash:
        return link
    if link is None:
        raise ValueError(f"link={text!r} must begin with a rate, such as 100mbit/20mbit")
    return ChangingLink(
        bits_per_second=link.bits_per_second, latency_seconds=link.latency_seconds, then=parse(second)
    )


class DemoReporter(Protocol):
    """Where the demo reports what happens: the events start, page, step, link and done."""

    def report(self, event: str, **facts: object) -> None:
        """Report one event with its facts: numbers, text or None."""
        ...


class NoProgress:
    """Of all ranks but 0."""

    def report(self, event: str, **facts: object) -> None:
        pass


class ProgressLines:
    """Lines for people, and only one for every ``every`` steps."""

    def __init__(self, every: int = 20, stream: IO[str] | None = None) -> None:
        self._every = every
        self._stream = sys.stdout if stream is None else stream

    def report(self, event: str, **facts: object) -> None:
        step = facts.get("step")
        if event == "step" and isinstance(step, int) and step % self._every:
            return
        shown = " ".join(f"{name} {_short(value)}" for name, value in facts.items() if value is not None)
        self._stream.write(f"{event}: {shown}\n")
        self._stream.flush()


class ProgressFile:
    """JSON objects, one a line, appended to a file that ``gravac demo`` follows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def report(self, event: str, **facts: object) -> None:
        self._file.write(json.dumps({"event": event, **facts}) + "\n")


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the options, the same on all ranks."""
    parser = argparse.ArgumentParser(prog="gravac_lab.demo", description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="lm")
    parser.add_argument("--steps", type=int, default=500, help="training steps")
    parser.add_argument(
        "--link",
        default="none",
        help="emulate this rate, such as 100mbit; 100mbit/20mbit: another one from the middle on; none: no emulation",
    )
    parser.add_argument(
        "--policy", default="auto", help="decision rule, such as auto, gravac or static:cf=100"
    )
    parser.add_argument("--window", type=int, default=20, help="steps between decisions")
    parser.add_argument("--job", default=None, help="name of the job; default: made from the time")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(os.environ.get("GRAVAC_DATA_DIR") or "gravac-runs"),
        help="folder of the journals",
    )
    parser.add_argument("--page-port", type=int, default=0, help="port of the page; 0: any free one")
    parser.add_argument("--plain", action="store_true", help="plain DDP, without the agent, to compare with")
    parser.add_argument(
        "--progress", type=Path, default=None, help="append progress to this file as JSON lines"
    )
    return parser.parse_args(arguments)


def main() -> None:
    """Entry point of one rank. Exit code 2 for wrong options, 1 for anything else that fails."""
    chosen = options()
    if "RANK" not in os.environ:
        sys.exit(
            "run by torchrun, once per rank: torchrun --standalone --nproc-per-node 2 -m gravac_lab.demo"
        )
    try:
        link_of(chosen.link)
    except ValueError as error:
        sys.exit(str(error))
    _end_with_parent()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        train(chosen)
    except (TaskError, AgentError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    finally:
        dist.destroy_process_group()
    # Skip the interpreter's shutdown: gloo's threads outlive the group, and one that frees its last tensor then aborts
    # the process ("terminate called without an active exception").
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def train(chosen: argparse.Namespace) -> float:
    """Train one task with these options and return the held-out loss, which is equal on all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    progress, link = _progress(chosen, rank), link_of(chosen.link)
    recipe = TASKS[chosen.task]()
    task = recipe.on_rank(rank, world_size, SEED)
    model = DistributedDataParallel(task.model, bucket_cap_mb=recipe.bucket_mb, gradient_as_bucket_view=True)
    optimizer = recipe.optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: recipe.schedule(step, chosen.steps))
    progress.report(
        "start", task=recipe.name, steps=chosen.steps, ranks=world_size, elements=elements_of(model)
    )
    with Agent(
        model,
        optimizer,
        policy=chosen.policy,
        window=chosen.window,
        link="none" if link is None else link,
        controller="auto",
        enabled=not chosen.plain,
        job=chosen.job,
        data_dir=chosen.data_dir,
        page_port=chosen.page_port,
    ) as agent:
        if not chosen.plain:
            agent.wait_ready(PAGE_SECONDS)
            progress.report(
                "page", url=agent.url, trace=None if agent.trace_path is None else str(agent.trace_path)
            )
        dist.barrier()
        began = time.monotonic()
        for step, (inputs, classes) in zip(range(chosen.steps), task.batches, strict=False):
            if isinstance(link, ChangingLink) and step == chosen.steps // 2:
                link.changed.set()
                progress.report("link", step=step, rate=chosen.link.partition("/")[2])
            loss = loss_of(model(inputs), classes)
            loss.backward()
            if recipe.clip_norm is not None:
                agent.clip_grad_norm_(recipe.clip_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            agent.log(loss=loss)
            now = time.monotonic()
            state = agent.state
            progress.report(
                "step",
                step=step + 1,
                loss=loss.item(),
                cf=1.0 if state is None else state.cf,
                phase="plain" if state is None else state.phase,
                seconds=now - began,
            )
            began = now
    score = heldout_score(task)
    progress.report("done", heldout_loss=score.loss, heldout_accuracy=score.accuracy)
    return score.loss


def heldout_score(task: Task) -> Score:
    """Return the score on the held-out batches of all ranks, equal on all of them."""
    mine = evaluate(task.model, task.heldout)
    sums = torch.tensor([mine.nats, mine.right, mine.count], dtype=torch.float64)
    dist.all_reduce(sums)
    nats, right, count = sums.tolist()
    return Score(nats, int(right), int(count))


def _end_with_parent() -> None:
    """Ask the kernel to end this rank when torchrun is killed (Linux only).

    A watching thread would abort the process when it wakes during the interpreter's shutdown.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _progress(chosen: argparse.Namespace, rank: int) -> DemoReporter:
    if rank:
        return NoProgress()
    return ProgressLines() if chosen.progress is None else ProgressFile(chosen.progress)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
