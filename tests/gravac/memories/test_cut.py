"""What was not sent of a clipped step waits as a share of its gradient, and of it alone."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from gravac.compressors import Compressor, Key, Payload
from gravac.compressors import build as codec_of
from gravac.compressors.rows import Rows
from gravac.memories import Bucket, Memory, build

BUCKETS = Bucket(0, ("a", "b"), (400, 112)), Bucket(1, ("c",), (256,))
CF = 16.0
EXACT = ["residual", "partial:beta=0.5", "residual-bf16:rounding=nearest"]


def gradients(step: int, rank: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(sum(bucket.numels), generator=draw) for bucket in BUCKETS]


def exchange(
    memory: Memory,
    step: int,
    codec: Compressor,
    rank: int = 0,
    counts: bool = True,
    dense: bool = False,
    stays: bool = False,
) -> list[tuple[Tensor, Payload | None]]:
    """A step of one rank. Returns what was sent of each bucket, and its payload."""
    found: list[tuple[Tensor, Payload | None]] = []
    for bucket, gradient in zip(BUCKETS, gradients(step, rank), strict=True):
        part = memory.open(bucket)
        part.gradient_stays, part.keeps_before = stays, not stays
        p = part.compensate(gradient, dense=dense)
        if dense:
            found.append((p.clone(), None))
            part.update(None, None)
        else:
            payload = codec.compress(p, CF, Key(0, step, bucket.number, rank), torch.float32)
            found.append((codec.decode(payload), payload))
            part.update(codec, payload)
        part.resolve(gradient, counts)
    if counts:
        memory.commit()
    else:
        memory.rollback()
    return found


def held(memory: Memory) -> list[Tensor]:
    state = memory.state_dict()
    return [
        torch.cat([state.get(name, torch.zeros(n)) for name, n in zip(one.names, one.numels, strict=True)])
        for one in BUCKETS
    ]


@pytest.mark.parametrize("codec", ["topk", "topk+twobit", "randomk"])
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("rows", [1, 4])
def test_what_was_not_sent_waits_as_a_share_of_its_gradient(name: str, codec: str, rows: int) -> None:
    """After steps of any kind before it; what is left of elements that were sent is ``rest`` times it."""
    compressor: Compressor = codec_of(codec) if rows == 1 else Rows(codec_of(codec), rows)
    twin = build(name)
    tolerance = 2.0**-7 if "bf16" in name else 1e-6
    for step in range(6):
        memory = copy.deepcopy(twin)
        for one in (memory, twin):
            before = held(one)
            sent = exchange(one, step, compressor, counts=step != 2)
        same = held(twin)
        memory.cut(0.25, 0.5 if step != 2 else 1.0, 2.0)
        if step == 2:  # it did not count
            assert all(torch.equal(a, b * 2.0) for a, b in zip(held(memory), same, strict=True))
        for mine, whole, old, gradient, (_, payload) in zip(
            held(memory), same, before, gradients(step), sent, strict=True
        ):
            if step == 2:
                break
            assert payload is not None
            out = torch.ones(len(mine), dtype=torch.bool)
            for number, row in enumerate(payload.rows if rows > 1 else (payload,)):  # type: ignore[attr-defined]
                out[row.support.long() + number * (len(mine) // rows)] = False
            want = torch.where(out, old + 0.25 * gradient, 0.5 * whole) * 2.0
            torch.testing.assert_close(mine, want, rtol=tolerance, atol=tolerance * 8)


def test_shares_multiply_and_one_changes_no_bit() -> None:
    codec = codec_of("topk")
    memory, other = build("residual"), build("residual")
    for step in range(3):
        for one in (memory, other):
            exchange(one, step, codec)
    memory.cut(1.0, 1.0, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(held(memory), held(other), strict=True))
    memory.cut(0.5, 1.0, 1.0)
    memory.cut(0.5, 1.0, 1.0)
    other.cut(0.25, 1.0, 1.0)
    for one, two in zip(held(memory), held(other), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("how", ["dense", "in place", "loaded", "rescaled", "again", "regrouped"])
def test_where_nothing_is_known_of_the_step_its_residual_is_cut_as_a_whole(how: str) -> None:
    """By ``rest``; a dense step leaves nothing to cut."""
    codec, memory = codec_of("topk"), build("residual")
    for step in range(3):
        exchange(memory, step, codec)
    if how in ("dense", "in place"):
        exchange(memory, 3, codec, dense=how == "dense", stays=how == "in place")
    elif how == "loaded":
        memory.load_state_dict(memory.state_dict())
    elif how == "rescaled":
        memory.rescale(1.5)
    elif how == "regrouped":
        memory.open(Bucket(0, ("b", "c"), (112, 256)))
    else:  # a backward that did not end
        for bucket, gradient in zip(BUCKETS, gradients(3), strict=True):
            memory.open(bucket).compensate(gradient)
        memory.rollback()
    before = memory.state_dict()
    memory.cut(0.25, 0.5, 1.0)
    after = memory.state_dict()
    assert (not before) == (how == "dense")
    for name, value in before.items():
        waits = how == "regrouped" and name == "a"  # for its bucket, so nothing of the last step is in it
        assert torch.equal(after[name], value * (1.0 if waits else 0.5)), name


@pytest.mark.parametrize("name", ["momentum", "conef", "conef-sketch", "iconef-v2"])
def test_other_memories_are_cut_after_a_spike_alone(name: str) -> None:
    codec, memory = codec_of("topk"), build(name)
    for step in range(3):
        exchange(memory, step, codec)
    before = held(memory)
    memory.cut(0.25, 1.0, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(held(memory), before, strict=True))
    memory.cut(0.25, 0.5, 1.0)
    for one, two in zip(held(memory), before, strict=True):
        torch.testing.assert_close(one, 0.5 * two)


@pytest.mark.parametrize("ranks", [1, 3])
def test_sent_residual_and_what_was_cut_away_are_what_came_in(ranks: int) -> None:
    """P10 through clipped, skipped and dense steps, several buckets, and a checkpoint on the way."""
    codec = codec_of("topk+twobit")
    memories = [build("residual") for _ in range(ranks)]
    balance = [torch.zeros(sum(bucket.numels), dtype=torch.float64) for bucket in BUCKETS]
    shares = [1.0, 0.3, 1.0, 0.7, 1.4, 0.5, 1.0, 0.05, 1.0, 0.9]
    cut_away = 0.0
    for step, share in enumerate(shares):
        counts, dense = step != 5, step == 6
        for rank, memory in enumerate(memories):
            if step == 4:
                other = build("residual")
                other.load_state_dict(memory.state_dict())
                memories[rank] = memory = other
            sent = exchange(memory, step, codec, rank, counts, dense)
            if not counts:
                memory.cut(1.0, 1.0, 1.0)
                continue
            memory.cut(share, 1.0, 1.0)
            for total, gradient, (arrived, payload) in zip(balance, gradients(step, rank), sent, strict=True):
                total += gradient.double() - arrived.double()
                if payload is not None:
                    assert payload.support is not None
                    gradient[payload.support.long()] = 0.0
                    total -= (1.0 - share) * gradient.double()
                    cut_away += float(gradient.abs().sum()) * abs(1.0 - share)
    whole: list[Any] = [sum(one) for one in zip(*map(held, memories), strict=True)]
    for total, residual in zip(balance, whole, strict=True):
        torch.testing.assert_close(residual.double(), total, rtol=0.0, atol=1e-5)
    assert cut_away > 100.0
