"""One rank that trains in blocks, when told to, and says what each took.

It is told by JSON lines on standard input and answers each with one on standard output; the end of the input ends
it. So a runner can let several methods take turns, each in processes of its own, and drift of the machine hits all.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gravac_agent.bench.methods import Applied, MethodError, apply
from gravac_agent.demo import lm
from gravac_agent.demo.task import Task, TaskError
from gravac_agent.errors import AgentError

PR_SET_PDEATHSIG = 1
WIDTH = 872
"""Width of the language model with 3.5 M parameters (3,511,616)."""


@dataclass(kw_only=True)
class Trainer:
    """A task under a method, at some step. ``interface``: whose counters tell the bytes; None: not known."""

    task: Task
    applied: Applied
    interface: str | None
    heldout_batches: int
    step: int = 0
    _schedule: torch.optim.lr_scheduler.LambdaLR = field(init=False)

    def __post_init__(self) -> None:
        ramp = self.task.ramp_steps
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self.applied.optimizer, lambda step: min(1.0, (step + 1) / ramp)
        )

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

    def _step(self) -> Tensor:
        inputs, classes = next(self.task.batches)
        loss = _loss(self.applied.module(inputs), classes)
        loss.backward()
        nn.utils.clip_grad_norm_(self.task.model.parameters(), self.task.clip_norm)
        self.applied.optimizer.step()
        self._schedule.step()
        self.applied.optimizer.zero_grad()
        self.step += 1
        return loss.detach()

    def _traffic(self) -> tuple[int | None, int | None]:
        if self.interface is None:
            return None, None
        folder = Path("/sys/class/net", self.interface, "statistics")
        return int((folder / "tx_bytes").read_text()), int((folder / "rx_bytes").read_text())


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of one rank; its place among the others is in RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""
    parser = argparse.ArgumentParser(prog="gravac_agent.bench.train", description=__doc__)
    parser.add_argument("--method", required=True, help="how gradients meet")
    parser.add_argument("--link", default="none", help="have the agent emulate this rate, such as 100mbit")
    parser.add_argument("--interface", default=None, help="network interface whose counters to read")
    parser.add_argument("--width", type=int, default=WIDTH, help="width of the LSTM; 872: 3.5 M parameters")
    parser.add_argument("--window", type=int, default=20, help="steps between an agent's decisions")
    parser.add_argument("--heldout", type=int, default=4, help="held-out batches of a rank, 4096 bytes each")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and data")
    parser.add_argument("--scratch", type=Path, required=True, help="folder for the agent's journal")
    return parser.parse_args(arguments)


def build(rank: int, world_size: int, seed: int, width: int) -> Task:
    """The demo's language model task with a model of this width, the same weights on all ranks."""
    task = lm.build(rank, world_size, seed)
    torch.manual_seed(seed)
    return replace(task, model=lm.ByteLSTM(width=width))


def main() -> None:
    """Entry point of one rank. Exit code 2 for wrong options, 1 for anything else that fails."""
    chosen = options()
    if "RANK" not in os.environ:
        sys.exit("run by `gravac bench train`, which says which rank this is")
    if sys.platform == "linux":  # a runner that was killed could not end this process
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", timeout=timedelta(minutes=30))
        rank, world_size = dist.get_rank(), dist.get_world_size()
        task = build(rank, world_size, chosen.seed, chosen.width)
        with apply(chosen.method, task, chosen.link, chosen.scratch, chosen.window) as applied:
            trainer = Trainer(
                task=task, applied=applied, interface=chosen.interface, heldout_batches=chosen.heldout
            )
            elements = sum(parameter.numel() for parameter in task.model.parameters())
            answers.write(json.dumps({"elements": elements}) + "\n")
            for line in sys.stdin:
                told = json.loads(line)
                answer = trainer.train(told["steps"]) if told["do"] == "train" else trainer.evaluate()
                answers.write(json.dumps(answer) + "\n")
        dist.destroy_process_group()
    except (TaskError, AgentError, MethodError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    # Not through the interpreter's shutdown: gloo's threads outlive the group and may abort it.
    sys.stderr.flush()
    os._exit(0)


def _loss(scores: Tensor, classes: Tensor) -> Tensor:
    return cross_entropy(scores.flatten(0, -2), classes.flatten())


if __name__ == "__main__":
    main()
