"""Trainings that exchange gradients at parameters to which they only go to come back before they step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from tests.ranks.scenarios.model import batch, fingerprint, net, overflow

SETTLED = 6
"""Steps until an agent knows what a training does."""
Backward = Callable[[int], None]


class Training:
    """A module, its optimizer, and what its steps were made of.

    ``came`` is the mean of the raw gradients that the steps are made of, and ``applied`` what they were after the
    exchange, summed. Their difference waits in the error memories.
    """

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.module = DistributedDataParallel(net(layers=4), bucket_cap_mb=0.02)
        self.weights = list(self.module.parameters())
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.weights, lr=0.05, momentum=0.9)
        self.forget()

    def forget(self) -> None:
        self.came = [torch.zeros_like(one) for one in self.weights]
        self.applied = [torch.zeros_like(one) for one in self.weights]

    def backward(self, number: int, used: bool) -> None:
        """Add a gradient to ``.grad``. ``used``: the parameters keep what it does to them."""
        x, y = batch(self.rank, number)
        if used:
            raw = torch.autograd.grad(nn.functional.cross_entropy(self.module.module(x), y), self.weights)
            for came, one in zip(self.came, raw, strict=True):
                dist.all_reduce(one)
                came += one / self.world
        nn.functional.cross_entropy(self.module(x), y).backward()
        if used:
            for applied, weight in zip(self.applied, self.weights, strict=True):
                applied += weight.grad

    @torch.no_grad()
    def climb(self, size: float = 0.05, adaptive: bool = False) -> list[Tensor]:
        """Go up the gradient as SAM does, or ASAM, which weighs elements. Returns the way."""
        scaled = [weight.grad * (weight.abs() if adaptive else 1.0) for weight in self.weights]
        factor = size / (torch.stack([one.norm() for one in scaled]).norm() + 1e-12)
        way = [
            one * factor * (weight.abs() if adaptive else 1.0)
            for one, weight in zip(scaled, self.weights, strict=True)
        ]
        for weight, one in zip(self.weights, way, strict=True):
            weight.add_(one)
        return way

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Put the parameters back at the end."""
        kept = [weight.detach().clone() for weight in self.weights]
        yield
        for weight, one in zip(self.weights, kept, strict=True):
            weight.data = one


def sam(it: Training, step: int, adaptive: bool = False, size: float = 0.05) -> None:
    it.backward(2 * step, used=False)
    with it.restored():
        it.climb(size, adaptive)
        it.optimizer.zero_grad()
        it.backward(2 * step, used=True)
    it.optimizer.step()
    it.optimizer.zero_grad()


def asam(it: Training, step: int) -> None:
    sam(it, step, adaptive=True, size=0.5)


def extragradient(it: Training, step: int) -> None:
    sam(it, step, size=-0.1)


def subtracted(it: Training, step: int) -> None:
    """SAM that climbs down by what it climbed, which comes back to rounding only."""
    it.backward(2 * step, used=False)
    way = it.climb()
    it.optimizer.zero_grad(set_to_none=False)
    it.backward(2 * step, used=True)
    with torch.no_grad():
        for weight, one in zip(it.weights, way, strict=True):
            weight.sub_(one)
    it.optimizer.step()
    it.optimizer.zero_grad()


class ClosureSAM(torch.optim.Optimizer):
    """SAM with ``step(closure)``, around an optimizer that steps the same groups.

    ``it``: whose parameters. ``twice``: the closure makes both gradients.
    """

    def __init__(self, it: Training, base: torch.optim.Optimizer, twice: bool) -> None:
        super().__init__(it.weights, {})
        self.it, self.base_optimizer, self.twice = it, base, twice
        self.param_groups = base.param_groups

    def step(self, closure: Any = None) -> None:
        if self.twice:
            closure(used=False)
        with self.it.restored():
            self.it.climb()
            self.zero_grad()
            with torch.enable_grad():
                closure(used=True)
        self.base_optimizer.step()
        self.zero_grad()


def closure(it: Training, step: int, twice: bool = False) -> None:
    if not isinstance(it.optimizer, ClosureSAM):
        it.optimizer = ClosureSAM(it, it.optimizer, twice)
    if not twice:
        it.backward(2 * step, used=False)
    it.optimizer.step(lambda used: it.backward(2 * step, used))


def closure_of_both(it: Training, step: int) -> None:
    closure(it, step, twice=True)


