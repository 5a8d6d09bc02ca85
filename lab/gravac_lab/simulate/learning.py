"""Learning with simulated ranks: the recipe's model, data and optimizer, and the agents' exchange between them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gravac import optim
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.exchange.sample import Coordinates
from gravac_agent.state.rates import LearningRates
from gravac_agent.windows.clipping import Clipper
from gravac_agent.windows.progress import DenseReference
from gravac_lab.simulate.late_adam import Ages, LateAdamW
from gravac_lab.simulate.ranks import Exchanged, SimulatedRanks, buckets_in, buckets_of
from gravac_lab.tasks import Batch, Recipe, Score, evaluate, loss_of
from gravac_lab.tasks.optimizers import MuonAdamW


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One step of all ranks.

    Attributes:
        loss: Mean training loss over ranks, before the step.
        exchanged: What the exchange did.
    """

    loss: float
    exchanged: Exchanged


class Learner:
    """Trains a recipe with the ranks of one process. All ranks share one set of weights, as synchronous training does.

    A memory that applies the momentum takes it over: the optimizer has none. It also does the clipping, if set to.

    Args:
        recipe: What is trained. Its global batch is split among the ranks.
        world_size: Ranks.
        seed: Seed of weights, data and codecs.
        steps: Length of the run, for the schedule.
        ranks: Their channels and memories.
        layout: Names of the parameters of each bucket; None: as DDP groups them, each of the recipe's size.
        observe: Given the raw gradients of each step, by rank and bucket, before they are exchanged; it may
            change them.
    """

    def __init__(
        self,
        recipe: Recipe,
        world_size: int,
        seed: int,
        steps: int,
        ranks: SimulatedRanks,
        layout: Sequence[Sequence[str]] | None = None,
        observe: Callable[[Sequence[Sequence[Tensor]]], None] | None = None,
    ) -> None:
        self.recipe, self.world_size, self.steps, self.ranks = recipe, world_size, steps, ranks
        self.model = recipe.build_model(seed)
        self.optimizer: Optimizer = recipe.optimizer(self.model.parameters())
        self._clip_norm = recipe.clip_norm
        if ranks.channels[0].memory.transforms:
            self._clip_norm = None
            for group in self.optimizer.param_groups:
                if "momentum" in group:
                    group["momentum"] = 0.0
        self._rates = peak_rates(self.optimizer)
        self._grouped = (
            buckets_of(self.model, recipe.bucket_mb) if layout is None else buckets_in(self.model, layout)
        )
        self.buckets = [bucket for bucket, _ in self._grouped]
        self._batches: list[Iterator[Batch]] = [
            recipe.batches(rank, world_size, seed) for rank in range(world_size)
        ]
        self._heldout = recipe.data.heldout()
        named = dict(self.model.named_parameters())
        coordinates = Coordinates(named, seed)
        self._elements = [coordinates.in_bucket(bucket.names, bucket.numels) for bucket in self.buckets]
        order = torch.cat([coordinates.order(bucket.names) for bucket in self.buckets])
        self._places = order.argsort()  # of the coordinates, in the samples of one bucket after another
        # A sample of a matrix's elements is no matrix.
        matrices = isinstance(self.optimizer, MuonAdamW)
        self.reference = None if matrices else DenseReference(self.optimizer, named, coordinates)
        names = {id(parameter): name for name, parameter in named.items()}
        self._followed = LearningRates([self.optimizer], None, names)
        self.clipper = Clipper(world_size)
        self._observe = observe
        self._ages = Ages(self.optimizer.rule, world_size) if isinstance(self.optimizer, LateAdamW) else None
        aged = isinstance(self.optimizer, LateAdamW | optim.AdamW)
        ranks.channels[0].counts_senders = aged and world_size > 1
        self.step = 0

    @property
    def elements(self) -> int:
        """Elements of a gradient."""
        return sum(sum(bucket.numels) for bucket in self.buckets)

    def train(self, plan: StepPlan | Sequence[StepPlan], *, surveyed: bool = False) -> SimulatedStep:
        """Do one step under ``plan``.

        Args:
            plan: What the ranks send; or one plan for each bucket, see ``SimulatedRanks.exchange``.
            surveyed: Measure the gain curve.
        """
        set_rates(self.optimizer, self._rates, self.recipe.schedule(self.step, self.steps))
        self._followed.follow(*(channels.memory for channels in self.ranks.channels))
        gradients, losses = [], 0.0
        for batches in self._batches:
            inputs, classes = next(batches)
            self.optimizer.zero_grad(set_to_none=True)
            loss = loss_of(self.model(inputs), classes)
            loss.backward()
            losses += loss.item() / self.world_size
            gradients.append(self._flat())
        if self._observe is not None:
            self._observe(gradients)
        raw = torch.stack([self._sample(gradient) for gradient in gradients]).mean(0)
        exchanged = self.ranks.exchange(self.buckets, gradients, plan, self.step, surveyed)
        if not exchanged.sums.nonfinite:
            if self.reference is not None:
                self.reference.exchanged(raw, self._sample(gradients[0]))
            self._write(gradients[0])
            self._tell_ages(exchanged)
            self._clip(exchanged)
            if self.reference is not None:
                self.reference.before_step(clipped_as_dense=self._clip_norm is not None)
            self.optimizer.step()
            if self.reference is not None:
                self.reference.after_step()
        self.step += 1
        return SimulatedStep(losses, exchanged)

    def _tell_ages(self, exchanged: Exchanged) -> None:
        """Tell an optimizer for late gradients what arrived."""
        if isinstance(self.optimizer, optim.AdamW):  # as ``gravac_agent.state.arrivals`` does
            for place, (bucket, members) in enumerate(self._grouped):
                found: dict[nn.Parameter, Tensor | None] = {}
                whole, (senders, of) = None in exchanged.supports[place], exchanged.senders[place]
                counts = [None] * len(members) if senders is None else senders.split(bucket.numels)
                for one, count in zip(members, counts, strict=True):
                    if whole or one.grad is None:
                        found[one] = None
                    else:
                        came = one.grad.ne(0)
                        found[one] = came if count is None else count.view_as(one) * came
                self.optimizer.arrived(found, of)
        if self._ages is None:
            return
        assert isinstance(self.optimizer, LateAdamW)
        every = zip(self._grouped, exchanged.supports, exchanged.senders, strict=True)
        for (bucket, members), supports, (senders, of) in every:
            share = None if senders is None else senders / of
            arrived = self._ages.arrived(bucket, supports, share)
            pieces = (each.split(list(bucket.numels)) for each in arrived)
            for parameter, age, wait in zip(members, *pieces, strict=True):
                self.optimizer.ages[parameter] = age.view_as(parameter), wait.view_as(parameter)

    def evaluate(self) -> Score:
        """Measure the model on all held-out batches."""
        return evaluate(self.model, self._heldout)

    def _clip(self, exchanged: Exchanged) -> None:
        """Clip as ``Agent.clip_grad_norm_`` does, if the recipe clips and the memory does not."""
        if self._clip_norm is None:
            return
        memories = [channels.memory for channels in self.ranks.channels]
        raw, amplification = exchanged.mean_sq is not None, memories[0].amplification
        self.clipper.end_step(exchanged.sums, exchanged.raw_mean, raw, amplification)
        for channels in self.ranks.channels:
            channels.raw_mean.wanted = True  # from the next step on, as in a session
        clipped = self.clipper.clip(self.model.parameters(), self._clip_norm)
        if clipped.reaches_memory:
            for memory in memories:
                memory.cut(clipped.share, clipped.rest, clipped.turn)
        for channels in self.ranks.channels:
            channels.cuts = self.clipper.cuts

    def _sample(self, flats: Sequence[Tensor]) -> Tensor:
        """Return the sampled coordinates of the buckets, in the order of the coordinates."""
        parts = [flat[elements] for flat, elements in zip(flats, self._elements, strict=True)]
        return torch.cat(parts)[self._places]

    def _flat(self) -> list[Tensor]:
        return [
            torch.cat(
                [
                    torch.zeros(member.numel(), dtype=member.dtype)
                    if member.grad is None
                    else member.grad.flatten()
                    for member in members
                ]
            )
            for _, members in self._grouped
        ]

    def _write(self, means: Sequence[Tensor]) -> None:
        for (bucket, members), mean in zip(self._grouped, means, strict=True):
            for parameter, piece in zip(members, mean.split(list(bucket.numels)), strict=True):
                parameter.grad = piece.view_as(parameter)


def alone(
    recipe: Recipe, world_size: int, seed: int, steps: int, rank: int = 0
) -> Iterator[tuple[float, nn.Module]]:
    """Train one rank of ``world_size`` without any communication. Yields its loss and model after each step."""
    model = recipe.build_model(seed)
    optimizer = recipe.optimizer(model.parameters())
    rates = peak_rates(optimizer)
    batches = recipe.batches(rank, world_size, seed)
    for step in range(steps):
        set_rates(optimizer, rates, recipe.schedule(step, steps))
        inputs, classes = next(batches)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(inputs), classes)
        loss.backward()
        recipe.clip(model.parameters())
        optimizer.step()
        yield loss.item(), model


def peak_rates(optimizer: Optimizer) -> list[float]:
    """Return the learning rate of each parameter group, before any schedule."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def set_rates(optimizer: Optimizer, peaks: Sequence[float], share: float) -> None:
    """Set the learning rate of each parameter group to a share of its peak."""
    for group, peak in zip(optimizer.param_groups, peaks, strict=True):
        group["lr"] = peak * share
