"""The training of a small net on simulated ranks, with any executor: what DDP and an optimizer would do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from gravac import aggregators, memories
from gravac.collectives import AllReduce, Communicator, Done
from gravac.collectives.simulated import SimulatedWorld
from gravac.kernels import treated_as_device
from gravac.memories import Bucket
from gravac_agent.exchange.encoder import Encoder
from gravac_agent.exchange.host_executor import HostExecutor
from gravac_agent.exchange.plan import Directive, Plan
from gravac_agent.exchange.sample import Coordinates, GradientSample
from gravac_agent.exchange.step import StepResult
from gravac_agent.exchange.tick import Announcement, TickCodec
from gravac_agent.network.link import Link, Pacer
from gravac_agent.streams.executor import StreamExecutor
from tests.support.streams.device import SimulatedDevice
from tests.support.streams.nccl import Meetings, SimulatedNccl
from tests.support.streams.turns import Turns

T = TypeVar("T")

SHAPES = ((12, 10), (12,), (12, 12), (12,), (4, 12), (4,))
RATE = 0.05


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
    """

    codec: str
    buckets: int
    cfs: tuple[float, ...]
    bad: frozenset[tuple[int, int]] = frozenset()
    memory: str = "residual"
    link: Link | None = None
    rescaled: bool = False
    dtype: torch.dtype = torch.float32

    def layout(self) -> list[Bucket]:
        """The buckets, the last layers first, as DDP has them."""
        groups = [[5, 4, 3, 2, 1, 0]] if self.buckets == 1 else [[one] for one in (5, 4, 3, 2, 1, 0)]
        return [
            Bucket(
                number,
                tuple(f"p{one}" for one in group),
                tuple(torch.Size(SHAPES[one]).numel() for one in group),
                tuple(SHAPES[one] for one in group),
            )
            for number, group in enumerate(groups)
        ]

    def plan(self, step: int) -> Plan:
        """The plan of a step; those of the first step and dense ones measure nothing."""
        cf = self.cfs[min(step, len(self.cfs) - 1)]
        return Plan(Directive(1, "hold", cf, cf, 0.0), cf)


@dataclass(slots=True)
class Outcome:
    """What a rank has after its training."""

    parameters: list[Tensor]
    residual: dict[str, Tensor]
    learned: dict[str, Tensor]
    results: list[StepResult] = field(default_factory=list)


def on_host(task: Task, ranks: int = 2) -> list[Outcome]:
    """Train with the host's executor."""
    return SimulatedWorld(ranks).run(lambda ends: _train_on_host(task, ends))


def on_streams(
    task: Task,
    seed: int | None,
    ranks: int = 2,
    executor: type[StreamExecutor] = StreamExecutor,
) -> list[Outcome]:
    """Train on simulated devices.

    Args:
        task: What to train.
        seed: Of the schedules; None: work runs at once.
        ranks: How many.
        executor: The executor.
    """
    return each_rank(task, seed, lambda one: one.train(), ranks, executor)


def each_rank(
    task: Task,
    seed: int | None,
    life: Callable[["OnStreams"], T],
    ranks: int = 2,
    executor: type[StreamExecutor] = StreamExecutor,
) -> list[T]:
    """Run ``life`` on every rank, each with a device of its own; see ``on_streams``."""
    turns = Turns(ranks, seed or 0)
    meetings = Meetings(ranks, turns)

    def each(ends: Communicator) -> T:
        rank, failed = ends.rank, True
        turns.begin(rank)
        try:
            device = SimulatedDevice(None if seed is None else seed * ranks + rank, turns, rank)
            found = life(OnStreams(task, device, SimulatedNccl(device, meetings, rank), executor))
            failed = False
            return found
        finally:
            turns.end(rank, failed)

    with treated_as_device():
        return SimulatedWorld(ranks).run(each)


class _Ended(Done):
    def is_completed(self) -> bool:
        return True


class _Ends(Communicator):
    """A simulated world's communicator with what ``HostExecutor`` asks of a process group."""

    def __init__(self, ends: Communicator) -> None:
        self._ends, self.rank, self.size = ends, ends.rank, ends.size

    def __getattribute__(self, name: str) -> Any:
        if name in ("sum", "maximum", "gather", "broadcast", "exchange", "scatter_sum"):
            operation = getattr(object.__getattribute__(self, "_ends"), name)

            def done(*args: Any) -> _Ended:
                operation(*args)
                return _Ended()

            return done
        return object.__getattribute__(self, name)

    def pop_waits(self) -> list[tuple[float, float]]:
        return []

    sum = maximum = gather = broadcast = exchange = scatter_sum = None  # type: ignore[assignment]


