"""Messages of every element that a device makes: any schedule gives the same, nothing is lost, and ranks agree to the
bit."""

import dataclasses
from typing import Any

import pytest
import torch

from gravac.kernels.device import rounded
from gravac_agent.streams import groups
from gravac_agent.streams.rounded import RoundedMessages, SentRounded
from tests.support.streams.compare import differences
from tests.support.streams.conserved import check_abandoned, check_agreement, check_conservation
from tests.support.streams.task import Task
from tests.support.streams.training import each_rank, on_streams

CODECS = ("bf16", "int8", "nearest:levels=7")
WAYS = ("gather", "compressed-all-reduce")
STEPS = 10
BAD = frozenset({(3, 1), (4, 0), (7, 0), (7, 1)})


def whole(codec: str = "int8", collective: str = WAYS[1], buckets: int = 6, **changes: Any) -> Task:
    return Task(codec, buckets, (4.0,) * STEPS, whole=True, collective=collective, **changes)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each bucket that was sent so."""
    numbers: list[int] = []
    send = RoundedMessages.send

    def noted(self: RoundedMessages, plan: Any, offers: Any, *given: Any) -> list[SentRounded]:
        numbers.extend(offer.channel.bucket.number for offer in offers)
        return send(self, plan, offers, *given)

    monkeypatch.setattr(RoundedMessages, "send", noted)
    return numbers


@pytest.mark.parametrize("collective", WAYS)
@pytest.mark.parametrize(
    ("codec", "changes"),
    [
        *((codec, {"bad": BAD, "rescaled": True}) for codec in CODECS),
        ("int8", {"clip": 0.05, "bad": BAD}),
        ("bf16", {"dtype": torch.bfloat16, "regrouped": True}),
        ("nearest:levels=2", {"dtype": torch.bfloat16, "clip": 0.05}),
    ],
)
def test_any_order_of_work_gives_the_same(
    codec: str, collective: str, changes: dict[str, Any], sent: list[int]
) -> None:
    task = whole(codec, collective, **changes)
    first = on_streams(task, 1)
    assert len(sent) == 2 * sum(len(task.layout(step)) for step in range(STEPS))
    check_agreement(first)
    for seed in (2, 3, None):
        assert not differences(on_streams(task, seed), first)


@pytest.mark.parametrize("collective", WAYS)
@pytest.mark.parametrize("codec", CODECS)
def test_it_sends_what_the_codec_sends(codec: str, collective: str) -> None:
    """To the bit where messages are gathered. An owner's memory adds what it adds in another order, a shard of bfloat16
    is whole blocks of 64 elements, and sums count at once what rounding the mean has lost."""
    task, exact = whole(codec, collective), collective == "gather"
    ours, other = on_streams(task, 1), on_streams(dataclasses.replace(task, whole=False), 1)
    found = differences(ours, other, 0.0 if exact else 1e-3)
    # Headers, and words that are not full, make other bytes of buckets so small.
    same = [one for one in found if (one.endswith("bytes") if exact else "step" in one or "learned" in one)]
    assert found == same


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("collective", WAYS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [frozenset(), BAD], ids=["finite", "not finite"])
def test_nothing_is_lost(codec: str, collective: str, ranks: int, bad: frozenset[tuple[int, int]]) -> None:
    """The gradients of all steps that count have moved the parameters, or wait."""
    check_conservation(whole(codec, collective, 1 if ranks == 4 else 6, bad=bad), ranks)


@pytest.mark.parametrize("collective", WAYS)
@pytest.mark.parametrize("undone", [True, False])
def test_a_backward_that_does_not_end_leaves_nothing_in_the_next_one(undone: bool, collective: str) -> None:
    """Neither sums nor half of an exchange, whether the agent undoes it or the trainer just begins again."""
    check_abandoned(whole("nearest:levels=7", collective), 3, undone)


@pytest.mark.parametrize("collective", WAYS)
def test_what_fails_before_its_message_waits(monkeypatch: pytest.MonkeyPatch, collective: str) -> None:
    """The other ranks get zeros, later collectives pair, and nothing is lost."""
    made, calls = rounded.Member, [0]

    def failing(*given: Any) -> rounded.Member:
        calls[0] += 1
        if calls[0] == 40:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return made(*given)

    monkeypatch.setattr(rounded, "Member", failing)
    check_conservation(whole("nearest:levels=7", collective))
    assert calls[0] > 40


@pytest.mark.parametrize("collective", WAYS)
def test_what_fails_while_it_is_encoded_is_lost_and_said_to_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, collective: str
) -> None:
    encode, calls = rounded.encode, [0]

    def failing(*given: Any) -> None:
        calls[0] += 1
        if calls[0] == 40:
            raise RuntimeError("the driver says no (simulated)")
        encode(*given)

    monkeypatch.setattr(rounded, "encode", failing)
    outcomes = on_streams(whole("int8", collective), 1)
    assert sum(result.tick.sums.failed for result in outcomes[0].results) == 1
    assert "could not be computed and is lost" in caplog.text
    check_agreement(outcomes)
    assert all(bool(one.isfinite().all()) for one in outcomes[0].parameters)


@pytest.mark.parametrize("collective", WAYS)
def test_a_group_gives_what_its_buckets_give_alone(monkeypatch: pytest.MonkeyPatch, collective: str) -> None:
    task = whole("nearest:levels=7", collective, bad=BAD)
    together = on_streams(task, 1)
    monkeypatch.setattr(groups, "MEMBERS", 1)
    assert not differences(on_streams(task, 1), together)


def test_the_second_collective_waits_for_the_next_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the stream would wait for the first one before it encodes what comes."""
    order: list[str] = []
    for name in ("encode", "average"):
        inner = getattr(rounded, name)

        def noted(*given: Any, name: str = name, inner: Any = inner) -> None:
            order.append(name)
            inner(*given)

        monkeypatch.setattr(rounded, name, noted)
    monkeypatch.setattr(groups, "MEMBERS", 2)
    each_rank(whole(), None, lambda one: one.step(0), ranks=1)
    assert order == ["encode", "encode", "average", "encode", "average", "average"]
