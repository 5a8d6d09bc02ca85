"""Parameters that get no gradient in some steps: LayerDrop, adapters that are frozen in mid-run, static graphs."""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from tests.ranks.scenarios.model import batch, fingerprint
from tests.ranks.scenarios.optimizers import heldout


class Layered(nn.Module):
    """A net of residual blocks, each with an adapter. ``used``: blocks of the next forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.adapters = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.head = nn.Linear(64, 10)
        self.used = list(range(6))

    def forward(self, x: Tensor) -> Tensor:
        for at in self.used:
            x = x + torch.tanh(self.blocks[at](x)) / 4 + self.adapters[at](x) / 8
        out: Tensor = self.head(x)
        return out


STEPS = 40
FROZEN_FROM = 15


def unused_parameters(
    rank: int,
    world: int,
    folder: str,
    *,
    how: str,
    compressor: str = "topk",
    cf: float = 10.0,
    memory: str = "residual",
) -> dict[str, Any]:
    """Train plainly and with an agent, which is closed three steps before the end.

    Args:
        how: ``layers`` dropped by all ranks alike, ``own layers`` by each rank, ``frozen`` adapters, or a ``static``
            graph that never uses the last block.
    """
    found: dict[str, Any] = {}
    for name in ("plain", "agent"):
        model = Layered()
        options: dict[str, Any] = {"static_graph" if how == "static" else "find_unused_parameters": True}
        module = DistributedDataParallel(model, bucket_cap_mb=0.03, **options)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9)
        came = {key: torch.zeros_like(one, dtype=torch.float64) for key, one in model.named_parameters()}
        applied = {key: one.clone() for key, one in came.items()}

        def take_in(gradient: Tensor, into: Tensor) -> None:
            into += gradient

        for key, one in model.named_parameters():
            one.register_hook(partial(take_in, into=came[key]))

        def train(
            steps: range, model: Layered = model, module: Any = module, optimizer: Any = optimizer
        ) -> None:
            for step in steps:
                if how == "static":
                    model.used = list(range(5))
                elif how == "frozen" and step == FROZEN_FROM:
                    model.adapters.requires_grad_(False)
                elif how != "frozen":
                    drawn = torch.rand(
                        6, generator=torch.Generator().manual_seed(99 * step + rank * ("own" in how))
                    )
                    model.used = [at for at in range(6) if drawn[at] > 0.3 or step == STEPS - 1]
                x, y = batch(rank, step)
                nn.functional.cross_entropy(module(x), y).backward()
                for key, one in model.named_parameters():
                    if one.grad is not None:
                        applied[key] += one.grad  # noqa: B023
                optimizer.step()
                optimizer.zero_grad()

        with Agent(
            module,
            optimizer,
            enabled=name == "agent",
            compressor=compressor,
            memory=memory,
            policy=f"static:cf={cf}",
            data_dir=folder,
            controller=None,
            window=10,
        ) as agent:
            train(range(STEPS - 3))
            if agent._parts is not None:
                agent.state_dict()  # ends the last step
                found["lost"] = _lost(came, applied, agent._parts.memory.state_dict())
                found["held"] = sum(float(one.norm()) for one in agent._parts.memory.state_dict().values())
        train(range(STEPS - 3, STEPS))
        model.used = list(range(6))
        found[name] = {"parameters": fingerprint(module), "loss": heldout(model)}
        # Frozen adapters keep their residual; all others were used in the last step.
        left = {key: one for key, one in came.items() if how not in ("frozen", "static") or "blocks.0" in key}
        found[f"{name} lost at last"] = _lost(left, applied, {})
    return found


def _lost(came: dict[str, Tensor], applied: dict[str, Tensor], residuals: dict[str, Tensor]) -> float:
    """Return ‖mean over ranks of what came in and is not in the residual - what was applied‖ / ‖what came in‖."""
    lost = total = 0.0
    for name, one in came.items():
        rest = one.clone()
        if name in residuals:
            rest -= residuals[name].view_as(one)
        both = torch.stack([one, rest])
        dist.all_reduce(both)
        both /= dist.get_world_size()
        total += float(both[0].square().sum())
        lost += float((both[1] - applied[name]).square().sum())
    return float((lost / total) ** 0.5)
