"""What happens to an executor in its life, on two simulated ranks; each returns what went wrong."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from gravac.memories import Bucket
from gravac_agent.network.link import Link
from gravac_agent.streams.executor import StreamExecutor
from tests.support.streams.compare import Outcome, differences
from tests.support.streams.task import Task
from tests.support.streams.training import OnStreams, each_rank, on_host, on_streams

Life = Callable[[type[StreamExecutor], int], list[str]]
_CFS = (1.0, 10.0, 4.0, 1.0, 10.0, 2.0)
_BAD = frozenset({(2, 1), (4, 0)})
PLAIN = Task("topk", 6, _CFS, _BAD, rescaled=True)
LINKED = Task("topk", 6, _CFS, _BAD, link=Link(bits_per_second=1e6))
WHOLE = Task("topk+twobit", 6, (4.0,) * 6, _BAD, rescaled=True, whole=True)
"""Whole messages find what they send by the steps before, so the host's executor, which does not, sends others."""
SHARDS = Task("int8", 6, _CFS, _BAD, rescaled=True, whole=True, collective="compressed-all-reduce")
LINKED_SHARDS = replace(SHARDS, link=Link(bits_per_second=1e6))
EARLY = Task("bf16", 6, (2.0,) * 6, _BAD, rescaled=True)
LINKED_EARLY = Task("bf16", 6, (2.0,) * 6, _BAD, link=Link(bits_per_second=1e6))
"""Two payloads take more than a second buffer of the residual, so that means are written before the tick is there."""
ROWS = Task("topk", 6, _CFS, _BAD, rescaled=True, fsdp="rows")
REPLICAS = Task("topk", 6, _CFS, _BAD, rescaled=True, fsdp="replicas")
_FEW = frozenset({(2, 1)})
DIVIDED = Task("topk", 6, _CFS[:4], _FEW, rescaled=True, levels=2)
"""On two hosts of two ranks, as all tasks with levels."""
LINKED_DIVIDED = replace(LINKED_EARLY, cfs=(2.0,) * 4, bad=_FEW, levels=2)
DIVIDED_WHOLE = replace(WHOLE, cfs=(4.0,) * 4, bad=_FEW, levels=2)
DIVIDED_SHARDS = replace(SHARDS, cfs=_CFS[:4], bad=_FEW, levels=2)
DIVIDED_REPLICAS = replace(REPLICAS, cfs=_CFS[:4], bad=_FEW, levels=2)
LINKED_ROWS = Task("topk", 6, _CFS, _BAD, link=Link(bits_per_second=1e6), fsdp="rows")


@cache
def _on_host(task: Task) -> list[Outcome]:
    return on_host(task)


@cache
def _at_once(task: Task) -> list[Outcome]:
    return on_streams(task, None, _ranks(task))


def _ranks(task: Task) -> int:
    return 2 if task.levels == 1 else 4


def trained(executor: type[StreamExecutor], seed: int) -> list[str]:
    """A training with CFs switched, residuals rescaled, and steps that are not finite."""
    return differences(on_streams(PLAIN, seed, executor=executor), _on_host(PLAIN))


def linked(executor: type[StreamExecutor], seed: int) -> list[str]:
    """The same over an emulated link."""
    return differences(on_streams(LINKED, seed, executor=executor), _on_host(LINKED))


def early(executor: type[StreamExecutor], seed: int) -> list[str]:
    """A training whose means are written as soon as they have arrived."""
    return differences(on_streams(EARLY, seed, executor=executor), _on_host(EARLY))


def linked_early(executor: type[StreamExecutor], seed: int) -> list[str]:
    """The same over an emulated link."""
    return differences(on_streams(LINKED_EARLY, seed, executor=executor), _on_host(LINKED_EARLY))


def in_whole_messages(executor: type[StreamExecutor], seed: int) -> list[str]:
    """A training in whole messages, with residuals rescaled, and steps that are not finite."""
    return differences(on_streams(WHOLE, seed, executor=executor), _at_once(WHOLE))


def in_shards(executor: type[StreamExecutor], seed: int) -> list[str]:
    """A training in messages of shards, which take two collectives a bucket."""
    return differences(on_streams(SHARDS, seed, executor=executor), _at_once(SHARDS))