def maml(it: Training, step: int, inner: torch.optim.Optimizer | None = None) -> None:
    """First-order MAML: three steps on a task, by hand or by an optimizer of their own, and the gradient there."""
    with it.restored():
        for number in range(3):
            it.backward(8 * step + number, used=False)
            if inner is None:
                with torch.no_grad():
                    for weight in it.weights:
                        weight.data.sub_(0.02 * weight.grad)
            else:
                inner.step()
            it.optimizer.zero_grad()
        it.backward(8 * step + 7, used=True)
    it.optimizer.step()
    it.optimizer.zero_grad()


def maml_by_optimizer(it: Training, step: int) -> None:
    maml(it, step, torch.optim.SGD(it.weights, lr=0.02))


def average(it: Training, step: int) -> None:
    """A gradient is dropped, and another model's parameters are in the module at the next forward."""
    it.backward(2 * step, used=False)
    it.optimizer.zero_grad()
    with it.restored():
        for weight in it.weights:
            weight.data.mul_(0.9)
        it.module(batch(it.rank, 2 * step)[0])
    it.backward(2 * step + 1, used=True)
    it.optimizer.step()
    it.optimizer.zero_grad()


def by_hand(it: Training, step: int) -> None:
    """Two steps, of which one is made by hand and stays."""
    it.backward(2 * step, used=True)
    with torch.no_grad():
        for weight in it.weights:
            weight.data.sub_(0.02 * weight.grad)
    it.optimizer.zero_grad()
    it.backward(2 * step + 1, used=True)
    it.optimizer.step()
    it.optimizer.zero_grad()


def changing(it: Training, step: int) -> None:
    """One after the other."""
    (sam if step % 16 < 8 else by_hand)(it, step)


def plain(it: Training, step: int) -> None:
    it.backward(step, used=True)
    it.optimizer.step()
    it.optimizer.zero_grad()


def overflowing(it: Training, step: int, by: torch.optim.Optimizer | None = None) -> None:
    """A plain step, after an exchange in every fourth step that is not finite, which leaves nothing anywhere.

    A GradScaler skips such a step; ``by``: an optimizer that the agent was not given would have made it.
    """
    if step % 4 == 0:
        overflow(it.module, it.rank)
        it.backward(2 * step, used=False)
        if by is not None:
            by.step()
        it.optimizer.zero_grad()
    plain(it, 2 * step + 1)


def overflowing_by_optimizer(it: Training, step: int) -> None:
    overflowing(it, step, torch.optim.SGD(it.weights, lr=0.02))


KINDS: dict[str, Callable[[Training, int], None]] = {
    one.__name__: one
    for one in (
        *(sam, asam, extragradient, subtracted, closure, closure_of_both, maml, maml_by_optimizer, average),
        *(by_hand, changing, plain, overflowing, overflowing_by_optimizer),
    )
}


def perturbed(
    rank: int, world: int, folder: str, *, kind: str, compressor: str = "topk", steps: int = 16
) -> dict[str, Any]:
    """Train, and compare what came in with what was applied and what waits.

    Args:
        kind: How the training steps.
        compressor: The agent's.
        steps: How many.
    """
    it = Training(rank, world)
    if kind.startswith("closure"):
        it.optimizer = ClosureSAM(it, it.optimizer, kind == "closure_of_both")
    with Agent(
        it.module,
        it.optimizer,
        compressor=compressor,
        policy="static:cf=8",
        data_dir=folder,
        controller=None,
        window=20,
    ) as agent:
        before: dict[str, Tensor] = {}
        for step in range(steps):
            if step == steps - SETTLED:
                before = _residual(agent, world)
                it.forget()
            KINDS[kind](it, step)
        after = _residual(agent, world)
        parts = agent._parts
        assert parts is not None
        looks = agent._session is not None and agent._session.steps._unused.on
        notes = [note for note in parts.channels._noted if "put back" in note]
    names = [name for name, _ in it.module.module.named_parameters()]
    missing = sum(
        float(((came - applied).flatten() + before[name] - after[name]).double().square().sum())
        for name, came, applied in zip(names, it.came, it.applied, strict=True)
    )
    whole = sum(float(one.double().square().sum()) for one in it.came)
    return {
        "missing": (missing / whole) ** 0.5,
        "waits": sum(float(one.double().square().sum()) for one in after.values()),
        "parameters": fingerprint(it.module),
        "notes": notes,
        "looks": looks,
        "one_buffer": parts.channels.gradients_stay,
    }


def _residual(agent: Agent, world: int) -> dict[str, Tensor]:
    """Return the mean residual over ranks, between steps."""
    parts = agent._parts
    assert parts is not None
    found = {name: one.clone() for name, one in sorted(parts.memory.state_dict().items())}
    for one in found.values():
        dist.all_reduce(one)
        one /= world
    return found
