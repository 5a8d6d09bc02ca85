"""Whole messages of a device: any schedule gives the same, nothing is lost, and ranks agree to the bit."""

import dataclasses
from typing import Any

import pytest
import torch

from gravac.kernels.device import tiled
from gravac_agent.streams import groups, messages
from tests.support.streams.compare import Outcome, differences
from tests.support.streams.conserved import check_abandoned, check_conservation
from tests.support.streams.task import Task
from tests.support.streams.training import on_host, on_streams

CODECS = ("topk", "topk+bf16", "topk+twobit")
STEPS = 12
BAD = frozenset({(3, 1), (4, 0), (7, 0), (7, 1)})
TOLERANCE = 2e-4


def whole(codec: str = "topk+twobit", buckets: int = 6, **changes: Any) -> Task:
    return Task(codec, buckets, (4.0,) * STEPS, whole=True, **changes)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the buckets that were sent."""
    numbers: list[int] = []
    send = messages.Messages.send

    def noted(self: messages.Messages, plan: Any, offers: Any, *given: Any) -> list[messages.SentMessage]:
        numbers.extend(offer.channel.bucket.number for offer in offers)
        return send(self, plan, offers, *given)

    monkeypatch.setattr(messages.Messages, "send", noted)
    return numbers


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bad": BAD},
        {"clip": 0.05},
        {"clip": 0.05, "bad": BAD},
        {"dtype": torch.bfloat16},
        {"regrouped": True},
        {"rescaled": True},
    ],
    ids=["plain", "not finite", "clipped", "clipped, not finite", "bfloat16", "regrouped", "rescaled"],
)
def test_any_order_of_work_gives_the_same(codec: str, changes: dict[str, Any], sent: list[int]) -> None:
    task = whole(codec, **changes)
    first = on_streams(task, 1)
    assert len(sent) == 2 * sum(len(task.layout(step)) for step in range(STEPS))
    for one, other in zip(first[0].parameters, first[1].parameters, strict=True):
        assert torch.equal(one, other)
    for seed in (2, 3, None):
        assert not differences(on_streams(task, seed), first)


@pytest.mark.parametrize("buckets", [1, 6])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [frozenset(), BAD], ids=["finite", "not finite"])
def test_nothing_is_lost(codec: str, buckets: int, bad: frozenset[tuple[int, int]]) -> None:
    """The gradients of all steps that count have moved the parameters, or wait."""
    check_conservation(whole(codec, buckets, bad=bad), tolerance=TOLERANCE)


@pytest.mark.parametrize("codec", CODECS)
def test_it_keeps_as_much_as_the_largest_elements(codec: str) -> None:
    """The level follows from step to step: some slots stay empty, and what exceeds them waits."""
    task = whole(codec, buckets=1)
    ours, exact = on_streams(task, 1)[0], on_host(dataclasses.replace(task, whole=False))[0]

    def kept(outcome: Outcome) -> float:
        sums = [result.tick.sums for result in outcome.results]
        return sum(one.candidate_sq for one in sums) / sum(one.compensated_sq for one in sums)

    assert 0.97 * kept(exact) < kept(ours) <= 1.01 * kept(exact)


@pytest.mark.parametrize(
    "changes", [{}, {"bad": BAD}, {"regrouped": True}], ids=["plain", "not finite", "regrouped"]
)
def test_a_group_gives_what_its_buckets_give_alone(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = on_streams(whole(**changes), 1)
    monkeypatch.setattr(groups, "MEMBERS", 1)
    assert not differences(on_streams(whole(**changes), 1), together)


def test_large_buckets_do_not_wait_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group ends where it has enough bytes."""
    sizes: list[int] = []
    send = messages.Messages.send

    def noted(self: messages.Messages, plan: Any, offers: Any, *given: Any) -> list[messages.SentMessage]:
        sizes.append(len(offers))
        return send(self, plan, offers, *given)

    monkeypatch.setattr(messages.Messages, "send", noted)
    monkeypatch.setattr(groups, "GROUP_BYTES", 1)
    on_streams(whole(), 1)
    assert set(sizes) == {1}


@pytest.mark.parametrize("memory", ["residual-bf16", "conef", "none"])
def test_other_memories_send_otherwise(memory: str, sent: list[int]) -> None:
    task = whole("topk+bf16", memory=memory)
    assert not differences(on_streams(task, 1), on_streams(dataclasses.replace(task, whole=False), 1))
    assert not sent


@pytest.mark.parametrize("begun", [3, 5], ids=["a group waits", "a group was sent"])
@pytest.mark.parametrize("undone", [True, False])
def test_a_backward_that_does_not_end_leaves_nothing_in_the_next_one(undone: bool, begun: int) -> None:
    """Neither sums nor slots, whether the agent undoes it or the trainer just begins again."""
    check_abandoned(whole("topk+bf16"), begun, undone)


def test_what_fails_before_its_message_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranks get a message that sends nothing, later collectives pair, and nothing is lost."""
    broken: list[tiled.TiledBuffers] = []
    first_level = tiled.first_level

    def failing(buffers: tiled.TiledBuffers, *given: Any) -> None:
        if not broken:
            broken.append(buffers)
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        first_level(buffers, *given)

    monkeypatch.setattr(tiled, "first_level", failing)
    check_conservation(whole("topk+bf16"), tolerance=TOLERANCE)
    assert broken


def test_what_fails_while_it_is_encoded_is_lost_and_said_to_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encode, calls = tiled.encode, [0]

    def failing(*given: Any) -> None:
        calls[0] += 1
        if calls[0] == 40:
            raise RuntimeError("the driver says no (simulated)")
        encode(*given)

    monkeypatch.setattr(tiled, "encode", failing)
    outcomes = on_streams(whole("topk+bf16"), 1)
    assert sum(result.tick.sums.failed for result in outcomes[0].results) == 1
    assert "could not be computed and is lost" in caplog.text
    for one, other in zip(outcomes[0].parameters, outcomes[1].parameters, strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all()
