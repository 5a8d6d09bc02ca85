"""One rank that trains in blocks, when told to, and says what each took."""

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
from torch.nn.functional import cross_entropy

from gravac_agent.bench.methods import Applied, MethodError, apply
from gravac_agent.bench.rank import Answer, counters, serve
from gravac_agent.bench.task import WIDTH, build
from gravac_agent.demo.task import Task, TaskError
from gravac_agent.errors import AgentError


@dataclass(kw_only=True)
class Trainer:
    """A task under a method, at some step. ``interface``: whose counters tell the bytes; None: not known. From
    ``decay`` (first step, last step) on the learning rate falls to 0 in a straight line."""

    task: Task
    applied: Applied
    interface: str | None
    heldout_batches: int
    decay: tuple[int, int] | None = None
    step: int = 0
    _schedule: torch.optim.lr_scheduler.LambdaLR = field(init=False)

    def __post_init__(self) -> None:
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self.applied.optimizer, self._rate)

    def train(self, steps: int) -> dict[str, Any]:
        """A block of steps: wall seconds of each, the mean loss of this rank, its bytes and CPU seconds."""
        dist.barrier()
        sent, received = self._traffic()
        payload, cpu = self.applied.payload_bytes(self.step), time.process_time()
        seconds, losses = [], []
        for _ in range(steps):
            begun = time.perf_counter()
            losses.append(self._step())
            seconds.append(time.perf_counter() - begun)
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
        """Held-out loss of this rank's model on its share: summed nats, and how many bytes were predicted."""
        total, count = 0.0, 0
        self.task.model.eval()
        with torch.no_grad():
            for inputs, classes in self.task.heldout[: self.heldout_batches]:
                total += _loss(self.task.model(inputs), classes).item() * classes.numel()
                count += classes.numel()
        self.task.model.train()
        return {"nats": total, "predicted": count}

    def _rate(self, step: int) -> float:
        """Share of the task's learning rate."""
        rise = min(1.0, (step + 1) / self.task.ramp_steps)
        if self.decay is None:
            return rise
        first, last = self.decay
        return min(rise, max(0.0, (last - step) / (last - first)))

    def _step(self) -> Tensor:
        inputs, classes = next(self.task.batches)
        loss = _loss(self.applied.module(inputs), classes)
        loss.backward()
        nn.utils.clip_grad_norm_(self.task.model.parameters(), self.applied.clip_norm)
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
    """The options of one rank."""
    parser = argparse.ArgumentParser(prog="gravac_agent.bench.train", description=__doc__)
    parser.add_argument("--method", required=True, help="how gradients meet")
    parser.add_argument("--link", default="none", help="have the agent emulate this rate, such as 100mbit")
    parser.add_argument("--interface", default=None, help="network interface whose counters to read")
    parser.add_argument("--width", type=int, default=WIDTH, help="width of the LSTM; 872: 3.5 M parameters")
    parser.add_argument("--window", type=int, default=20, help="steps between an agent's decisions")
    parser.add_argument("--heldout", type=int, default=4, help="held-out batches of a rank, 4096 bytes each")
    parser.add_argument(
        "--decay", type=int, nargs=2, default=None, help="first and last step of a falling learning rate"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and data")
    parser.add_argument("--scratch", type=Path, required=True, help="folder for the agent's journal")
    return parser.parse_args(arguments)


@contextmanager
def setup(chosen: argparse.Namespace, rank: int, world_size: int) -> Iterator[tuple[dict[str, Any], Answer]]:
    """A trainer under the method asked for."""
    task = build(rank, world_size, chosen.seed, chosen.width)
    with apply(chosen.method, task, chosen.link, chosen.scratch, chosen.window) as applied:
        trainer = Trainer(
            task=task,
            applied=applied,
            interface=chosen.interface,
            heldout_batches=chosen.heldout,
            decay=None if chosen.decay is None else tuple(chosen.decay),
        )
        elements = sum(parameter.numel() for parameter in task.model.parameters())
        yield (
            {"elements": elements},
            lambda told: trainer.train(told["steps"]) if told["do"] == "train" else trainer.evaluate(),
        )


def _loss(scores: Tensor, classes: Tensor) -> Tensor:
    return cross_entropy(scores.flatten(0, -2), classes.flatten())


if __name__ == "__main__":
    serve(partial(setup, options()), (TaskError, AgentError, MethodError))
