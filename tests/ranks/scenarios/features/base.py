"""One way to train, and how it runs: plainly, with an agent that is off, and compressed."""

from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from tests.ranks.scenarios.model import fingerprint

STEPS = 50
BATCH = 32
WIDTH = 64
CLASSES = 10
COMPRESSED: dict[str, dict[str, Any]] = {
    "int4": {"compressor": "nearest:levels=15", "policy": "static:cf=7"},
    "topk": {"compressor": "topk+bf16", "policy": "static:cf=10"},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "disabled": {"enabled": False},
    "dense": {"policy": "dense"},
    **COMPRESSED,
}
HOW = ("plain", *SETTINGS)
"""Plain DDP without gravac, ``enabled=False``, an agent that sends whole gradients, and two codecs."""


def data(seed: int, samples: int) -> tuple[Tensor, Tensor]:
    """Return inputs and noisy labels of one linear rule."""
    generator = torch.Generator().manual_seed(seed)
    rule = torch.randn(WIDTH, CLASSES, generator=torch.Generator().manual_seed(99)) * 0.3
    x = torch.randn(samples, WIDTH, generator=generator)
    noise = -torch.empty(samples, CLASSES).exponential_(generator=generator).log()
    return x, (x @ rule + noise).argmax(1)


def layers(*widths: int) -> nn.Sequential:
    stack: list[nn.Module] = []
    for a, b in pairwise(widths):
        stack += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*stack[:-1])


class Feature:
    """A small model and a loop in the plainest form; subclasses change one thing.

    Args:
        rank: This rank.
        how: One of ``HOW``.
        folder: Folder of the journals.
    """

    ddp: dict[str, Any] = {}  # noqa: RUF012 (what subclasses give DDP)
    steps = STEPS

    def __init__(self, rank: int, how: str, folder: str) -> None:
        self.rank, self.how, self.folder, self.seen = rank, how, folder, dict[str, Any]()
        torch.manual_seed(0)

    @classmethod
    def title(cls) -> str:
        """Return the name that users know it by: the first line of the docstring."""
        return (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")

    def model(self) -> nn.Module:
        return layers(WIDTH, 64, 64, 64, CLASSES)

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        return DistributedDataParallel(model, **{"bucket_cap_mb": 0.002, **self.ddp})

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        return data(1 + 2 * step + self.rank, BATCH)

    def agent(self, stack: ExitStack, module: Any, optimizer: Any, **more: Any) -> Agent | None:
        """Start an agent, unless the training is plain."""
        if self.how == "plain":
            return None
        options = {"controller": None, "data_dir": self.folder, "window": 20}
        return stack.enter_context(Agent(module, optimizer, **options, **SETTINGS[self.how], **more))

    def clip(self, agent: Agent | None, module: nn.Module, norm: float) -> None:
        if agent is None:
            nn.utils.clip_grad_norm_(module.parameters(), norm)
        else:
            agent.clip_grad_norm_(norm)

    def step(self, module: Any, optimizer: Any, agent: Agent | None, step: int) -> None:
        x, y = self.batch(step)
        cross_entropy(module(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    def train(self) -> nn.Module:
        """Train, and return what maps inputs to scores."""
        module = self.wrap(self.model())
        optimizer = self.optimizer(module)
        with ExitStack() as stack:
            agent = self.agent(stack, module, optimizer)
            for step in range(self.steps):
                self.step(module, optimizer, agent, step)
            self.look(agent)
        return module.module

    def look(self, agent: Agent | None) -> None:
        """Note what the agent did, before it closes."""
        if agent is not None and agent.state is not None and agent._session is not None:
            state = agent.state
            self.seen |= {"buckets": len(agent._session.layout), "steps": state.step}
            self.seen["saved"] = state.dense_bytes / state.payload_bytes

    def run(self) -> dict[str, Any]:
        """Train, and return the loss on held-out data and the digest of the parameters."""
        model = self.train()
        x, y = data(10_000, 1024)
        with torch.no_grad():
            loss = float(cross_entropy(self.scores(model, x), y))
        return {"loss": loss, "parameters": fingerprint(model), **self.seen}

    def scores(self, model: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = model(x)
        return found
