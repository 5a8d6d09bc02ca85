"""One loop with all of it: accumulation, mixed precision, clipping, a schedule, checkpoints, Ctrl-C, two agents.

A large and a small model learn to continue Python source text. Run it on one machine:

    torchrun --standalone --nproc-per-node 2 examples/train_loop.py

Stop it with Ctrl-C and start it again: it continues, and ends with the same parameters as a run that was not stopped.
"""

import argparse
import os
import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gravac import Agent

TEXT = torch.tensor(
    list(b"".join(file.read_bytes() for file in sorted(Path(os.__file__).parent.glob("*.py"))[:30]))
)
CONTEXT, BATCH, MICRO_BATCHES = 8, 32, 2
SAVED = ("model", "optimizer", "schedule", "scaler", "agent")


def batch(number: int) -> tuple[Tensor, Tensor]:
    """Return pieces of the text and the byte after each. ``number`` decides which, so that a resumed run is exact."""
    generator = torch.Generator().manual_seed(number * dist.get_world_size() + dist.get_rank())
    pieces = TEXT.unfold(0, CONTEXT + 1, 1)[torch.randint(len(TEXT) - CONTEXT, (BATCH,), generator=generator)]
    return pieces[:, :-1], pieces[:, -1]


class Training:
    """A model and what belongs to it."""

    def __init__(self, name: str, width: int, steps: int) -> None:
        torch.manual_seed(0)
        layers = (
            nn.Embedding(256, 32),
            nn.Flatten(),
            nn.Linear(32 * CONTEXT, width),
            nn.ReLU(),
            nn.Linear(width, 256),
        )
        self.model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.scaler = torch.amp.GradScaler("cpu")
        # The same job= after a restart continues the same journal and page.
        self.agent = Agent(self.model, self.optimizer, scaler=self.scaler, job=f"text-{name}")

    def step(self, number: int) -> float:
        total = 0.0
        for micro in range(MICRO_BATCHES):
            inputs, targets = batch(number * MICRO_BATCHES + micro)
            last = micro == MICRO_BATCHES - 1
            with nullcontext() if last else self.model.no_sync(), torch.autocast("cpu", torch.float16):
                loss = cross_entropy(self.model(inputs), targets) / MICRO_BATCHES
            self.scaler.scale(loss).backward()
            total += loss.item()
        self.scaler.unscale_(self.optimizer)
        self.agent.clip_grad_norm_(1.0)  # instead of torch.nn.utils.clip_grad_norm_
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad()
        self.agent.log(loss=total)
        return total

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).state_dict() for name in SAVED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in SAVED:
            getattr(self, name).load_state_dict(state[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    path = options.checkpoints / f"rank{dist.get_rank()}.pt"  # each rank has a residual of its own
    path.parent.mkdir(parents=True, exist_ok=True)
    interrupted = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    trainings = [Training("large", 256, options.steps), Training("small", 64, options.steps)]
    with trainings[0].agent, trainings[1].agent:
        begin = 0
        if path.exists():  # before the first step
            state = torch.load(path, weights_only=True)
            begin = state["step"]
            for training, one in zip(trainings, state["trainings"], strict=True):
                training.load_state_dict(one)
        for step in range(begin, options.steps):
            losses = [training.step(step) for training in trainings]
            if dist.get_rank() == 0 and step % 20 == 0:
                print(f"step {step}", *(f"loss {loss:.3f}" for loss in losses), flush=True)
            stop = torch.tensor(float(interrupted.is_set()))
            dist.all_reduce(stop)  # Ctrl-C reaches the ranks at different times: all stop after the same step
            if stop or (step + 1) % 100 == 0 or step + 1 == options.steps:
                states = [training.state_dict() for training in trainings]
                torch.save({"step": step + 1, "trainings": states}, path.with_suffix(".new"))
                path.with_suffix(".new").replace(path)
            if stop:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
