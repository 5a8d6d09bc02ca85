"""The training loop of the demo: an ordinary DDP loop and the agent around it."""

import argparse
import ctypes
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from gravac_agent.demo import digits, lm
from gravac_agent.demo.report import JsonFile, Lines, Reporter, Silent
from gravac_agent.demo.task import Task, TaskError
from gravac_agent.errors import AgentError

TASKS: dict[str, Callable[[int, int, int], Task]] = {"lm": lm.build, "digits": digits.build}
PR_SET_PDEATHSIG = 1
PAGE_SECONDS = 20.0
"""How long the demo waits for its page before it trains; training itself never needs it."""


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of one rank; all ranks get the same."""
    parser = argparse.ArgumentParser(prog="gravac_agent.demo", description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="lm")
    parser.add_argument("--steps", type=int, default=500, help="training steps")
    parser.add_argument(
        "--link", default="none", help="emulate this rate, such as 100mbit; none: the real network"
    )
    parser.add_argument(
        "--policy", default="gravac", help="decision rule, such as gravac, dense or static:cf=100"
    )
    parser.add_argument("--window", type=int, default=20, help="steps between decisions")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and data")
    parser.add_argument("--job", default=None, help="name of the job; default: made from the time")
    parser.add_argument("--data-dir", type=Path, default=Path("gravac-runs"), help="folder of the journals")
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
            "run by torchrun, once per rank: torchrun --standalone --nproc-per-node 2 -m gravac_agent.demo"
        )
    _end_with_parent()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        train(chosen)
    except (TaskError, AgentError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    finally:
        dist.destroy_process_group()
    # Not through the interpreter's shutdown: gloo's threads outlive the group, and one that lets go of its last tensor
    # meanwhile aborts the process ("terminate called without an active exception").
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def train(chosen: argparse.Namespace) -> float:
    """Train one task as ``options`` say and return the held-out loss, equal on all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    reporter = _reporter(chosen, rank)
    task = TASKS[chosen.task](rank, world_size, chosen.seed)
    model = DistributedDataParallel(task.model, bucket_cap_mb=task.bucket_mb, gradient_as_bucket_view=True)
    optimizer = task.optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: _rate(step, chosen.steps, task.ramp_steps)
    )
    reporter.tell("start", task=task.name, steps=chosen.steps, ranks=world_size, elements=_elements(model))
    with Agent(
        model,
        optimizer,
        policy=chosen.policy,
        window=chosen.window,
        link=chosen.link,
        controller="auto",
        enabled=not chosen.plain,
        job=chosen.job,
        data_dir=chosen.data_dir,
        page_port=chosen.page_port,
        seed=chosen.seed,
    ) as agent:
        if not chosen.plain:
            agent.wait_ready(PAGE_SECONDS)
            reporter.tell(
                "page", url=agent.url, trace=None if agent.trace_path is None else str(agent.trace_path)
            )
        dist.barrier()
        began = time.monotonic()
        for step, (inputs, classes) in zip(range(chosen.steps), task.batches, strict=False):
            loss = _loss(model(inputs), classes)
            loss.backward()
            # As in plain DDP: clips the exchanged mean; what it cuts off is lost (docs/memories.md, "Clipping").
            nn.utils.clip_grad_norm_(model.parameters(), task.clip_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            agent.log(loss=loss)
            now = time.monotonic()
            state = agent.state
            reporter.tell(
                "step",
                step=step + 1,
                loss=loss.item(),
                cf=1.0 if state is None else state.cf,
                phase="plain" if state is None else state.phase,
                seconds=now - began,
            )
            began = now
    heldout_loss, accuracy = evaluate(task, model.module)
    reporter.tell("done", heldout_loss=heldout_loss, heldout_accuracy=accuracy)
    return heldout_loss


def evaluate(task: Task, model: nn.Module) -> tuple[float, float]:
    """Mean held-out loss (nats per class) and share of right answers, over the shares of all ranks."""
    sums = torch.zeros(3, dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        for inputs, classes in task.heldout:
            scores = model(inputs)
            right = (scores.argmax(-1) == classes).sum().item()
            sums += torch.tensor([_loss(scores, classes).item() * classes.numel(), right, classes.numel()])
    dist.all_reduce(sums)
    loss, right, count = sums.tolist()
    return loss / count, right / count


def _loss(scores: Tensor, classes: Tensor) -> Tensor:
    return cross_entropy(scores.flatten(0, -2), classes.flatten())


def _rate(step: int, steps: int, ramp_steps: int) -> float:
    """Share of the peak learning rate at a step: up over the ramp, then along a cosine to a twentieth."""
    ramp = min(1.0, (step + 1) / ramp_steps)
    return ramp * (0.05 + 0.95 * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2)


def _elements(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _end_with_parent() -> None:
    """Have the kernel end this rank when torchrun was killed outright and could not end it (Linux only).

    Not a thread that watches: one that wakes while the interpreter shuts down takes the process with it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _reporter(chosen: argparse.Namespace, rank: int) -> Reporter:
    if rank:
        return Silent()
    return Lines() if chosen.progress is None else JsonFile(chosen.progress)
