"""Messages to owners that a device makes: any schedule gives the same, nothing is lost, and ranks agree to the bit."""

import dataclasses
from typing import Any

import pytest
import torch

from gravac.kernels.device import owned
from gravac.kernels.device.tiled import TiledStep
from gravac_agent.streams import groups
from gravac_agent.streams.messages import Messages, SentMessage, SentShards
from tests.support.streams.compare import Outcome, differences
from tests.support.streams.conserved import check_abandoned, check_agreement, check_conservation
from tests.support.streams.task import Task
from tests.support.streams.training import OnStreams, each_rank, on_streams

CODECS = ("topk", "topk+bf16", "topk+twobit")
STEPS = 12
BAD = frozenset({(3, 1), (4, 0), (7, 0), (7, 1)})


def whole(codec: str = "topk+twobit", buckets: int = 6, **changes: Any) -> Task:
    return Task(codec, buckets, (4.0,) * STEPS, whole=True, collective="owners", **changes)


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The buckets of each group that was sent so. Tiles are small enough for these."""
    numbers: list[int] = []
    send = Messages.send

    def noted(self: Messages, plan: Any, offers: Any, *given: Any) -> list[SentMessage]:
        found = send(self, plan, offers, *given)
        assert all(isinstance(one.group, SentShards) for one in found)
        numbers.append(len(offers))
        return found

    monkeypatch.setattr(Messages, "send", noted)
    monkeypatch.setattr(owned, "TILES", (2,))
    monkeypatch.setattr(owned, "ROWS", 1)
    return numbers


@pytest.mark.parametrize(
    ("codec", "changes"),
    [
        *((codec, {"bad": BAD, "rescaled": True}) for codec in CODECS),
        ("topk+twobit", {"clip": 0.05, "bad": BAD}),
        ("topk+bf16", {"dtype": torch.bfloat16, "regrouped": True}),
    ],
)
def test_any_order_of_work_gives_the_same(codec: str, changes: dict[str, Any], sent: list[int]) -> None:
    task = whole(codec, **changes)
    first = on_streams(task, 1)
    assert sum(sent) == 2 * sum(len(task.layout(step)) for step in range(STEPS))
    check_agreement(first)
    for seed in (2, 3, None):
        assert not differences(on_streams(task, seed), first)


@pytest.mark.parametrize(("ranks", "buckets"), [(2, 6), (2, 1), (3, 1), (8, 1)])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [frozenset(), BAD], ids=["finite", "not finite"])
def test_nothing_is_lost(
    codec: str, ranks: int, buckets: int, bad: frozenset[tuple[int, int]], sent: list[int]
) -> None:
    """The gradients of all steps that count have moved the parameters, or wait: at an owner as a sum."""
    check_conservation(whole(codec, buckets, bad=bad), ranks, 2e-4)
    assert sum(sent) == ranks * buckets * STEPS


@pytest.mark.parametrize("codec", CODECS)
def test_it_sends_about_what_other_owners_send(codec: str, sent: list[int]) -> None:
    """A rank's own shard enters whole, and the largest of the others and of the sums are found by a level."""
    task = whole(codec, buckets=1)
    ours = on_streams(task, 1, ranks=4)[0]
    assert sent
    other = on_streams(dataclasses.replace(task, whole=False), 1, ranks=4)[0]

    def kept(outcome: Outcome, name: str) -> float:
        sums = [result.tick.sums for result in outcome.results[3:]]
        return sum(getattr(one, name) for one in sums) / sum(one.compensated_sq for one in sums)

    for name in ("sent_sq", "residual_sq"):
        assert kept(ours, name) == pytest.approx(kept(other, name), rel=0.1)


def test_half_of_what_waits_arrives_where_an_owner_sent() -> None:
    task = whole("topk", buckets=1)

    def life(one: OnStreams) -> None:
        one.channels.counts_senders = True
        for step in range(3):
            one.step(step)
        one.take_in()
        one.device.synchronize(one.device.main)
        (mean,) = one.buffers
        channel = one.channels.begin(task.layout(2)[0], task.plan(2))
        assert channel.senders is not None
        assert channel.of == 2
        assert torch.equal(channel.senders, (mean != 0).to(torch.uint8))
        assert 40 < int(channel.senders.sum()) < 120

    each_rank(task, 1, life)


@pytest.mark.parametrize("begun", [3, 5], ids=["a group waits", "a group was sent"])
@pytest.mark.parametrize("undone", [True, False])
def test_a_backward_that_does_not_end_leaves_nothing_in_the_next_one(undone: bool, begun: int) -> None:
    """Neither sums nor half of an exchange, whether the agent undoes it or the trainer just begins again."""
    check_abandoned(whole("topk+bf16"), begun, undone)