def in_linked_shards(executor: type[StreamExecutor], seed: int) -> list[str]:
    """The same over an emulated link, on which both are issued at once."""
    return differences(on_streams(LINKED_SHARDS, seed, executor=executor), _at_once(LINKED_SHARDS))


def divided(executor: type[StreamExecutor], seed: int) -> list[str]:
    """Two levels of links: a rank exchanges its piece of each bucket, and gets the means of the others."""
    return _divided(executor, seed, DIVIDED)


def linked_divided(executor: type[StreamExecutor], seed: int) -> list[str]:
    """The same over an emulated link, in pieces whose means are written as soon as they have arrived."""
    return _divided(executor, seed, LINKED_DIVIDED)


def divided_in_whole_messages(executor: type[StreamExecutor], seed: int) -> list[str]:
    """The same in whole messages, of which one launch decodes several buckets."""
    return _divided(executor, seed, DIVIDED_WHOLE)


def divided_in_shards(executor: type[StreamExecutor], seed: int) -> list[str]:
    """The same in messages with a second collective, which follows the next buckets' division."""
    return _divided(executor, seed, DIVIDED_SHARDS)


def divided_replicas(executor: type[StreamExecutor], seed: int) -> list[str]:
    """The same where each mean is used at once."""
    return _divided(executor, seed, DIVIDED_REPLICAS)


def _divided(executor: type[StreamExecutor], seed: int, task: Task) -> list[str]:
    return differences(on_streams(task, seed, _ranks(task), executor), _at_once(task))


def divided_again(executor: type[StreamExecutor], seed: int) -> list[str]:
    """A dense backward ends in an exception, and the next one divides buckets into the pieces that are in flight."""
    task = replace(DIVIDED, cfs=(10.0, 10.0, 1.0, 4.0), bad=frozenset())

    def each(one: OnStreams) -> Outcome:
        for step in range(2):
            one.step(step)
        one.take_in()
        begin_backward(one, 2, buckets=4)
        one.channels.rollback()
        one.executor.abandon()
        for step in range(2, 4):
            one.step(step)
        return one.end()

    return differences(each_rank(task, seed, each, _ranks(task), executor), _at_once(task))


def rows(executor: type[StreamExecutor], seed: int) -> list[str]:
    """FSDP2, which gives each rank a row of each mean, and uses the memory of gradients again at once."""
    return differences(on_streams(ROWS, seed, executor=executor), _on_host(ROWS))


def replicas(executor: type[StreamExecutor], seed: int) -> list[str]:
    """HSDP, which calls the agent on another stream than that of the gradient's memory."""
    return differences(on_streams(REPLICAS, seed, executor=executor), _on_host(REPLICAS))


def linked_rows(executor: type[StreamExecutor], seed: int) -> list[str]:
    """FSDP2 over an emulated link."""
    return differences(on_streams(LINKED_ROWS, seed, executor=executor), _on_host(LINKED_ROWS))


def abandoned_rows(executor: type[StreamExecutor], seed: int) -> list[str]:
    """A backward of FSDP2 ends in an exception after two modules: the agent drops what they left."""

    def each(one: OnStreams) -> list[str]:
        for step in range(2):
            one.step(step)
        one.take_in()
        one.device.drain()
        before = one.channels.memory.state_dict()
        one.executor.begin_step(one.task.plan(2), 2, False)
        layout, grads = one.task.layout(2), list[Tensor]()
        one.device.run(one.device.main, lambda: grads.extend(one.net.gradients(2, one.rank)))
        one.reduce(layout, grads, modules=2)
        one.channels.rollback()  # as ``StepLoop.restart_step``
        one.executor.abandon()
        after = one.channels.memory.state_dict()
        found = [f"residual of {name}" for name in before if not torch.equal(before[name], after[name])]
        one.step(2)
        one.end()
        return found

    return _each(Task("topk", 6, (10.0,) * 4, fsdp="rows"), seed, each, executor)


def abandoned(executor: type[StreamExecutor], seed: int) -> list[str]:
    """A backward ends in an exception after two buckets: the memory is as it was, and the host may read it."""
    return _abandoned(executor, seed, Task("topk", 6, (10.0,) * 4))


def abandoned_in_whole_messages(executor: type[StreamExecutor], seed: int) -> list[str]:
    """The same; the device undoes it."""
    return _abandoned(executor, seed, Task("topk+bf16", 6, (4.0,) * 4, whole=True))


