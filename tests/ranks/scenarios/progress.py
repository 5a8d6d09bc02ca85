"""Progress next to dense gradients, as the agents measure it and as a second optimizer of the whole model finds it."""

import contextlib
import copy
import itertools
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac import optim
from gravac_agent import Agent
from gravac_agent.exchange.sample import Coordinates
from gravac_agent.windows.progress import BLOCK_STEPS
from tests.ranks.scenarios.model import batch, net

OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01),
    "aged": lambda groups: optim.AdamW(groups, lr=0.01),
    "fused": lambda groups: torch.optim.AdamW(groups, lr=0.01, fused=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01),
}


class Dense:
    """The whole model's second optimizer, fed with dense gradients: the definition, without any sampling before."""

    def __init__(self, module: nn.Module, make: Any, coordinates: Coordinates) -> None:
        self.module, self.make, self.coordinates = module, make, coordinates
        self.shadow = net()
        self.optimizer = make(
            self.shadow
        )  # one of ``gravac.optim`` to which nobody says what arrived is torch's
        self.found: dict[str, list[float]] = {}
        self.level = ""
        self.moved, self.way = torch.zeros(2, coordinates.size).double()
        self.before = torch.zeros(coordinates.size).double()
        self.steps = 0

    def sample(self, module: nn.Module) -> torch.Tensor:
        parameters = dict(module.named_parameters())
        places = self.coordinates.places.items()
        return torch.cat([parameters[name].detach().flatten()[at] for name, at in places]).double()

    def begin(self, level: str, gradients: list[torch.Tensor], theirs: torch.optim.Optimizer) -> None:
        if level != self.level or self.steps == BLOCK_STEPS:
            self.close()
        if self.level and level != self.level:  # no plan answers for what the one before did to the state
            self.optimizer.load_state_dict(copy.deepcopy(theirs.state_dict()))
        self.level = level
        self.shadow.load_state_dict(self.module.state_dict())
        for group, their in zip(self.optimizer.param_groups, theirs.param_groups, strict=True):
            group["lr"] = their["lr"]
        trained = [param.requires_grad for param in self.module.parameters()]
        for one, gradient, wanted in zip(self.shadow.parameters(), gradients, trained, strict=True):
            one.grad = gradient if wanted else None
        self.before = self.sample(self.module)

    def end(self) -> None:
        self.optimizer.step()
        self.moved += self.sample(self.module) - self.before
        self.way += self.sample(self.shadow) - self.before
        self.steps += 1

    def close(self) -> None:
        if self.steps:
            sums = self.found.setdefault(self.level, [0.0] * 4)
            new = (
                self.steps,
                float(self.moved @ self.moved),
                float(self.way @ self.way),
                float(self.moved @ self.way),
            )
            self.found[self.level] = [old + one for old, one in zip(sums, new, strict=True)]
            self.moved.zero_()
            self.way.zero_()
            self.steps = 0


def progress(
    rank: int,
    world: int,
    folder: str,
    *,
    steps: int = 60,
    optimizer: str = "adamw",
    two_rates: bool = False,
    frozen: bool = False,
    micro_batches: int = 1,
    loss_scale: float | None = None,
    bad_step: int = -1,
    left_out: int = -1,
    reopen: int = -1,
    **settings: Any,
) -> dict[str, Any]:
    """Train with an agent. Returns the sums of each level as the agent has them, and by ``Dense``.

    Args:
        two_rates: Two parameter groups, with learning rates that change.
        frozen: The third layer is not trained.
        micro_batches: In a step; all but the last under ``no_sync``.
        loss_scale: Of a GradScaler that grows every seven steps.
        bad_step: The step in which rank 0's loss is infinite.
        left_out: The step that the trainer does not take.
        reopen: The step before which the agent is closed and a new one opened.
    """
    model = net()
    if frozen:
        for parameter in model[4].parameters():  # type: ignore[index]
            parameter.requires_grad_(False)
    module = DistributedDataParallel(model, bucket_cap_mb=0.02)

    def make(one: nn.Module) -> torch.optim.Optimizer:
        every = list(one.parameters())
        groups = [{"params": every[:7]}, {"params": every[7:], "lr": 0.002}] if two_rates else every
        made: torch.optim.Optimizer = OPTIMIZERS[optimizer](groups)
        return made

    taken, coordinates = make(model), Coordinates(dict(model.named_parameters()), 0)
    dense = Dense(model, make, coordinates)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=loss_scale or 1.0, growth_interval=7, enabled=bool(loss_scale)
    )
    plain, sums = net(), {}
    settings = {"policy": "static:cf=50", "compressor": "topk", "window": 1000} | settings

    def opened(name: str) -> Agent:
        return Agent(
            module,
            taken,
            data_dir=folder,
            controller=None,
            job=name,
            scaler=scaler if loss_scale else None,
            **settings,
        )

    def collected(agent: Agent, name: str) -> None:
        assert agent._parts is not None
        loop = agent._parts.loop
        loop.progress.close_window(loop.window)
        for (epoch, codec, cf), level in loop.window.levels.items():
            sums[f"{name} {epoch} {codec} {cf:g}"] = asdict(level.progress)
        dense.close()

    name = "first"
    agent = opened(name)
    agent.start()
    for step in range(steps):
        if step == reopen:
            collected(agent, name)
            agent.close()
            name = "second"
            agent = opened(name)
            agent.start()
            dense.optimizer.load_state_dict(copy.deepcopy(taken.state_dict()))  # else they share it
        if two_rates:
            taken.param_groups[0]["lr"] *= 0.97
        plain.load_state_dict(model.state_dict())
        plain.zero_grad()
        for other, part in itertools.product(range(world), range(micro_batches)):
            x, y = batch(other, micro_batches * step + part)
            (nn.functional.cross_entropy(plain(x), y) / world).backward()
        gradients = [param.grad for param in plain.parameters() if param.grad is not None]
        loop, plan = agent._parts.loop, agent._parts.loop.plan  # type: ignore[union-attr]
        level = f"{name} {plan.directive.epoch} {plan.codec} {plan.cf:g}"
        bad = step == bad_step
        if not bad and step != left_out:
            dense.begin(level, gradients, taken)
        for part in range(micro_batches):
            x, y = batch(rank, micro_batches * step + part)
            with module.no_sync() if part < micro_batches - 1 else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(module(x), y)
                scaler.scale(loss * (float("inf") if bad and rank == 0 else 1.0)).backward()
        if step != left_out:
            scaler.step(taken)
            scaler.update()
            if not bad:
                dense.end()
        taken.zero_grad()
    collected(agent, name)
    on = loop.progress.on
    agent.close()
    return {"sums": sums, "dense": dense.found, "on": on, "size": coordinates.size}


