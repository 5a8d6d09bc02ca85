"""The exchange thread encodes the next bucket while the network sends the last, and no other thread waits."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from gravac import aggregators, memories
from gravac.collectives import AllReduce, ProcessGroupCommunicator
from gravac.collectives.all_reduce import InPlace
from gravac.collectives.communicator import Communicator
from gravac.memories import Bucket
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.host_executor import HostExecutor
from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_agent.exchange.sample import Coordinates, GradientSample
from gravac_agent.exchange.step import InFlight, Signal, SubmittedBucket
from gravac_agent.exchange.tick import Announcement, TickCodec
from gravac_agent.network.link import Pacer

N = 1000
PLAN = StepPlan(Directive(1, "hold", 10.0, 10.0, 0.0), 10.0)
PATIENCE_SECONDS = 30.0


class Slow:
    """An operation that ends when the test sets ``delivered``."""

    def __init__(self) -> None:
        self.delivered = threading.Event()

    def wait(self) -> None:
        assert self.delivered.wait(PATIENCE_SECONDS)


class Network(Communicator):
    """A group of one rank; ``issued`` counts up as operations begin."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.issued: list[Slow] = []
        self.more = threading.Semaphore(0)

    def gather(self, out: torch.Tensor, x: torch.Tensor) -> Any:
        out.copy_(x)
        self.issued.append(Slow())
        self.more.release()
        return self.issued[-1]

    def sum(self, *tensors: Any) -> Any:
        raise AssertionError("Top-k is gathered")

    maximum = broadcast = exchange = scatter_sum = sum

    def pop_waits(self) -> list[tuple[float, float]]:
        """As ``Metered``: no time is spent waiting for rounds."""
        return []


@pytest.fixture
def network() -> Iterator[Network]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield Network()
    dist.destroy_process_group()


def executor_on(network: Network) -> HostExecutor:
    group = dist.group.WORLD
    assert group is not None
    made = HostExecutor(
        channels=Channels(memories.build("residual"), ("topk",), (aggregators.build("topk", network),)),
        dense=AllReduce(group),
        metered=network,  # type: ignore[arg-type]
        pacer=Pacer(None),
        ticks=ProcessGroupCommunicator(group),
        tick_codec=TickCodec(0, 1),
        sample=GradientSample(Coordinates({}, 0)),
        announcement=Announcement("setup", PLAN, None),
    )
    made.begin_step(PLAN, 0, surveyed=False)
    return made


def test_a_bucket_is_encoded_and_sent_while_another_is_in_flight(network: Network) -> None:
    running = executor_on(network)
    buckets = [Bucket(number, (f"w{number}",), (N,), ((N,),)) for number in range(3)]
    # As after a step with this codec: in the first one, all buckets are decoded at its end.
    for bucket in buckets:
        running.channels.channel(bucket).proven = [True]
    try:
        futures = []
        for number, bucket in enumerate(buckets):
            begun = time.monotonic()
            futures.append(running.submit(bucket, torch.randn(N), number == 2))
            assert time.monotonic() - begun < PATIENCE_SECONDS / 2, "backward never waits for a bucket"
        for _ in range(3):  # all three are in flight
            assert network.more.acquire(timeout=PATIENCE_SECONDS)
        assert not any(future.done() for future in futures)
        network.issued[1].delivered.set()
        assert not futures[1].done(), "DDP gets its buckets in order"
        network.issued[0].delivered.set()
        futures[0].wait()
        futures[1].wait()
        assert not futures[2].done()
        network.issued[2].delivered.set()
        result = running.wait_step()
        assert futures[2].done()
        assert all(int((future.value() != 0).sum()) == N // 10 for future in futures)
        assert result.tick.agreed
        assert result.cpu_seconds > 0
        kinds = {kind for kind, _, _ in result.activity}
        assert kinds == {"compress", "communicate", "decompress"}
    finally:
        for operation in network.issued:
            operation.delivered.set()
        running.close()


def test_a_collective_that_fails_is_raised_at_the_end_of_the_step(network: Network) -> None:
    """Never on another thread, never inside backward, never dropped."""
    running = executor_on(network)
    try:

        def broken(out: torch.Tensor, x: torch.Tensor) -> Any:
            raise RuntimeError("the network is gone")

        network.gather = broken  # type: ignore[method-assign]
        future = running.submit(Bucket(0, ("w",), (N,), ((N,),)), torch.randn(N), True)
        with pytest.raises(RuntimeError, match="the network is gone"):
            running.wait_step()
        # DDP cannot read an exception out of a future, and nothing is raised into autograd: it gets zeros.
        assert not future.wait().any()
    finally:
        running.close()


def test_a_paced_transfer_that_ends_at_once_does_not_hang(network: Network) -> None:
    """Seen as ranks that waited forever on a busy machine: ``SimpleQueue.get`` with a timeout that has passed."""
    running = executor_on(network)
    submitted = SubmittedBucket(
        Bucket(0, ("w",), (1,), ((1,),)), torch.zeros(1), True, torch.futures.Future(), torch.zeros(1), 1.0
    )
    channel = running.channels.channel(submitted.bucket)
    paced = InFlight(
        submitted,
        channel,
        InPlace(Slow(), 1, 1),
        in_place=True,
        raw=False,
        unresolved=False,
        proven=True,
        works=(),
    )
    ends = 0

    def wait_for_each() -> None:
        nonlocal ends
        for _ in range(30_000):
            paced.ends_at = time.monotonic() + 2e-6
            assert running._next_message() is Signal.DUE
            running._inbox.put(Signal.DUE)  # comes while nobody waits
            running._next_message()
            ends += 1

    running.close()
    running._buckets.append(paced)
    thread = threading.Thread(target=wait_for_each, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert ends == 30_000