@pytest.mark.parametrize("added", [False, True], ids=["half way", "added up"])
def test_a_step_is_undone_wherever_it_stands(added: bool) -> None:
    """By what a rank has of it alone."""
    generator = torch.Generator().manual_seed(1)
    layout = owned.OwnedLayout(500, 20, "twobit", 3, 7, 16)
    ranks = [
        owned.OwnedGroup([owned.OwnedBuffers(layout, rank, torch.device("cpu"))], 3) for rank in range(3)
    ]
    gradients, before = torch.randn(2, 3, 500, generator=generator)
    steps = []
    for group, gradient, residual in zip(ranks, gradients, before, strict=True):
        rest = residual.clone()
        row = torch.zeros(6, dtype=torch.float64)
        steps.append(TiledStep(group.members[0], gradient, gradient.clone(), rest, rest, row, undone=rest))
        owned.first_level(group.members[0], gradient, residual)
        owned.encode(group, steps[-1:])
    for rank, (group, step) in enumerate(zip(ranks, steps, strict=True)):
        group.arrived.copy_(torch.stack([each.message[rank] for each in ranks]))
        if added:
            owned.add_up(group, [step])
    for step, residual in zip(steps, before, strict=True):
        places = _owned(step).sent_places().unique()
        changed = (step.rest != step.gradient + residual).nonzero().flatten()
        assert torch.isin(changed, places).all(), "clipping has to know where"
        assert 500 // 3 < places.numel() < 250
        level = step.buffers.level.view(-1, 2)[:, 0].clone()
        assert (step.rest - residual).abs().max() > 1.0
        owned.undo(step, added)
        assert torch.allclose(step.rest, residual, atol=1e-5)
        assert torch.equal(step.buffers.level.view(-1, 2), level.unsqueeze(1).expand(-1, 2))


def _owned(step: TiledStep) -> owned.OwnedBuffers:
    assert isinstance(step.buffers, owned.OwnedBuffers)
    return step.buffers


def test_what_fails_before_its_message_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners get a message that sends nothing, later collectives pair, and nothing is lost."""
    broken: list[object] = []
    first_level = owned.first_level

    def failing(buffers: Any, *given: Any) -> None:
        if not broken:
            broken.append(buffers)
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        first_level(buffers, *given)

    monkeypatch.setattr(owned, "first_level", failing)
    check_conservation(whole("topk+bf16"), tolerance=2e-4)
    assert broken


def test_what_fails_while_it_is_encoded_is_lost_and_said_to_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encode, calls = owned.encode, [0]

    def failing(*given: Any) -> None:
        calls[0] += 1
        if calls[0] == 30:
            raise RuntimeError("the driver says no (simulated)")
        encode(*given)

    monkeypatch.setattr(owned, "encode", failing)
    outcomes = on_streams(whole("topk+bf16"), 1)
    assert sum(result.tick.sums.failed for result in outcomes[0].results) == 1
    assert "could not be computed and is lost" in caplog.text
    check_agreement(outcomes)
    assert all(bool(one.isfinite().all()) for one in outcomes[0].parameters)


def test_a_group_gives_what_its_buckets_give_alone(monkeypatch: pytest.MonkeyPatch, sent: list[int]) -> None:
    task = whole(bad=BAD)
    together = on_streams(task, 1)
    assert set(sent) == {4, 2}
    monkeypatch.setattr(groups, "MEMBERS", 1)
    assert not differences(on_streams(task, 1), together)


def test_the_second_collective_waits_for_the_next_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the stream would wait for the first one before it encodes what comes."""
    order: list[str] = []
    for name in ("encode", "add_up"):
        inner = getattr(owned, name)

        def noted(*given: Any, name: str = name, inner: Any = inner) -> None:
            order.append(name)
            inner(*given)

        monkeypatch.setattr(owned, name, noted)
    monkeypatch.setattr(groups, "MEMBERS", 2)
    each_rank(whole(), None, lambda one: one.step(0))
    assert [order.count(name) for name in ("encode", "add_up")] == [6, 6]
    assert order[:4:2] == ["encode", "encode"]


@pytest.mark.parametrize(("elements", "tile"), [(1 << 17, 512), (1 << 20, 4096), ((1 << 17) - 1, None)])
def test_small_gradients_have_small_tiles_or_go_otherwise(
    elements: int, tile: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert owned.tile_of(elements, 64) == tile