class Made:
    """Batches of the scenarios, as a recipe has them."""

    def batches(self, rank: int, world_size: int, seed: int, size: int) -> Iterator[Any]:
        return (batch(rank, step) for step in itertools.count())

    def heldout(self, rank: int = 0, world_size: int = 1) -> list[Any]:
        return [batch(9, 9)]


def progress_as_simulated(
    rank: int,
    world: int,
    folder: str,
    *,
    steps: int = 80,
    clip: float | None = None,
    compressor: str = "topk",
) -> dict[str, Any]:
    """A recipe's training by agents, and on rank 0 by the simulated ranks. Returns the sums of the compressed steps."""
    from gravac_lab.simulate.learning import Learner  # only here: see tests/support/lab.py
    from gravac_lab.simulate.ranks import SimulatedRanks
    from gravac_lab.tasks import Recipe
    from gravac_lab.tasks.recipe import Schedule

    recipe = Recipe(
        name="made",
        build_model=lambda seed: net(),
        optimizer=OPTIMIZERS["adamw"],
        optimizer_kind="adamw",
        schedule=Schedule(ramp_steps=10, floor=0.1),
        clip_norm=clip,
        data=Made(),
        global_batch=16 * world,
        rank_batch=16,
    )
    model = recipe.build_model(0)
    module, optimizer = DistributedDataParallel(model), recipe.optimizer(model.parameters())
    batches = recipe.batches(rank, world, 0)
    options: dict[str, Any] = {
        "policy": "static:cf=50",
        "compressor": compressor,
        "window": 1000,
        "job": "live",
    }
    plans = []
    with Agent(module, optimizer, data_dir=folder, controller=None, **options) as agent:
        assert agent._parts is not None
        loop = agent._parts.loop
        for step in range(steps):
            plans.append(loop.plan)
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * recipe.schedule(step, steps)
            x, y = next(batches)
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            if clip is not None:
                agent.clip_grad_norm_(clip)
            optimizer.step()
        loop.progress.close_window(loop.window)
        live = asdict(list(loop.window.levels.values())[-1].progress)
        assert agent._session is not None
        layout = [bucket.names for bucket in agent._session.layout]
    if rank:
        return {"live": live}
    elements = sum(param.numel() for param in model.parameters())
    ranks = SimulatedRanks(world, compressor, elements=elements)
    learner = Learner(recipe, world, 0, steps, ranks, layout)
    for step, plan in enumerate(plans):
        if step and plan.cf != plans[step - 1].cf:
            learner.reference.change_plan()
        learner.train(plan)
    off = max(
        float((param - other).detach().abs().max())
        for param, other in zip(learner.model.parameters(), model.parameters(), strict=True)
    )
    return {"live": live, "simulated": asdict(learner.reference.pop()), "off": off}


class OwnAdamW(torch.optim.AdamW):
    """An optimizer of a user's own class, of which nobody knows what its step does."""


def progress_off(rank: int, world: int, folder: str, *, optimizer: str) -> dict[str, Any]:
    """Twelve steps where progress is not measured. ``closure``: SGD computes the gradients within its step."""
    module = DistributedDataParallel(net(), bucket_cap_mb=0.02)
    kinds = {
        "subclass": lambda one: OwnAdamW(one),
        "closure": OPTIMIZERS["sgd"],
    }
    taken = kinds[optimizer](module.parameters())
    options: dict[str, Any] = {"policy": "static:cf=10", "window": 4, "job": "off"}
    with Agent(module, taken, data_dir=folder, controller=None, **options) as agent:
        assert agent._parts is not None
        loop = agent._parts.loop
        for step in range(12):
            x, y = batch(rank, step)

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                taken.zero_grad()
                loss = nn.functional.cross_entropy(module(x), y)
                loss.backward()
                return loss

            if optimizer == "closure":
                taken.step(closure)
            else:
                closure()
                taken.step()
    return {"on": loop.progress.on}
