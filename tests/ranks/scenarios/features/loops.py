"""Features of the training loop."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gravac_agent import Agent
from tests.ranks.scenarios.features.base import CLASSES, WIDTH, Feature, layers


class Plain(Feature):
    """The plain loop."""


class BFloat16(Feature):
    """bfloat16 autocast."""

    def step(self, module: Any, optimizer: Any, agent: Agent | None, step: int) -> None:
        x, y = self.batch(step)
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class Float16(Feature):
    """float16 autocast with a GradScaler.

    Its scale begins too high, so that the first steps are skipped, and grows again.
    """

    def agent(self, stack: ExitStack, module: Any, optimizer: Any, **more: Any) -> Agent | None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=15)
        return super().agent(stack, module, optimizer, scaler=self.scaler, **more)

    def step(self, module: Any, optimizer: Any, agent: Agent | None, step: int) -> None:
        x, y = self.batch(step)
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(module(x), y)
        before = self.scaler.get_scale()
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad()
        change = "skipped" if self.scaler.get_scale() < before else "grown"
        if self.scaler.get_scale() != before:
            self.seen[change] = self.seen.get(change, 0) + 1


class Accumulation(Feature):
    """Accumulation with no_sync."""

    def step(self, module: Any, optimizer: Any, agent: Agent | None, step: int) -> None:
        x, y = self.batch(step)
        with module.no_sync():
            (cross_entropy(module(x[:16]), y[:16]) / 2).backward()
        (cross_entropy(module(x[16:]), y[16:]) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


class AccumulationEachSent(Feature):
    """Accumulation without no_sync."""

    def step(self, module: Any, optimizer: Any, agent: Agent | None, step: int) -> None:
        x, y = self.batch(step)
        for part in (slice(16), slice(16, None)):
            (cross_entropy(module(x[part]), y[part]) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


class Clipping(Feature):
    """Clipping with agent.clip_grad_norm_."""

    def step(self, module: Any, optimizer: Any, agent: Agent | None, step: int) -> None:
        x, y = self.batch(step)
        cross_entropy(module(x), y).backward()
        self.clip(agent, module, 0.4)
        optimizer.step()
        optimizer.zero_grad()


class Schedule(Feature):
    """A learning-rate schedule: warm-up and cosine."""

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        optimizer = super().optimizer(module)
        lr = torch.optim.lr_scheduler
        parts = [
            lr.LinearLR(optimizer, 0.05, total_iters=10),
            lr.CosineAnnealingLR(optimizer, self.steps - 10, 0.01),
        ]
        self.schedule = lr.SequentialLR(optimizer, parts, milestones=[10])
        return optimizer

    def step(self, module: Any, optimizer: Any, agent: Agent | None, step: int) -> None:
        super().step(module, optimizer, agent, step)
        self.schedule.step()


class Evaluation(Feature):
    """Evaluation in between, with and without no_grad."""

    def step(self, module: Any, optimizer: Any, agent: Agent | None, step: int) -> None:
        if step % 10 == 5:
            module.eval()
            with torch.no_grad():
                module(self.batch(step)[0])
            module(self.batch(step)[0])
            module.train()
        super().step(module, optimizer, agent, step)


class TwoForwards(Feature):
    """Two forwards for one backward."""

    def step(self, module: Any, optimizer: Any, agent: Agent | None, step: int) -> None:
        x, y = self.batch(step)
        loss = cross_entropy(module(x[:16]), y[:16]) + cross_entropy(module(x[16:]), y[16:])
        (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


class Retry(Feature):
    """An exception, and the step once more.

    Before backward, and after it: then the gradients are there, and dropped.
    """

    def step(self, module: Any, optimizer: Any, agent: Agent | None, step: int) -> None:
        if step % 7 == 3:
            x, y = self.batch(step + 1000)
            try:
                loss = cross_entropy(module(x), y)
                if step % 2:
                    raise KeyError("before backward")
                loss.backward()
                raise KeyError("after backward")
            except KeyError:
                optimizer.zero_grad()
        super().step(module, optimizer, agent, step)


class SeveralOptimizers(Feature):
    """Several optimizers for one module."""

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        *body, weight, bias = module.parameters()
        self.other = torch.optim.Adam([weight, bias], lr=3e-3)
        return torch.optim.SGD(body, lr=0.1, momentum=0.9)

    def step(self, module: Any, optimizer: Any, agent: Agent | None, step: int) -> None:
        x, y = self.batch(step)
        cross_entropy(module(x), y).backward()
        for each in (optimizer, self.other):
            each.step()
            each.zero_grad()


class SeveralAgents(Feature):
    """Several agents in one process."""

    def train(self) -> nn.Module:
        body, head = self.wrap(layers(WIDTH, 64, 64, 64)), self.wrap(layers(64, 64, CLASSES))
        optimizers = [self.optimizer(body), self.optimizer(head)]
        with ExitStack() as stack:
            agents = [self.agent(stack, *pair) for pair in zip((body, head), optimizers, strict=True)]
            for step in range(self.steps):
                x, y = self.batch(step)
                cross_entropy(head(torch.tanh(body(x))), y).backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            self.look(agents[0])
        return nn.Sequential(body.module, nn.Tanh(), head.module)


LOOPS = (
    *(Plain, BFloat16, Float16, Accumulation, AccumulationEachSent, Clipping, Schedule, Evaluation),
    *(TwoForwards, Retry, SeveralOptimizers, SeveralAgents),
)
