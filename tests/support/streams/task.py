"""What is trained: a small net, its gradients and its updates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gravac.memories import Bucket
from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_agent.network.link import Link

SHAPES = ((12, 10), (12,), (12, 12), (12,), (4, 12), (4,))
RATE = 0.05
FIRST_SCALE = 2.0**20
"""More than float16 has room for with the gradients of this net."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is trained, and how gradients are sent.

    Attributes:
        codec: Codec or aggregator.
        buckets: 1 or 6.
        cfs: The CF of each step.
        bad: Steps and ranks with a gradient that is not finite.
        memory: Error memory.
        link: An emulated link.
        rescaled: Whether the residual is halved before every third step, as a learning rate's change does it.
        dtype: Of the gradients.
        scaled: Whether a GradScaler scales the loss: too much at first, then twice as much after three good steps.
        clip: Largest norm of the mean gradient that is applied. What a step is cut by, the residual is cut by, too.
        regrouped: Whether the first step has other buckets, as that of a new DDP module.
        whole: Whether the device makes whole messages of the plans that it can.
        collective: How payloads meet.
        fsdp: Whether FSDP2 reduces the gradients: of each mean a rank gets its row, or as a replica all of it.
        levels: Ranks of a host, which divide gradients; 1: each rank exchanges all of them.
    """

    codec: str
    buckets: int
    cfs: tuple[float, ...]
    bad: frozenset[tuple[int, int]] = frozenset()
    memory: str = "residual"
    link: Link | None = None
    rescaled: bool = False
    dtype: torch.dtype = torch.float32
    scaled: bool = False
    clip: float | None = None
    regrouped: bool = False
    whole: bool = False
    collective: str = "auto"
    fsdp: Literal["", "rows", "replicas"] = ""
    levels: int = 1

    def layout(self, step: int) -> list[Bucket]:
        """The buckets of a step, the last layers first, as DDP has them."""
        groups = [[5, 4, 3, 2, 1, 0]] if self.buckets == 1 else [[one] for one in (5, 4, 3, 2, 1, 0)]
        if self.regrouped and step == 0:
            groups = [[5, 4, 3], [2, 1], [0]]
        if self.fsdp == "rows":  # of two ranks; numbered in the order of the model, as FSDP modules are
            half = [torch.Size(shape).numel() // 2 for shape in SHAPES]
            return [Bucket(one, (f"p{one}@0", f"p{one}@1"), (half[one],) * 2) for (one,) in groups]
        return [
            Bucket(
                number,
                tuple(f"p{one}" for one in group),
                tuple(torch.Size(SHAPES[one]).numel() for one in group),
                tuple(SHAPES[one] for one in group),
            )
            for number, group in enumerate(groups)
        ]

    @staticmethod
    def numbers(bucket: Bucket) -> list[int]:
        """Return the numbers of a bucket's parameters."""
        return list(dict.fromkeys(int(name[1:].partition("@")[0]) for name in bucket.names))

    def plan(self, step: int) -> StepPlan:
        """The plan of a step; those of the first step and dense ones measure nothing."""
        cf = self.cfs[min(step, len(self.cfs) - 1)]
        return StepPlan(Directive(1, "hold", cf, cf, 0.0), cf)

    def residual_factors(self, step: int, scale_change: float) -> list[float]:
        """What the residual is multiplied by before a step: for the rate, then for the loss scale."""
        return [0.5] * (self.rescaled and step % 3 == 2) + [scale_change] * (scale_change != 1.0)


class Net:
    """A rank's copy of the net, and what autograd and an optimizer do with it.

    Args:
        task: What is trained.
        rank: Which row of each parameter it steps, where there are rows.

    Attributes:
        parameters: The parameters.
        scale: The loss scale.
    """

    def __init__(self, task: Task, rank: int = 0) -> None:
        self.task, self._rank = task, rank
        draw = torch.Generator().manual_seed(1)
        self.parameters = [torch.randn(shape, generator=draw) * 0.3 for shape in SHAPES]
        self.scale = FIRST_SCALE if task.scaled else 1.0
        self._good = 0

    def gradients(self, step: int, rank: int) -> list[Tensor]:
        """The gradients of a step's loss on a rank's batch, by bucket."""
        task = self.task
        draw = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(8, 10, generator=draw)
        with torch.enable_grad():
            own = [param.detach().clone().requires_grad_() for param in self.parameters]
            hidden = torch.tanh(x @ own[0].T + own[1])
            hidden = torch.tanh(hidden @ own[2].T + own[3])
            loss = (hidden @ own[4].T + own[5] - x[:, :4].sin()).square().mean()
            found = torch.autograd.grad(loss * self.scale, own)
        flat = [
            torch.cat([found[number].flatten() for number in task.numbers(bucket)])
            for bucket in task.layout(step)
        ]
        if (step, rank) in task.bad:
            flat[len(flat) // 2][3] = float("inf")
        return [one.to(task.dtype) for one in flat]

    def clip_factor(self, means: Sequence[Tensor]) -> float:
        """What the gradients of a step are multiplied by, so that their norm is at most ``task.clip``."""
        if self.task.clip is None:
            return 1.0
        norm = float(torch.cat(list(means)).float().norm()) / self.scale
        return min(1.0, self.task.clip / norm) if math.isfinite(norm) else 1.0

    def apply(self, step: int, means: Sequence[Tensor], factor: float = 1.0) -> None:
        """Step the parameters, as an optimizer under a GradScaler: not where a gradient is not finite."""
        if not all(bool(torch.isfinite(one).all()) for one in means):
            self._good = 0
            self.scale *= 0.5 if self.task.scaled else 1.0
            return
        for bucket, mean in zip(self.task.layout(step), means, strict=True):
            # Of rows, each rank steps its own; its copy of the others stays as it is.
            parts = [self.parameters[number].view(-1) for number in self.task.numbers(bucket)]
            if self.task.fsdp == "rows":
                parts = [part.chunk(2)[self._rank] for part in parts]
            for part, piece in zip(parts, mean.split([part.numel() for part in parts]), strict=True):
                part -= RATE * factor / self.scale * piece.float()
        self._good += 1
        if self.task.scaled and self._good % 3 == 0:
            self.scale *= 2.0