def _encoder(task: Task, ends: Communicator) -> Encoder:
    encoder = Encoder(task.codec, aggregators.build(task.codec, ends), memories.build(task.memory))
    encoder.memory.world_size = ends.size
    encoder.gradients_stay = True
    return encoder


def _parameters() -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=draw) * 0.3 for shape in SHAPES]


def gradients(task: Task, parameters: Sequence[Tensor], step: int, rank: int) -> list[Tensor]:
    """The gradients of a step's loss on this rank's batch, by bucket."""
    draw = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 10, generator=draw)
    with torch.enable_grad():
        own = [one.detach().clone().requires_grad_() for one in parameters]
        hidden = torch.tanh(x @ own[0].T + own[1])
        hidden = torch.tanh(hidden @ own[2].T + own[3])
        loss = (hidden @ own[4].T + own[5] - x[:, :4].sin()).square().mean()
        found = torch.autograd.grad(loss, own)
    flat = [torch.cat([found[int(name[1:])].flatten() for name in one.names]) for one in task.layout()]
    if (step, rank) in task.bad:
        flat[len(flat) // 2][3] = float("inf")
    return [one.to(task.dtype) for one in flat]


def apply(task: Task, parameters: Sequence[Tensor], means: Sequence[Tensor]) -> None:
    """Step the parameters, as an optimizer under a GradScaler: not where a gradient is not finite."""
    if not all(bool(torch.isfinite(one).all()) for one in means):
        return
    for bucket, mean in zip(task.layout(), means, strict=True):
        for name, piece in zip(bucket.names, torch.split(mean, list(bucket.numels)), strict=True):
            parameter = parameters[int(name[1:])]
            parameter -= RATE * piece.view_as(parameter).float()


def _train_on_host(task: Task, plain: Communicator) -> Outcome:
    ends: Any = _Ends(plain)
    encoder, parameters = _encoder(task, ends), _parameters()
    announcement = Announcement("setup", task.plan(1), None)
    dense = AllReduce(ends)
    executor = HostExecutor(
        encoder=encoder,
        dense=lambda submitted: dense.reduce_in_place(submitted.buffer),
        metered=ends,
        pacer=Pacer(None),
        tick_group=ends,
        tick_codec=TickCodec(ends.rank, ends.size),
        announcement=announcement,
        sample=GradientSample(Coordinates({}, 0)),
        seed=0,
    )
    results = []
    try:
        for step in range(len(task.cfs)):
            announcement.following = task.plan(step + 1)
            executor.begin_step(task.plan(step), step, surveyed=step % 7 == 3)
            if task.rescaled and step % 3 == 2:
                executor.ordered(partial(encoder.memory.rescale, 0.5))
            buffers = gradients(task, parameters, step, ends.rank)
            layout = task.layout()
            futures = [
                executor.submit(bucket, buffer, bucket.number == len(layout) - 1)
                for bucket, buffer in zip(layout, buffers, strict=True)
            ]
            for future in futures:
                future.wait()
            result = executor.wait_step()
            if take_in(encoder, task, step, result):
                apply(task, parameters, buffers)
            results.append(result)
    finally:
        executor.close()
    return Outcome(parameters, encoder.memory.state_dict(), encoder.aggregator.state_dict(), results)


def take_in(encoder: Encoder, task: Task, step: int, result: StepResult) -> bool:
    """What ``StepLoop`` does with a step's result. Returns whether the step counts."""
    counts = result.finite and not result.tick.sums.nonfinite
    if counts:
        encoder.aggregator.learn(result.tick.means)
        encoder.commit()
    else:
        encoder.rollback()
    return counts


class OnStreams:
    """One rank of a training on a simulated device."""

    def __init__(
        self,
        task: Task,
        device: SimulatedDevice,
        nccl: SimulatedNccl,
        executor: type[StreamExecutor] = StreamExecutor,
    ) -> None:
        self.task, self.device, self.rank = task, device, nccl.rank
        dense = AllReduce(nccl)
        self.encoder, self.parameters = _encoder(task, nccl), _parameters()
        self.announcement = Announcement("setup", task.plan(1), None)
        self.executor = executor(
            device=device,
            encoder=self.encoder,
            dense=lambda submitted: dense.reduce_in_place(submitted.buffer),
            ticks=nccl,
            link=task.link,
            tick_codec=TickCodec(nccl.rank, nccl.size),
            announcement=self.announcement,
            seed=0,
        )
        self.buffers = [device.allocate(sum(bucket.numels)).to(task.dtype) for bucket in task.layout()]
        self.results: list[StepResult] = []
        self._submitted: int | None = None

    def train(self) -> Outcome:
        """Train to the end."""
        for step in range(len(self.task.cfs)):
            self.step(step)
        return self.end()

    def end(self) -> Outcome:
        """Close the executor, and return what there is."""
        self.take_in()
        self.executor.close()
        residual = self.executor.detached(self.encoder.memory).state_dict()
        learned = self.encoder.aggregator.state_dict()
        self.device.drain()
        return Outcome(self.parameters, residual, learned, self.results)

    def step(self, step: int) -> None:
        """Queue a step: backward, with the exchange of its buckets, and the update."""
        if self.task.rescaled and step % 3 == 2:
            self.executor.ordered(partial(self.encoder.memory.rescale, 0.5))
        grads: list[Tensor] = []
        main = self.device.main
        layout = self.task.layout()
        self.device.run(main, lambda: grads.extend(gradients(self.task, self.parameters, step, self.rank)))
        futures = []
        for bucket, buffer in zip(layout, self.buffers, strict=True):
            if bucket.number == 0:
                self.take_in()
                self.announcement.following = self.task.plan(step + 1)
                self.executor.begin_step(self.task.plan(step), step, step % 7 == 3)
            self.device.run(main, partial(_fill, buffer, grads, bucket.number))
            futures.append(self.executor.submit(bucket, buffer, bucket.number == len(layout) - 1))
        self._submitted = step
        for future in futures:
            future.wait()
        self.device.run(main, lambda: apply(self.task, self.parameters, self.buffers))

    def take_in(self) -> None:
        """Take in the step before, as the agent does when the next one begins."""
        if self._submitted is not None:
            step, self._submitted = self._submitted, None
            result = self.executor.wait_step()
            take_in(self.encoder, self.task, step, result)
            self.results.append(result)


def _fill(buffer: Tensor, grads: list[Tensor], number: int) -> None:
    buffer.copy_(grads[number])


def differences(mine: Sequence[Outcome], theirs: Sequence[Outcome], tolerance: float = 0.0) -> list[str]:
    """What differs between two trainings, rank by rank; empty when they are equal to the bit, or where there is a
    ``tolerance``, when no element of a tensor differs by more."""

    def equal(a: Tensor, b: Tensor, rtol: float = 0.0) -> bool:
        return torch.allclose(a, b, rtol=rtol, atol=tolerance) if rtol or tolerance else torch.equal(a, b)

    found = []
    for rank, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        for number, (a, b) in enumerate(zip(one.parameters, other.parameters, strict=True)):
            if not equal(a, b):
                found.append(f"rank {rank}: parameter {number}")
        for kind in ("residual", "learned"):
            left, right = getattr(one, kind), getattr(other, kind)
            for name in sorted({*left, *right}):
                a, b = left.get(name), right.get(name)
                a = torch.zeros_like(b) if a is None and b is not None else a
                b = torch.zeros_like(a) if b is None and a is not None else b
                if not equal(a, b, 1e-5 if name.startswith("through/") else 0.0):
                    found.append(f"rank {rank}: {kind} of {name}")
        for step, (a, b) in enumerate(zip(one.results, other.results, strict=True)):
            found += [f"rank {rank}, step {step}: {what}" for what in _different(a, b)]
    return found


def _different(a: StepResult, b: StepResult) -> list[str]:
    found = []
    if (a.dense_bytes, a.payload_bytes) != (b.dense_bytes, b.payload_bytes):
        found.append("bytes")
    if not (a.tick.agreed and b.tick.agreed) or a.tick.directive != b.tick.directive:
        found.append("agreement")
    if (a.tick.sums.nonfinite > 0, a.tick.sums.failed) != (b.tick.sums.nonfinite > 0, b.tick.sums.failed):
        found.append("flags")
    if not a.tick.sums.nonfinite:
        for name in ("gradient_sq", "compensated_sq", "sent_sq", "candidate_sq"):
            x, y = getattr(a.tick.sums, name), getattr(b.tick.sums, name)
            if abs(x - y) > 1e-5 * max(abs(x), abs(y), 1e-30):
                found.append(f"{name} {x} {y}")
        if (a.curve is None) != (b.curve is None) or (
            a.curve is not None and b.curve is not None and not _close(a.curve.gains(), b.curve.gains())
        ):
            found.append("curve")
    return found


def _close(mine: Sequence[float | None], theirs: Sequence[float | None]) -> bool:
    return all(
        a == b or (a is not None and b is not None and abs(a - b) <= 1e-5)
        for a, b in zip(mine, theirs, strict=True)
    )
