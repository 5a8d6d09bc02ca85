"""What fails on one rank between encoding and its collective: no later collective meets a wrong one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gravac.collectives import Communicator
from gravac.collectives.gather import Gather
from tests.support.streams.compare import Outcome
from tests.support.streams.task import Task
from tests.support.streams.training import on_host, on_streams

Train = Callable[[Task, int], list[Outcome]]
WAYS: list[Any] = [
    pytest.param(on_host, id="host"),
    pytest.param(lambda task, ranks: on_streams(task, 1, ranks), id="device"),
]
TASK = Task("topk", 6, (10.0,) * 6)


@pytest.mark.parametrize("train", WAYS)
def test_a_bucket_that_cannot_be_sent_costs_one_rank_one_step(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = Gather.exchange

    def fails(self: Gather, layout: Any, payload: Any, x: Any, key: Any) -> Any:
        if (key.rank, key.step, key.bucket) == (1, 2, 1) and x is not None:
            raise torch.OutOfMemoryError("out of memory")
        return exchange(self, layout, payload, x, key)

    usual = train(TASK, 2)
    monkeypatch.setattr(Gather, "exchange", fails)
    found = train(TASK, 2)
    for one, other in zip(found[0].parameters, found[1].parameters, strict=True):
        assert torch.equal(one, other)
    assert [result.tick.sums.failed for result in found[0].results] == [0, 0, 1, 0, 0, 0]
    assert not all(map(torch.equal, found[0].parameters, usual[0].parameters)), "its part came later"


@pytest.mark.parametrize("train", WAYS)
def test_nothing_follows_a_collective_that_broke(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the other buckets, and not the tick."""
    exchange, ends = Gather.exchange, list[tuple[Communicator, int]]()

    def breaks(self: Gather, layout: Any, payload: Any, x: Any, key: Any) -> Any:
        found = exchange(self, layout, payload, x, key)
        if (key.step, key.bucket) == (2, 1):
            ends.append((self.communicator, self.communicator.issued))
            raise RuntimeError("the other end is lost")
        return found

    monkeypatch.setattr(Gather, "exchange", breaks)
    with pytest.raises(Exception, match="the other end is lost"):
        train(TASK, 1)
    ((communicator, issued),) = ends
    assert communicator.issued == issued