def abandoned_pieces(executor: type[StreamExecutor], seed: int) -> list[str]:
    """The same of pieces."""
    return _abandoned(executor, seed, Task("topk", 6, (10.0,) * 4, levels=2))


def _abandoned(executor: type[StreamExecutor], seed: int, task: Task) -> list[str]:
    def each(one: OnStreams) -> list[str]:
        for step in range(3):
            one.step(step)
        one.take_in()
        one.executor.abandon()
        before = one.channels.memory.state_dict()
        begin_backward(one, 3, buckets=2)
        one.executor.abandon()
        after = one.channels.memory.state_dict()
        one.device.drain()
        return [
            f"residual of {name}"
            for name in before
            if name not in after or not torch.allclose(before[name], after[name], rtol=0.0, atol=1e-6)
        ]

    return _each(task, seed, each, executor)


def closed_within(executor: type[StreamExecutor], seed: int) -> list[str]:
    """The agent closes after a backward that ended in an exception."""

    def each(one: OnStreams) -> list[str]:
        for step in range(3):
            one.step(step)
        one.take_in()
        one.device.drain()
        before = one.channels.memory.state_dict()
        begin_backward(one, 3, buckets=3)
        one.executor.close()
        after = one.executor.detached(one.channels.memory).state_dict()
        one.device.drain()
        return [
            f"residual of {name}"
            for name in before
            if name not in after or not torch.allclose(before[name], after[name], rtol=0.0, atol=1e-6)
        ]

    return _each(Task("topk", 6, (10.0,) * 4), seed, each, executor)


def freed(executor: type[StreamExecutor], seed: int) -> list[str]:
    """A backward ends in an exception and the model is dropped: what gets its memory is not written to."""

    def each(one: OnStreams) -> list[str]:
        begin_backward(one, 0, buckets=3)
        device, found = one.device, []
        for buffer in one.buffers[:3]:
            device.free(buffer)
        for buffer in one.buffers[:3]:
            other = device.allocate(buffer.numel())
            device.run(device.main, lambda other=other: other.fill_(7.0))
            found.append(other)
        one.executor.close()
        device.drain()
        return [
            f"{number} was written to" for number, other in enumerate(found) if not bool((other == 7.0).all())
        ]

    return _each(Task("topk", 6, (1.0,) * 2), seed, each, executor)


def asked(executor: type[StreamExecutor], seed: int) -> list[str]:
    """``run`` has run its job when it returns, and all before it."""

    def each(one: OnStreams) -> list[str]:
        one.step(0)
        seen: list[int] = []
        one.executor.run(lambda: seen.append(len(one.executor._step.copies)))  # type: ignore[union-attr]
        found = [] if seen == [1] else [f"the job saw {seen}"]
        one.end()
        return found

    return _each(Task("topk", 1, (10.0,) * 2), seed, each, executor)


LIVES: tuple[Life, ...] = (
    trained,
    rows,
    replicas,
    linked,
    early,
    linked_early,
    linked_rows,
    abandoned,
    abandoned_rows,
    closed_within,
    freed,
    asked,
    in_whole_messages,
    abandoned_in_whole_messages,
    in_shards,
    in_linked_shards,
    divided,
    linked_divided,
    divided_in_whole_messages,
    divided_in_shards,
    divided_replicas,
    divided_again,
    abandoned_pieces,
)


def begin_backward(one: OnStreams, step: int, buckets: int) -> None:
    """Begin a backward and hand over its first buckets."""
    one.executor.begin_step(one.task.plan(step), step, False)
    layout: list[Bucket] = one.begin(step)
    draw = torch.Generator().manual_seed(step)
    for bucket, buffer in list(zip(layout, one.buffers, strict=True))[:buckets]:
        gradient = torch.randn(buffer.numel(), generator=draw)
        one.device.run(one.device.main, lambda buffer=buffer, gradient=gradient: buffer.copy_(gradient))
        one.executor.submit(bucket, buffer, False)


def _each(
    task: Task, seed: int, each: Callable[[OnStreams], list[str]], executor: type[StreamExecutor]
) -> list[str]:
    found = each_rank(task, seed, each, _ranks(task), executor)
    return [f"rank {rank}: {what}" for rank, one in enumerate(found) for what in one]
