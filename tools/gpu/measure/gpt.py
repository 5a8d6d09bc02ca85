"""A GPT of 124 million parameters, as GPT-2's smallest, and its training with plain DDP or with the agent.

Parameters and gradients are float32, and layers compute in bfloat16 (autocast).
"""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gravac import Agent
from gravac.optim import AdamW


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model, and of the batch of one rank. ``bucket_mb``: DDP's ``bucket_cap_mb``."""

    width: int
    layers: int
    heads: int
    vocabulary: int
    length: int
    batch: int
    bucket_mb: float = 25.0


SHAPES = {
    "124m": Shape(width=768, layers=12, heads=12, vocabulary=50304, length=1024, batch=16),
    "124m, 8 sequences": Shape(width=768, layers=12, heads=12, vocabulary=50304, length=1024, batch=8),
    "tiny": Shape(width=32, layers=3, heads=2, vocabulary=64, length=16, batch=2, bucket_mb=0.02),
}
RATE = 3e-4


class GPT(nn.Module):
    """Maps tokens, shape ``(n, length)``, to scores of the next one; embedding and output share their weights."""

    def __init__(self, shape: Shape) -> None:
        from gravac_lab.tasks.gpt import (
            Layer,  # only here: the service's tests import this module without lab/
        )

        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.length, shape.width)
        self.layers = nn.Sequential(*(Layer(shape.width, shape.heads) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.norm(self.layers(self.tokens(tokens) + self.places(places)))
        return nn.functional.linear(hidden, self.tokens.weight)


def batch(shape: Shape, device: torch.device) -> Tensor:
    """Return random tokens, shape ``(n, length + 1)``."""
    size = (shape.batch, shape.length + 1)
    return torch.randint(shape.vocabulary, size, generator=torch.Generator().manual_seed(1)).to(device)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the loss of the next token."""
    with torch.autocast(tokens.device.type, torch.bfloat16):
        scores = model(tokens[:, :-1])
        return cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())


class Training:
    """A model in DDP, its optimizer and one batch; inside ``with``, also the agent if there is a plan.

    Args:
        shape: Sizes, a key of ``SHAPES``.
        device: Where it trains.
        compressor: The agent's codec; None: plain DDP.
        cf: The agent's compression factor; 1 observes and sends what DDP would send.
        aged: Whether the optimizer is ``gravac.optim.AdamW``, and not torch's.
    """

    def __init__(
        self,
        shape: str,
        device: torch.device,
        compressor: str | None = None,
        cf: float = 1.0,
        aged: bool = False,
    ) -> None:
        torch.manual_seed(0)
        sizes, self.device = SHAPES[shape], device
        model = GPT(sizes).to(device)
        self.module = DistributedDataParallel(model, bucket_cap_mb=sizes.bucket_mb)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        if aged:
            self.optimizer: torch.optim.Optimizer = AdamW(model.parameters(), lr=RATE)
        else:
            self.optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=device.type == "cuda")
        self.tokens = batch(sizes, device)
        self.agent: Agent | None = None
        if compressor is not None:
            self.agent = Agent(
                self.module,
                self.optimizer,
                compressor=compressor,
                policy=f"static:cf={cf}" if cf > 1.0 else "dense",
                controller=None,
            )
        self._open = ExitStack()

    def __enter__(self) -> "Training":
        if self.agent is not None:
            self._open.enter_context(self.agent)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def step(self, tokens: Tensor | None = None) -> None:
        """Train one step, of the same tokens each time unless others are given, shape ``(n, length + 1)``."""
        loss_of(self.module, self.tokens if tokens is None else tokens).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
