"""Buffers keep their gradients until it is known whether the step counts; whatever happens, their futures complete."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from gravac import aggregators, memories
from gravac.collectives import AllReduce, ProcessGroupCommunicator
from gravac.collectives.communicator import Communicator, Done
from gravac.memories import Bucket
from gravac_agent.exchange import host_executor
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.host_executor import HostExecutor
from gravac_agent.exchange.overflow import Float16Means
from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_agent.exchange.sample import Coordinates, GradientSample
from gravac_agent.exchange.step import BucketPhase
from gravac_agent.exchange.tick import Announcement, TickCodec
from gravac_agent.network.link import Pacer

N, BUCKETS = 1000, 3
PLAN = StepPlan(Directive(1, "hold", 10.0, 10.0, 0.0), 10.0)
PATIENCE_SECONDS = 30.0


class Alone(Communicator):
    """A group of one rank. Operation number ``breaks`` fails: when it is issued, or when it is waited for."""

    rank, size = 0, 1

    def __init__(self, breaks: int = -1, at_once: bool = False) -> None:
        self.breaks, self.at_once, self.count = breaks, at_once, 0

    def gather(self, out: Tensor, x: Tensor) -> Any:
        out.copy_(x)
        self.count += 1
        self.issued += 1
        if self.count - 1 != self.breaks:
            return Done()
        if self.at_once:
            raise RuntimeError("the network is gone")
        return Broken()

    def sum(self, *tensors: Any) -> Any:
        raise AssertionError("Top-k is gathered")

    maximum = broadcast = exchange = scatter_sum = sum

    def pop_waits(self) -> list[tuple[float, float]]:
        return []


class Broken:
    def wait(self) -> None:
        raise RuntimeError("the network is gone")


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def executor_on(network: Alone, dtype: torch.dtype = torch.float32) -> HostExecutor:
    world = dist.group.WORLD
    assert world is not None
    return HostExecutor(
        channels=Channels(
            memories.build("residual"), ("topk",), (aggregators.build("topk", network),), gradients_stay=True
        ),
        dense=AllReduce(world),
        metered=network,  # type: ignore[arg-type]
        pacer=Pacer(None),
        ticks=ProcessGroupCommunicator(world),
        tick_codec=TickCodec(0, 1),
        sample=GradientSample(Coordinates({}, 0)),
        announcement=Announcement("setup", PLAN, None),
    )


def bucket(number: int) -> Bucket:
    return Bucket(number, (f"w{number}",), (N,), ((N,),))


def submit(running: HostExecutor, gradients: list[Tensor], count: int = BUCKETS) -> list[Any]:
    return [
        running.submit(bucket(number), gradients[number], number == BUCKETS - 1) for number in range(count)
    ]


def gradients(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(N, generator=generator) for _ in range(BUCKETS)]


def one_step(running: HostExecutor, number: int) -> None:
    running.begin_step(PLAN, number, surveyed=False)
    for future in submit(running, gradients(number)):
        future.wait()
    running.wait_step()
    running.channels.commit()


def eventually(condition: Any) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_no_gradient_is_overwritten_before_the_last_bucket_is_there() -> None:
    running, given = executor_on(Alone()), gradients(0)
    try:
        running.begin_step(PLAN, 0, surveyed=False)
        before = [one.clone() for one in given]
        futures = submit(running, given, BUCKETS - 1)
        running.run(lambda: None)
        eventually(lambda: len(running._are(BucketPhase.ARRIVED)) == BUCKETS - 1)  # both transfers have ended
        assert not any(future.done() for future in futures)
        assert all(torch.equal(one, same) for one, same in zip(given, before, strict=True))
        last = running.submit(bucket(BUCKETS - 1), given[-1], True)
        for future in (*futures, last):
            future.wait()
        assert running.wait_step().tick.sums.nonfinite == 0
        assert all(int((one != 0).sum()) == N // 10 for one in given)
        residuals = running.channels.memory.state_dict()
        for number, (one, was) in enumerate(zip(given, before, strict=True)):
            assert torch.equal(one + residuals[f"w{number}"], was)
    finally:
        running.close()


@pytest.mark.parametrize("poisoned", range(BUCKETS))
def test_a_non_finite_bucket_undoes_the_others_before_they_are_decoded(poisoned: int) -> None:
    running, given = executor_on(Alone()), gradients(7)
    try:
        one_step(running, 0)
        before = running.channels.memory.state_dict()
        running.begin_step(PLAN, 1, surveyed=False)
        given[poisoned][3] = torch.inf
        for future in submit(running, given):
            future.wait()
        result = running.wait_step()
        assert result.tick.sums.nonfinite == 1
        assert not given[poisoned].isfinite().all(), "a GradScaler must see it"
        after = running.channels.memory.state_dict()
        running.channels.rollback()
        assert before.keys() == after.keys() == running.channels.memory.state_dict().keys()
        for name, residual in before.items():
            torch.testing.assert_close(after[name], residual, rtol=0.0, atol=1e-6)
        assert running.channels.memory.dropped == 0
    finally:
        running.close()


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("breaks", range(BUCKETS))
def test_whatever_fails_all_futures_complete_and_the_step_is_undone(breaks: int, at_once: bool) -> None:
    """Otherwise DDP would wait for ever in backward, and nobody would hear of the error."""
    network = Alone()
    running, given = executor_on(network), gradients(7)
    try:
        one_step(running, 0)
        before = running.channels.memory.state_dict()
        network.breaks, network.at_once = BUCKETS + breaks, at_once
        running.begin_step(PLAN, 1, surveyed=False)
        for future in submit(running, given):
            eventually(future.done)
        with pytest.raises(RuntimeError, match="the network is gone"):
            running.wait_step()
        assert not given[breaks].any()
        after = running.channels.memory.state_dict()
        for name in after:
            torch.testing.assert_close(after[name], before[name], rtol=0.0, atol=1e-6)
        if at_once:  # before the tick: nothing was decoded yet
            assert after.keys() == before.keys()
    finally:
        running.close()


def test_a_tick_that_fails_completes_all_futures(monkeypatch: pytest.MonkeyPatch) -> None:
    running, given = executor_on(Alone()), gradients(7)
    try:
        monkeypatch.setattr(host_executor.dist, "all_reduce", lambda *given, **more: Broken_tick())
        running.begin_step(PLAN, 0, surveyed=False)
        for future in submit(running, given):
            eventually(future.done)
        with pytest.raises(RuntimeError, match="the network is gone"):
            running.wait_step()
        assert running.channels.memory.state_dict() == {}
    finally:
        running.close()


class Broken_tick(Broken):
    def is_completed(self) -> bool:
        return True


@pytest.mark.parametrize("how", ["abandon", "close"])
def test_a_backward_that_did_not_end_is_undone_while_its_gradients_are_there(how: str) -> None:
    running, given = executor_on(Alone()), gradients(7)
    try:
        one_step(running, 0)
        before = running.channels.memory.state_dict()
        running.begin_step(PLAN, 1, surveyed=False)
        submit(running, given, BUCKETS - 1)  # perhaps not encoded yet
        running.abandon() if how == "abandon" else running.close()
        for name, residual in running.channels.memory.state_dict().items():
            torch.testing.assert_close(residual, before[name], rtol=0.0, atol=1e-6)
        assert before.keys() == running.channels.memory.state_dict().keys()
    finally:
        running.close()


def test_a_mean_that_overflows_float16_undoes_the_buckets_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows only when it is decoded, so all means are checked before the first one is written."""
    running = executor_on(Alone())
    try:
        given = [gradient.half() for gradient in gradients(7)]
        running.begin_step(PLAN, 0, surveyed=False)
        for future in submit(running, [gradient.half() for gradient in gradients(0)]):
            future.wait()
        running.wait_step()
        running.channels.commit()
        before = running.channels.memory.state_dict()
        running.begin_step(PLAN, 1, surveyed=False)
        is_finite = Float16Means.is_finite
        last = given[-1]
        monkeypatch.setattr(
            Float16Means,
            "is_finite",
            lambda self, sent, buffer: buffer is not last and is_finite(self, sent, buffer),
        )
        for future in submit(running, given):
            future.wait()
        running.wait_step()
        running.channels.rollback()
        for name, residual in running.channels.memory.state_dict().items():
            torch.testing.assert_close(residual, before[name], rtol=0.0, atol=1e-6)
    finally:
        running.close()
