"""The training of a small net on simulated ranks, with any executor: what DDP or FSDP2 and an optimizer would do."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from gravac import aggregators, memories
from gravac.aggregators import Aggregator
from gravac.collectives import AllReduce, Communicator, Done, InPlace, Transfer
from gravac.collectives.simulated import SimulatedWorld
from gravac.kernels import treated_as_device
from gravac.memories import Bucket
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.host_executor import HostExecutor
from gravac_agent.exchange.host_level import HostLevel
from gravac_agent.exchange.sample import Coordinates, GradientSample
from gravac_agent.exchange.step import StepResult, SubmittedBucket
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
    meetings, levels = Meetings(ranks, turns), task.levels
    inside = [Meetings(levels, turns) for _ in range(ranks // levels)]
    between = [Meetings(ranks // levels, turns) for _ in range(levels)]

    def each(ends: Communicator) -> T:
        rank, failed = ends.rank, True
        turns.begin(rank)
        try:
            device = SimulatedDevice(None if seed is None else seed * ranks + rank, turns, rank)
            everyone, host = SimulatedNccl(device, meetings, rank), None
            exchanging, (number, place) = everyone, divmod(rank, levels)
            if levels > 1:
                # One communicator for gradients and means, as on a GPU.
                ends = SimulatedNccl(device, inside[number], place)
                host = HostLevel(ends, ends, device)
                exchanging = SimulatedNccl(device, between[place], number)
            found = life(OnStreams(task, device, everyone, executor, exchanging, host))
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


def _channels(task: Task, ends: Communicator) -> Channels:
    if task.fsdp == "rows":
        aggregator: Aggregator = aggregators.build_sharded(task.codec, ends)
    else:
        aggregator = aggregators.build(task.codec, ends, task.collective)
    channels = Channels(memories.build(task.memory), (task.codec,), (aggregator,))
    channels.memory.world_size = ends.size
    channels.gradients_stay = not task.fsdp
    return channels


def _dense(task: Task, ends: Communicator) -> Callable[[SubmittedBucket], Transfer]:
    """Return what sends dense gradients: an all-reduce, or for rows a reduce-scatter."""
    whole = AllReduce(ends)

    def scatter(submitted: SubmittedBucket) -> Transfer:
        work = ends.scatter_sum(submitted.out, submitted.buffer.div_(ends.size))
        return InPlace(work, submitted.buffer.nbytes, submitted.buffer.nbytes)

    return scatter if task.fsdp == "rows" else lambda submitted: whole.reduce_in_place(submitted.buffer)


def _train_on_host(task: Task, plain: Communicator) -> Outcome:
    ends: Any = _Ends(plain)
    channels, net = _channels(task, ends), Net(task, ends.rank)
    scale = net.scale
    announcement = Announcement("setup", task.plan(1), None)
    executor = HostExecutor(
        channels=channels,
        dense=_dense(task, ends),
        metered=ends,
        pacer=Pacer(None),
        ticks=ends,
        tick_codec=TickCodec(ends.rank, ends.size),
        announcement=announcement,
        sample=GradientSample(Coordinates({}, 0)),
    )
    results = []
    try:
        for step in range(len(task.cfs)):
            announcement.following = task.plan(step + 1)
            executor.begin_step(task.plan(step), step, surveyed=step % 7 == 3)
            for factor in task.residual_factors(step, net.scale / scale):
                executor.run_between_steps(partial(channels.memory.rescale, factor))
            scale = net.scale
            buffers, layout = net.gradients(step, ends.rank), task.layout(step)
            if task.fsdp:
                means = [_room(task, buffer) for buffer in buffers]
                for bucket, buffer, mean in zip(layout, buffers, means, strict=True):
                    executor.submit_now(bucket, buffer, mean, 1.0)
                executor.end_backward(())
                buffers = means
            else:
                futures = [
                    executor.submit(bucket, buffer, bucket.number == len(layout) - 1)
                    for bucket, buffer in zip(layout, buffers, strict=True)
                ]
                for future in futures:
                    future.wait()
            result = executor.wait_step()
            factor = net.clip_factor(buffers)
            if not take_in(channels, task, step, result):  # the agent skips the optimizer's step
                buffers = [torch.full_like(buffer, torch.nan) for buffer in buffers]
            if factor != 1.0:
                executor.run_between_steps(partial(channels.memory.rescale, factor))
            net.apply(step, buffers, factor)
            results.append(result)
    finally:
        executor.close()
    return Outcome(net.parameters, channels.memory.state_dict(), channels.aggregator.state_dict(), results)


def _room(task: Task, buffer: Tensor) -> Tensor:
    """Return what the mean of a gradient under FSDP2 is written to: a row, or the gradient's own memory."""
    return buffer.new_empty(buffer.numel() // 2) if task.fsdp == "rows" else buffer.view(-1)


def take_in(channels: Channels, task: Task, step: int, result: StepResult) -> bool:
    """What ``StepLoop`` does with a step's result. Returns whether the step counts."""
    counts = result.finite and not result.tick.sums.nonfinite
    if counts:
        channels.aggregator.apply_mean_statistics(result.tick.means)
        channels.commit()
    else:
        channels.rollback()
    return counts


class OnStreams:
    """One rank of a training on a simulated device.

    Args:
        task: What to train.
        device: The device.
        nccl: All ranks.
        executor: The executor.
        exchanging: The ranks that average compressed gradients.
        host: Divides gradients among the ranks of this host; None: nobody does.
    """

    def __init__(
        self,
        task: Task,
        device: SimulatedDevice,
        nccl: SimulatedNccl,
        executor: type[StreamExecutor],
        exchanging: SimulatedNccl,
        host: HostLevel | None,
    ) -> None:
        self.task, self.device, self.rank, self.host = task, device, nccl.rank, host
        self.channels, self.net = _channels(task, exchanging), Net(task, nccl.rank)
        # As FSDP2's: of reduce-scatters, and of all-reduces between replicas.
        self.scatters, self.reduces = device.new_stream(), device.new_stream()
        self._scale = self.net.scale
        self.announcement = Announcement("setup", task.plan(1), None)
        self.executor = executor(
            device=device,
            channels=self.channels,
            dense=_dense(task, exchanging),
            ticks=nccl,
            link=task.link,
            tick_codec=TickCodec(nccl.rank, nccl.size),
            announcement=self.announcement,
            compiled=task.whole,
            host=host,
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
        residual = self.executor.detached(self.channels.memory).state_dict()
        learned = self.channels.aggregator.state_dict()
        self.device.drain()
        return Outcome(self.net.parameters, residual, learned, self.results)

    def step(self, step: int) -> None:
        """Queue a step: backward, with the exchange of its buckets, and the update."""
        task, main, net = self.task, self.device.main, self.net
        layout = task.layout(step) if task.fsdp else self.begin(step)
        if task.scaled:  # a scaler that the agent is given is read in each step
            self.device.synchronize(main)
        scale = net.scale
        grads: list[Tensor] = []
        self.device.run(main, lambda: grads.extend(net.gradients(step, self.rank)))
        self.take_in()
        self._follow(step, scale)
        self.announcement.following = task.plan(step + 1)
        self.executor.begin_step(task.plan(step), step, step % 7 == 3)
        if task.fsdp:
            self.reduce(layout, grads)
        else:
            self._exchange(layout, grads)
        self._submitted = step
        factor = 1.0
        if task.clip is not None:  # the agent's clipping waits for the step
            self.take_in()
            self.device.synchronize(main)
            factor = net.clip_factor(self.buffers)
            if factor != 1.0:
                self.executor.run_between_steps(partial(self.channels.memory.rescale, factor))
        self.device.run(main, partial(net.apply, step, self.buffers, factor))

    def _exchange(self, layout: list[Bucket], grads: list[Tensor]) -> None:
        """What DDP does in backward."""
        futures = []
        for bucket, buffer in zip(layout, self.buffers, strict=True):
            self.device.run(self.device.main, partial(_fill, buffer, grads, bucket.number))
            futures.append(self.executor.submit(bucket, buffer, bucket.number == len(layout) - 1))
        for future in futures:
            future.wait()

    def reduce(self, layout: list[Bucket], grads: list[Tensor], modules: int | None = None) -> None:
        """What FSDP2 of torch 2.13 does in backward, in ``post_backward`` and ``foreach_reduce``.

        Args:
            layout: The buckets.
            grads: Receives their gradients on the main stream.
            modules: After how many of them backward ends in an exception; None: it does not.
        """
        device, main = self.device, self.device.main
        earlier: tuple[Tensor, Callable[[], bool]] | None = None
        self.buffers = []
        for number, bucket in enumerate(layout[:modules]):
            if earlier is not None:  # it keeps one input, until its reduce-scatter is done
                device.queue(main, None, earlier[1])
                device.free(earlier[0])
            whole = sum(bucket.numels)
            given = device.allocate(whole, self.task.dtype)
            device.run(main, partial(_fill, given, grads, number))
            device.wait_stream(self.scatters, main)
            with device.on(self.scatters):
                out = device.allocate(whole // 2 if self.task.fsdp == "rows" else whole, self.task.dtype)
                if self.task.fsdp == "rows":
                    self.executor.submit_now(bucket, given, out, 1.0)
                else:
                    device.run(self.scatters, partial(out.copy_, given))
                earlier = given, device.end_of(self.scatters)
            last = self.scatters
            if self.task.fsdp == "replicas":
                last = self.reduces
                device.wait_stream(last, self.scatters)
                with device.on(last):
                    self.executor.submit_now(bucket, out, out.view(-1), 1.0)
            cast = torch.full_like(out, torch.nan)
            device.run(last, partial(cast.copy_, out))
            device.free(out)  # where gradients have another format than the parameters
            self.buffers.append(cast)
        if modules is None:
            device.wait_stream(main, last)
            self.executor.end_backward(self.buffers)

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
            self.executor.run_between_steps(partial(self.channels.memory.rescale, factor))
        self._scale = scale

    def take_in(self) -> None:
        """Take in the step before, as the agent does when the next one begins."""
        if self._submitted is not None:
            step, self._submitted = self._submitted, None
            result = self.executor.wait_step()
            take_in(self.channels, self.task, step, result)
            self.results.append(result)


def _fill(buffer: Tensor, grads: list[Tensor], number: int) -> None:
    buffer.copy_(grads[number])
