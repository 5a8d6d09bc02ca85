"""One rank that trains in blocks, on request, and reports what each block took."""

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gravac_agent.errors import AgentError
from gravac_lab.programs.methods import Applied, MethodError, apply
from gravac_lab.programs.process import Answer, counters, serve_requests
from gravac_lab.tasks import Task, TaskError, elements_of, evaluate, lm, loss_of, make

WIDTH = lm.WIDTHS["3m"]
"""Width of the language model with 3.5 M parameters (3,511,616)."""


@dataclass(kw_only=True)
class Trainer:
    """A task trained by a method.

    Attributes:
        task: The task on this rank.
        applied: The task under its method.
        interface: Network interface whose counters give the bytes; None: they are not reported.
        heldout_batches: Held-out batches that ``evaluate`` uses.
        length: Steps of the whole training, over which the learning rate follows the recipe's schedule; None: it does
            not.
        step: Steps done.
    """

    task: Task
    applied: Applied
    interface: str | None
    heldout_batches: int
    length: int | None = None
    step: int = 0
    _schedule: torch.optim.lr_scheduler.LambdaLR = field(init=False)

    def __post_init__(self) -> None:
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self.applied.optimizer, self._rate)

    def train(self, steps: int) -> dict[str, Any]:
        """Train a block of steps. Returns wall seconds of each, this rank's mean loss, its bytes and CPU seconds."""
        dist.barrier()
        sent, received = self._traffic()
        payload, cpu = self.applied.payload_bytes(self.step), time.process_time()
        seconds, losses = [], []
        for _ in range(steps):
            began = time.perf_counter()
            losses.append(self._step())
            seconds.append(time.perf_counter() - began)
        cpu = time.process_time() - cpu
        payload = self.applied.payload_bytes(self.step) - payload
        dist.barrier()
        now_sent, now_received = self._traffic()
        return {
            "seconds": seconds,
            "loss": float(torch.stack(losses).mean()),
            "cpu_seconds": cpu,
            "payload_bytes": payload,
            "sent_bytes": None if sent is None or now_sent is None else now_sent - sent,
            "received_bytes": None if received is None or now_received is None else now_received - received,
        }

    def evaluate(self) -> dict[str, Any]:
        """Measure the held-out loss on this rank's share. Returns the summed nats and the number of predicted bytes."""
        score = evaluate(self.task.model, self.task.heldout[: self.heldout_batches])
        return {"nats": score.nats, "predicted": score.count}

    def _rate(self, step: int) -> float:
        """Return the learning rate as a share of the task's."""
        if self.length is not None:
            return self.task.recipe.schedule(step, self.length)
        return self.task.recipe.schedule.ramp(step)

    def _step(self) -> Tensor:
        inputs, classes = next(self.task.batches)
        loss = loss_of(self.applied.module(inputs), classes)
        loss.backward()
        if self.applied.clip is None:
            nn.utils.clip_grad_norm_(self.task.model.parameters(), self.applied.clip_norm)
        else:
            self.applied.clip(self.applied.clip_norm)
        self.applied.optimizer.step()
        self._schedule.step()
        self.applied.optimizer.zero_grad()
        self.step += 1
        return loss.detach()

    def _traffic(self) -> tuple[int | None, int | None]:
        if self.interface is None:
            return None, None
        counted = counters(self.interface)
        return counted["tx_bytes"], counted["rx_bytes"]


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options of one rank."""
    parser = argparse.ArgumentParser(prog="gravac_lab.programs.train", description=__doc__)
    parser.add_argument("--method", required=True, help="how gradients are averaged")
    parser.add_argument("--link", default="none", help="have the agent emulate this rate, such as 100mbit")
    parser.add_argument("--interface", default=None, help="network interface whose counters to read")
    parser.add_argument(
        "--width", type=int, default=WIDTH, help="width of the LSTM; 872 gives 3.5 M parameters"
    )
    parser.add_argument("--task", default=None, help="a task other than the LSTM, such as gpt:size=3m")
    parser.add_argument("--length", type=int, default=None, help="steps of the whole training of --task")
    parser.add_argument("--window", type=int, default=20, help="steps between an agent's decisions")
    parser.add_argument(
        "--heldout", type=int, default=4, help="held-out batches of a rank, 16 sequences each"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and data")
    parser.add_argument("--scratch", type=Path, required=True, help="folder for the agent's journal")
    return parser.parse_args(arguments)


@contextmanager
def setup(chosen: argparse.Namespace, rank: int, world_size: int) -> Iterator[tuple[dict[str, Any], Answer]]:
    """Answer requests ``{"do": "train", "steps": …}`` and ``{"do": "evaluate"}``."""
    if chosen.task is None:
        task, bucket_mb = lm.demo(chosen.width).on_rank(rank, world_size, chosen.seed), None
    else:
        recipe = make(chosen.task)
        task, bucket_mb = recipe.part_of(rank, world_size, chosen.seed), recipe.bucket_mb
    with apply(chosen.method, task, chosen.link, chosen.scratch, chosen.window, bucket_mb) as applied:
        trainer = Trainer(
            task=task,
            applied=applied,
            interface=chosen.interface,
            heldout_batches=chosen.heldout,
            length=chosen.length,
        )

        def answer(request: dict[str, Any]) -> dict[str, Any]:
            return trainer.train(request["steps"]) if request["do"] == "train" else trainer.evaluate()

        yield {"elements": elements_of(task.model)}, answer


if __name__ == "__main__":
    serve_requests(partial(setup, options()), (TaskError, AgentError, MethodError))
