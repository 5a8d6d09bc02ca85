"""The training of a small net on simulated ranks, with any executor: what DDP and an optimizer would do."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from gravac import aggregators, memories
from gravac.collectives import AllReduce, Communicator, Done
from gravac.collectives.simulated import SimulatedWorld
from gravac.kernels import treated_as_device
from gravac.memories import Bucket
from gravac_agent.exchange.encoder import Encoder
from gravac_agent.exchange.host_executor import HostExecutor
from gravac_agent.exchange.sample import Coordinates, GradientSample
from gravac_agent.exchange.step import StepResult
from gravac_agent.exchange.tick import Announcement, TickCodec
from gravac_agent.network.link import Pacer
from gravac_agent.streams.executor import StreamExecutor
from tests.support.streams.compare import Outcome
from tests.support.streams.device import SimulatedDevice
from tests.support.streams.nccl import Meetings, SimulatedNccl
from tests.support.streams.task import Net, Task
from tests.support.streams.turns import Turns

T = TypeVar("T")


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
                self.issued += 1
                operation(*args)
                return _Ended()

            return done
        return object.__getattribute__(self, name)

    def pop_waits(self) -> list[tuple[float, float]]:
        return []

    sum = maximum = gather = broadcast = exchange = scatter_sum = None  # type: ignore[assignment]


def _encoder(task: Task, ends: Communicator) -> Encoder:
    encoder = Encoder(memories.build(task.memory), (task.codec,), (aggregators.build(task.codec, ends),))
    encoder.memory.world_size = ends.size
    encoder.gradients_stay = True
    return encoder


def _train_on_host(task: Task, plain: Communicator) -> Outcome:
    ends: Any = _Ends(plain)
    encoder, net = _encoder(task, ends), Net(task)
    scale = net.scale
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
            for factor in task.residual_factors(step, net.scale / scale):
                executor.run_between_steps(partial(encoder.memory.rescale, factor))
            scale = net.scale
            buffers, layout = net.gradients(step, ends.rank), task.layout(step)
            futures = [
                executor.submit(bucket, buffer, bucket.number == len(layout) - 1)
                for bucket, buffer in zip(layout, buffers, strict=True)
            ]
            for future in futures:
                future.wait()
            result = executor.wait_step()
            factor = net.clip_factor(buffers)
            take_in(encoder, task, step, result)
            if factor != 1.0:
                executor.run_between_steps(partial(encoder.memory.rescale, factor))
            net.apply(step, buffers, factor)
            results.append(result)
    finally:
        executor.close()
    return Outcome(net.parameters, encoder.memory.state_dict(), encoder.aggregator.state_dict(), results)


def take_in(encoder: Encoder, task: Task, step: int, result: StepResult) -> bool:
    """What ``StepLoop`` does with a step's result. Returns whether the step counts."""
    counts = result.finite and not result.tick.sums.nonfinite
    if counts:
        encoder.aggregator.apply_mean_statistics(result.tick.means)
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
        self.encoder, self.net = _encoder(task, nccl), Net(task)
        self._scale = self.net.scale
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
            compiled=task.whole,
        )
        self._layout: list[Bucket] = []
        self.buffers: list[Tensor] = []
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
        return Outcome(self.net.parameters, residual, learned, self.results)

    def step(self, step: int) -> None:
        """Queue a step: backward, with the exchange of its buckets, and the update."""
        task, main, net = self.task, self.device.main, self.net
        layout = self.begin(step)
        if task.scaled:  # a scaler that the agent is given is read in each step
            self.device.synchronize(main)
        scale = net.scale
        grads: list[Tensor] = []
        self.device.run(main, lambda: grads.extend(net.gradients(step, self.rank)))
        futures = []
        for bucket, buffer in zip(layout, self.buffers, strict=True):
            if bucket.number == 0:
                self.take_in()
                self._follow(step, scale)
                self.announcement.following = task.plan(step + 1)
                self.executor.begin_step(task.plan(step), step, step % 7 == 3)
            self.device.run(main, partial(_fill, buffer, grads, bucket.number))
            futures.append(self.executor.submit(bucket, buffer, bucket.number == len(layout) - 1))
        self._submitted = step
        for future in futures:
            future.wait()
        factor = 1.0
        if task.clip is not None:  # the agent's clipping waits for the step
            self.take_in()
            self.device.synchronize(main)
            factor = net.clip_factor(self.buffers)
            if factor != 1.0:
                self.executor.run_between_steps(partial(self.encoder.memory.rescale, factor))
        self.device.run(main, partial(net.apply, step, self.buffers, factor))

    def begin(self, step: int) -> list[Bucket]:
        """Return a step's buckets, with ``buffers`` for them: new ones where DDP has regrouped its buckets."""
        layout = self.task.layout(step)
        if layout != self._layout:
            for buffer in self.buffers:
                self.device.free(buffer)
            self.buffers = [self.device.allocate(sum(bucket.numels), self.task.dtype) for bucket in layout]
            self._layout = layout
        return layout

    def _follow(self, step: int, scale: float) -> None:
        """Let the residual follow what the rates and the loss scale were when the forward began."""
        for factor in self.task.residual_factors(step, scale / self._scale):
            self.executor.run_between_steps(partial(self.encoder.memory.rescale, factor))
        self._scale = scale

    def take_in(self) -> None:
        """Take in the step before, as the agent does when the next one begins."""
        if self._submitted is not None:
            step, self._submitted = self._submitted, None
            result = self.executor.wait_step()
            take_in(self.encoder, self.task, step, result)
            self.results.append(result)


def _fill(buffer: Tensor, grads: list[Tensor], number: int) -> None:
    buffer.copy_(grads[number])
