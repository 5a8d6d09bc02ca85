"""How many messages a rank sends, by what it asks of torch."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives import ProcessGroupCommunicator
from gravac_agent import Agent
from gravac_agent.exchange import agreement
from gravac_agent.network.doubling import Doubling
from gravac_agent.network.link import Link
from gravac_agent.network.probe import Ring, measure
from tests.ranks.scenarios.model import train, wrapped

LARGE = 5000
"""Elements from which a tensor is a gradient. A text has more, and is sent in one message or a ring."""


def _messages(world: int, rank: int) -> dict[str, int]:
    """Messages that a rank sends or receives in gloo's operations, by torch's name, one after the other."""
    return {
        "all_reduce": 2 * (world - 1),
        "all_gather": world - 1,
        "all_gather_into_tensor": world - 1,
        "all_gather_single": world - 1,
        "broadcast": (world - 1).bit_length(),
        "gather": world - 1 if rank == 0 else 1,
        "isend": 1,
    }


class Counting:
    """Counts messages of all operations on small tensors and on texts, by operation, while entered."""

    def __init__(self, world: int, rank: int) -> None:
        self.counted: Counter[str] = Counter()
        self._each = {name: each for name, each in _messages(world, rank).items() if hasattr(dist, name)}
        self._real: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> "Counting":
        for name in self._each:
            self._real[name] = getattr(dist, name)
            setattr(dist, name, self._counted(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(dist, name, real)

    def pop(self) -> dict[str, int]:
        counted, self.counted = self.counted, Counter()
        return dict(counted)

    def _counted(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            (tensor, *_) = (one for one in args if isinstance(one, Tensor))
            if tensor.numel() < LARGE or tensor.dtype == torch.uint8:
                self.counted[name] += self._each[name]
            return self._real[name](*args, **kwargs)

        return call


def messages_of_a_job(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Start an agent, and train for two windows."""
    module = wrapped(buckets=1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    train(module, optimizer, rank, range(1))  # DDP says once how it divides buckets
    with Counting(world, rank) as counting:
        agent = Agent(
            module,
            optimizer,
            data_dir=folder,
            controller=None,
            policy="static:cf=8",
            window=4,
            job="counted",
            link=Link(bits_per_second=1e10),  # else it measures the network, as often as times need it
        )
        with agent:
            start = counting.pop()
            train(module, optimizer, rank, range(3))
            steps = counting.pop()
            train(module, optimizer, rank, range(3, 5))
            window = counting.pop()
    return {"start": start, "3 steps": steps, "2 steps and a window": window}


def probed(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Measure the network."""
    assert dist.group.WORLD is not None
    with Counting(world, rank) as counting:
        network = measure(Ring(ProcessGroupCommunicator(dist.group.WORLD)))
        counted = counting.pop()
    return {
        "transfers": counted["all_reduce"] // (2 * (world - 1)),
        "messages": counted["isend"],
        "network": str(network),
    }


def received(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Two gathers and two exchanges in flight, the last waited for first, and each twice, then on a thread."""
    assert dist.group.WORLD is not None
    group = ProcessGroupCommunicator(dist.group.WORLD)
    gathered, exchanged = (torch.zeros(2, 3 * world, dtype=torch.uint8) for _ in range(2))
    works = []
    for number in range(2):
        mine = torch.full((3,), 100 * number + rank, dtype=torch.uint8)
        works.append(group.gather(gathered[number], mine))
        parts = torch.tensor([100 * number + 10 * rank + to for to in range(world)], dtype=torch.uint8)
        works.append(group.exchange(exchanged[number], parts.repeat_interleave(3)))
    for work in reversed(works):
        work.wait()
        again = threading.Thread(target=work.wait, daemon=True)
        again.start()
        again.join(30)
        assert not again.is_alive()
    return {"gathered": gathered.tolist(), "exchanged": exchanged.tolist()}


def doubled(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Sums and maxima, two at a time, of which the second is waited for first."""
    assert dist.group.WORLD is not None
    group = Doubling(dist.group.WORLD)
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(100, generator=generator, dtype=torch.float64)
    total, most = x.clone(), x.clone()
    works = group.sum(total), group.maximum(most)
    works[1].wait()
    works[0].wait()
    every = [torch.empty_like(x) for _ in range(world)]
    dist.all_gather(every, x)
    numbers = agreement.by_rank(10 * rank + 1, dist.group.WORLD)
    return {
        "total": [one.hex() for one in total.tolist()],
        "off": float((total - torch.stack(every).sum(0)).abs().max()),
        "most": bool((most == torch.stack(every).amax(0)).all()),
        "numbers": numbers,
        "equal": agreement.are_equal("a text", dist.group.WORLD),
        "unequal": agreement.are_equal(f"of rank {min(rank, 1)}", dist.group.WORLD),
        "first": agreement.text_of_first(f"of rank {rank}", dist.group.WORLD),
    }
