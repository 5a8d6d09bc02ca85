"""The residual in bfloat16: half a copy, unbiased where it is rounded at random, and exact in undoing a step."""

import pytest
import torch
from torch import Tensor

from gravac.compressors import Key, build
from gravac.kernels import round_bfloat16
from gravac.memories import Memory, NarrowMemory
from tests.support.maths.memory_steps import ONE, SIZES, bucket, flat, tensors_of

N = sum(SIZES.values())


def run(
    memory: Memory, gradient: Tensor, number: int, stays: bool, counts: bool | Tensor, cf: float = 9.0
) -> Tensor:
    """One step of the only bucket; returns what was sent."""
    part, codec = memory.open(ONE[0]), build("topk+bf16")
    part.gradient_stays = stays
    p = part.compensate(gradient, dense=cf == 1.0)
    payload = codec.compress(p, cf, Key(5, number, 0, 1), torch.float32) if cf > 1.0 else None
    sent = p.clone() if payload is None else codec.decode(payload)
    part.update(codec, payload)
    if payload is not None:
        assert part.unresolved == stays
        if stays:
            part.resolve(gradient, counts)
    memory.commit() if counts is True or isinstance(counts, Tensor) else memory.rollback()
    return sent


def state(memory: Memory) -> Tensor:
    found = {name: torch.zeros(n) for name, n in SIZES.items()} | memory.state_dict()
    return flat(ONE[0], found)


@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_in_place_it_has_the_bits_of_the_draft(rounding: str, unread: bool) -> None:
    """Steps that count, and steps that do not: those change not one bit of float32 gradients either."""
    drafts, memory = NarrowMemory(rounding=rounding), NarrowMemory(rounding=rounding)
    generator = torch.Generator().manual_seed(0)
    for number in range(12):
        gradient = torch.randn(N, generator=generator) * 10.0 ** (number % 4)
        counts, cf = number % 3 != 2, 1.0 if number in (5, 6) else 9.0
        before = state(memory)
        theirs = run(drafts, gradient, number, False, counts, cf)
        ours = run(
            memory, gradient, number, True, torch.tensor(counts) if unread and cf > 1.0 else counts, cf
        )
        assert torch.equal(theirs, ours)
        assert torch.equal(state(memory), state(drafts))
        if not counts:
            assert torch.equal(state(memory), before)


def test_it_holds_half_a_copy() -> None:
    memory, generator = NarrowMemory(), torch.Generator().manual_seed(0)
    for number in range(3):
        run(memory, torch.randn(N, generator=generator), number, True, True)
        held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_of(memory)}
        assert sum(held.values()) == memory.nbytes() == 2 * N
    run(memory, torch.randn(N, generator=generator), 3, False, True)
    assert memory.nbytes() == 4 * N


def test_a_step_that_counted_cannot_be_rolled_back_so_nothing_stays() -> None:
    memory, generator = NarrowMemory(), torch.Generator().manual_seed(0)
    run(memory, torch.randn(N, generator=generator), 0, True, True)
    codec, gradient = build("topk"), torch.randn(N, generator=generator)
    payload = codec.compress(memory.open(ONE[0]).compensate(gradient), 9.0, Key(0, 1, 0, 0), torch.float32)
    memory.open(ONE[0]).update(codec, payload)
    memory.open(ONE[0]).resolve(gradient, True)
    memory.rollback()
    assert memory.state_dict() == {}


def test_rounding_at_random_is_unbiased_and_hits_a_neighbor() -> None:
    x = torch.tensor([1.0 + 2.0**-9, -3.0 - 2.0**-10, 1e-40, 0.0, -0.0, 5.0, 3.3e38, torch.inf, torch.nan])
    mean, out = torch.zeros(x.numel(), dtype=torch.float64), torch.empty(x.numel(), dtype=torch.bfloat16)
    draws = 4000
    for seed in range(draws):
        round_bfloat16(x, out, seed)
        nearest = x.bfloat16().float()
        assert ((out.float() - x).abs() <= 2.0**-7 * x.abs() + 1e-40)[:7].all()
        mean += torch.where(x.isfinite(), out.double(), 0.0) / draws
    assert (mean[:2] - x[:2].double()).abs().max() < 5 * 2.0**-7 / draws**0.5
    assert (nearest[:2] - x[:2]).abs().max() > 2.0**-11, "the nearest is always off"
    assert torch.equal(out[3:6].float(), x[3:6])
    assert out[7].isinf()
    assert out[8].isnan()


def test_small_gradients_are_not_lost_beside_a_large_residual() -> None:
    """The nearest neighbor of 1 + 2^-10 is 1, step after step."""
    one = bucket(0, "c")
    left = {}
    for rounding in ("stochastic", "nearest"):
        memory, codec = NarrowMemory(rounding=rounding), build("topk")
        memory.load_state_dict({"c": torch.ones(512)})
        gradient = torch.full((512,), 2.0**-10)
        gradient[0] = 100.0  # is sent
        for number in range(256):
            p = memory.open(one).compensate(gradient)
            memory.open(one).update(codec, codec.compress(p, 512.0, Key(0, number, 0, 0), torch.float32))
            memory.commit()
        left[rounding] = float(memory.state_dict()["c"][1:].mean())
    assert left["stochastic"] == pytest.approx(1.25, abs=0.02)
    assert left["nearest"] == pytest.approx(1.0, abs=0.005)
