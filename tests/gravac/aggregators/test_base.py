"""Every aggregator, and every codec as one, among simulated ranks."""

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import chain

import pytest
import torch
from torch import Tensor

from gravac.aggregators import AGGREGATORS, Aggregator, PowerSGD, build, parse
from gravac.collectives import ALONE
from gravac.compressors import COMPRESSORS, Compressor, Key
from gravac.compressors import build as build_codec
from tests.support.maths.aggregator_checks import (
    BUCKETS,
    SELECTING,
    Step,
    gradient,
    made,
    run,
    steps,
    world,
)
from tests.support.maths.members import ways

WAYS = ways(
    *("topk", "redsync-trimmed", "topk+bf16", "topk+int8", "qsgd", "dgc"),
    *("nearest:levels=7,block=16", "int8:block=32", "bf16", "blocksign"),
)
MEMBERS = [*sorted(COMPRESSORS), *sorted(AGGREGATORS), "powersgd:rank=2", "randomk+int4", *WAYS]
MANY = [name for name in MEMBERS if name in AGGREGATORS or ":" in name or " by " in name]


def tensors_in(thing: object) -> Iterator[Tensor]:
    """All tensors in the fields of a transfer, and in those of what it refers to, but for codecs."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, list | tuple):
        for one in thing:
            yield from tensors_in(one)
    elif is_dataclass(thing) and not isinstance(thing, Compressor):
        yield from tensors_in([getattr(thing, each.name) for each in fields(thing)])


@pytest.mark.parametrize("text", MEMBERS)
def test_a_transfer_names_all_tensors_that_it_holds(text: str) -> None:
    def of_rank(aggregator: Aggregator) -> object:
        one = BUCKETS[0]
        x = gradient(aggregator.communicator.rank, 0, one)
        transfer = aggregator.open(one).prepare(x, (4.0,), Key(0, 0, 0, 0), torch.float32).send(4.0)
        transfer.work.wait()
        named, found = (
            {each.untyped_storage().data_ptr() for each in tensors}
            for tensors in (transfer.tensors(), tensors_in(transfer))
        )
        return named == found and transfer.held_bytes > 0

    assert all(world(2, text, of_rank))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("text", MEMBERS)
def test_the_mean_is_that_of_what_was_sent_and_the_same_bits_everywhere(text: str, size: int) -> None:
    ranks = run(size, text)
    conserves = made(text, ALONE).conserves
    for step in range(3):
        for number in range(len(BUCKETS)):
            here = [rank[step][number] for rank in ranks]
            assert all(torch.equal(one.mean, here[0].mean) for one in here)
            assert len({one.payload_bytes for one in here}) == 1
            expected = torch.stack([one.sent for one in here]).mean(0)
            assert bool(expected.isfinite().all())
            if conserves:
                scale = max(float(one.sent.abs().max()) for one in here)
                torch.testing.assert_close(here[0].mean, expected, rtol=1e-5, atol=1e-5 * scale + 1e-7)


@pytest.mark.parametrize("text", MEMBERS)
def test_bytes_are_those_declared(text: str) -> None:
    aggregator = made(text, ALONE)
    fixed = text in MANY or build_codec(text).traits.fixed_size
    if not fixed:
        return
    for size in (1, 2):
        declared = [aggregator.wire_bytes(one, 4.0, torch.float32, size) for one in BUCKETS]
        for rank in run(size, text, 1):
            assert [one.payload_bytes for one in rank[0]] == declared
            assert all(one.sent_bytes == 0 for one in rank[0]) or size > 1
    assert aggregator.source


@pytest.mark.parametrize("text", MEMBERS)
def test_a_rank_that_fails_sends_nothing(text: str) -> None:
    def each(aggregator: Aggregator) -> tuple[Tensor, Tensor]:
        one, rank = BUCKETS[0], aggregator.communicator.rank
        x, key = gradient(rank, 0, one), Key(3, 0, 0, rank)
        draft = (
            aggregator.open(one).blank(4.0, key, torch.float32, x.device, 0.0)
            if rank == 1
            else aggregator.open(one).prepare(x, (4.0,), key, torch.float32)
        )
        flight = draft.send(4.0)
        flight.work.wait()
        mean = torch.empty_like(x)
        flight.mean_into(mean)
        return mean, flight.codec.decode(flight.payload)

    (mean, sent), (other, nothing) = world(2, text, each)  # type: ignore[misc]
    assert torch.equal(mean, other)
    assert not nothing.any()
    if text != "majority":
        torch.testing.assert_close(mean, sent / 2, rtol=1e-5, atol=1e-5 * float(sent.abs().max()))


@pytest.mark.parametrize("kind", ["blank", "nan", "inf"])
@pytest.mark.parametrize("text", MEMBERS)
def test_one_overflow_reaches_all_ranks_and_poisons_nothing(text: str, kind: str) -> None:
    """The step is taken back everywhere; the next ones are as if it had never been."""

    def each(aggregator: Aggregator, overflow: bool) -> list[list[Step]]:
        steps(aggregator, 2, 4.0)
        if overflow:
            rank = aggregator.communicator.rank
            for one in BUCKETS:
                x, key = gradient(rank, 2, one), Key(3, 2, one.number, rank)
                if rank == 1 and kind == "blank":
                    draft = aggregator.open(one).blank(4.0, key, torch.float32, x.device, math.nan)
                else:
                    if rank == 1:
                        x[:] = math.nan if kind == "nan" else math.inf
                    draft = aggregator.open(one).prepare(x, (4.0,), key, torch.float32)
                flight = draft.send(4.0)
                flight.work.wait()
                mean = torch.zeros_like(x)
                flight.mean_into(mean)
                assert not bool(mean.isfinite().all())
                if rank == 0:  # its memory must be able to undo what it counts as sent
                    assert bool(flight.codec.decode(flight.payload).isfinite().all())
            aggregator.rollback()
        return steps(aggregator, 2, 4.0, first=3)

    clean = world(2, text, lambda aggregator: each(aggregator, False))
    after = world(2, text, lambda aggregator: each(aggregator, True))
    for one, two in zip(clean, after, strict=True):
        for a, b in zip(chain(*one), chain(*two), strict=True):  # type: ignore[misc]
            assert torch.equal(a.mean, b.mean)
            assert torch.equal(a.sent, b.sent)


@pytest.mark.parametrize(
    "text",
    [
        *("powersgd", "powersgd:rank=1", "hardthreshold-warmup", "terngrad-sum", "topk"),
        *("topk by shared:leader=largest", "topk by owners"),
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(text: str) -> None:
    def through(aggregator: Aggregator) -> list[list[Step]]:
        return steps(aggregator, 6, 4.0)

    def resumed(aggregator: Aggregator) -> list[list[Step]]:
        steps(aggregator, 3, 4.0)
        other = made(text, aggregator.communicator)
        other.load_state_dict(aggregator.state_dict())
        assert other.state_digest() == aggregator.state_digest()
        return steps(other, 3, 4.0, first=3)

    for one, two in zip(world(2, text, through), world(2, text, resumed), strict=True):
        for a, b in zip(chain(*one[3:]), chain(*two), strict=True):  # type: ignore[index, misc]
            assert torch.equal(a.mean, b.mean)


@pytest.mark.parametrize("text", [*AGGREGATORS, *SELECTING])
def test_a_shortfall_is_committed_as_the_exchange_does(text: str) -> None:
    """It asks an aggregator to commit only if a step may have brought something to be learned."""

    def each(aggregator: Aggregator) -> list[str]:
        rank, one = aggregator.communicator.rank, BUCKETS[0]
        part = aggregator.open(one)
        for step in range(2):
            x, key = gradient(rank, step, one), Key(3, step, 0, rank)
            part.prepare(x, (4.0,), key, torch.float32).send(4.0).work.wait()
            if aggregator.learns:
                aggregator.commit()
        return list(aggregator.state_dict())

    for names in world(2, text, each):
        assert "through/0/4.0" in names  # type: ignore[operator]


@pytest.mark.parametrize("text", MEMBERS)
def test_both_levels_of_an_exploring_step(text: str) -> None:
    aggregator = made(text, ALONE)
    x = gradient(0, 0, BUCKETS[0])
    draft = aggregator.open(BUCKETS[0]).prepare(x, (3.0, 12.0), Key(3, 0, 0, 0), torch.float32)
    weak, strong = draft.kept_energy(3.0), draft.kept_energy(12.0)
    whole = float(x.square().sum())
    assert 0 < strong <= whole * 1.0001
    assert weak <= whole * 1.0001
    assert strong <= weak * 1.05 or text.startswith(("countsketch", "atomo", "hardthreshold"))
    before = x.clone()
    draft.send(12.0).work.wait()
    assert torch.equal(x, before)


def test_wrong_settings_and_states_are_named() -> None:
    for text, message in (
        ("powersgd:rank=0", "powersgd: rank=0 must be at least 1"),
        ("powersgd:saving=0.5", "powersgd: saving=0.5 must be at least 1"),
        ("powersgd:ranks=2", "has no setting 'ranks' (did you mean 'rank'?); it has rank, saving"),
        ("powersgd:rank=two", "compressor='powersgd:rank=two'"),
        ("terngrad-sum:clip=0", "clip=0 must be a positive number"),
        ("zip", "compressor='zip' is unknown; choose one of atomo"),
        ("topk:k=3", "has no setting 'k'"),
    ):
        with pytest.raises(ValueError) as error:
            parse(text)
        assert message in str(error.value)
    with pytest.raises(ValueError, match="powersgd: factor of 'a' must be a 2-D float tensor"):
        PowerSGD(ALONE).load_state_dict({"a": torch.ones(3)})
    with pytest.raises(ValueError, match="majority has no state, but 'a' was given"):
        build("majority", ALONE).load_state_dict({"a": torch.ones(3)})
