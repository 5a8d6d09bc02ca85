"""The residual in one buffer: equal to the one with a draft where steps count, undone to rounding where they do not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gravac.compressors import Key, Payload, TopK, build
from gravac.memories import Bucket, Memory, ResidualMemory, convert
from gravac.memories import build as build_memory
from tests.support.maths.memory_steps import ONE, SIZES, TWO, bucket, flat, gradients, step, tensors_of

CODECS = ["topk", "topk+bf16", "int8", "randomk-unbiased", "scaledsign"]
N = sum(SIZES.values())
plans = st.lists(
    st.tuples(st.sampled_from([1.0, 2.0, 9.0, 100.0]), st.booleans(), st.booleans()), min_size=1, max_size=8
)


def in_place_step(
    memory: Memory, one: Bucket, gradient: Tensor, number: int, cf: float, codec: str, counts: bool | Tensor
) -> Tensor:
    """One step of one bucket as the agent does it; returns what was sent."""
    part, compressor = memory.open(one), build(codec)
    part.gradient_stays = True
    p = part.compensate(gradient, dense=cf == 1.0)
    if cf == 1.0:
        sent = p.clone()
        part.update(compressor, None)
        if isinstance(counts, Tensor):
            part.resolve(gradient, counts)
        return sent
    payload = compressor.compress(p, cf, Key(0, number, 0, 0), torch.float32)
    sent = compressor.decode(payload)
    part.update(compressor, payload)
    assert part.unresolved
    part.resolve(gradient, counts)
    assert not part.unresolved
    return sent


def whole_step(
    memory: Memory, layout: list[Bucket], number: int, cf: float, codec: str, counts: bool | Tensor
) -> list[Tensor]:
    sent = [
        in_place_step(memory, one, flat(one, gradients(number)), number, cf, codec, counts) for one in layout
    ]
    memory.commit() if counts else memory.rollback()  # on a device the host reads it when the next step begins
    return sent


def state(memory: Memory) -> dict[str, Tensor]:
    """The residuals; zeros where there is none."""
    return {name: torch.zeros(n) for name, n in SIZES.items()} | memory.state_dict()


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("unread", [False, True], ids=["bool", "tensor"])
@settings(deadline=None, max_examples=20)
@given(plan=plans)
def test_with_exact_sums_it_equals_the_draft_bit_for_bit(
    unread: bool, plan: list[tuple[float, bool, bool]]
) -> None:
    """Gradients of small integers, any CF and layout, steps that count and that do not."""
    drafts, memory = ResidualMemory(), ResidualMemory()
    for number, (cf, two, counts) in enumerate(plan):
        layout = TWO if two else ONE
        sent = step(drafts, layout, gradients(number), number, cf=cf, keep=counts)
        ours = whole_step(memory, layout, number, cf, "topk", torch.tensor(counts) if unread else counts)
        assert torch.equal(torch.cat([sent[name] for one in layout for name in one.names]), torch.cat(ours))
        assert equal(state(memory), state(drafts))
        assert [memory.open(one).has_residual for one in ONE] == [
            drafts.open(one).has_residual for one in ONE
        ]
    assert memory.dropped == 0


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("cf", [3.0, 50.0])
def test_what_was_sent_and_the_residual_are_what_came_in(codec: str, cf: float) -> None:
    """With steps in between that do not count: in float64, to a few roundings a step."""
    memory, came = ResidualMemory(), torch.zeros(N, dtype=torch.float64)
    largest = torch.zeros(N, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    for number in range(40):
        gradient = torch.randn(N, generator=generator) * 10.0 ** (number % 3)
        before = memory.state_dict().get("a", torch.zeros(300)).abs().max()
        sent = in_place_step(memory, ONE[0], gradient, number, cf, codec, number % 4 != 3)
        assert before.isfinite()
        largest += gradient.double().abs() + sent.double().abs()
        if number % 4 != 3:
            came += gradient.double() - sent.double()
            memory.commit()
        else:
            memory.rollback()
    residual = torch.cat([memory.state_dict()[name] for name in ONE[0].names]).double()
    assert bool(((residual - came).abs() <= 2.0**-22 * largest.clamp(min=1e-3).cumsum(0).max()).all())
    assert float((residual - came).norm() / came.norm()) < 1e-5


@pytest.mark.parametrize("codec", CODECS)
def test_an_undone_step_is_off_by_a_few_roundings(codec: str) -> None:
    generator = torch.Generator().manual_seed(2)
    memory = ResidualMemory()
    in_place_step(memory, ONE[0], torch.randn(N, generator=generator), 0, 9.0, codec, True)
    memory.commit()
    before = flat(ONE[0], memory.state_dict())
    gradient = torch.randn(N, generator=generator) * 1000.0
    sent = in_place_step(memory, ONE[0], gradient, 1, 9.0, codec, False)
    memory.rollback()
    after = flat(ONE[0], memory.state_dict())
    bound = 2.0**-23 * ((before + gradient).abs() + sent.abs())
    assert bool(((after - before).abs() <= bound).all())
    assert memory.dropped == 0


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_non_finite_gradient_leaves_no_trace(poison: float, dtype: torch.dtype, first: bool) -> None:
    memory = ResidualMemory()
    if not first:
        whole_step(memory, TWO, 0, 9.0, "topk", True)
    before = memory.state_dict()
    for one in TWO:
        gradient = flat(one, gradients(9)).to(dtype)
        gradient[0] = poison
        memory.open(one).gradient_stays = True
        memory.open(one).compensate(gradient)  # here the agent stops and sends NaN
        memory.open(one).resolve(gradient, False)
    memory.rollback()
    assert equal(memory.state_dict(), before)
    assert memory.dropped == 0


def test_it_holds_one_buffer_and_a_draft_only_while_it_needs_one() -> None:
    memory, copies = ResidualMemory(), 4 * N
    whole_step(memory, TWO, 0, 9.0, "topk", True)
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_of(memory)}
    assert sum(held.values()) == memory.nbytes() == copies
    whole_step(memory, TWO, 1, 1.0, "topk", True)
    assert memory.nbytes() == copies
    step(memory, TWO, gradients(2), 2)
    assert memory.nbytes() == 2 * copies
    whole_step(memory, TWO, 3, 9.0, "topk", True)
    assert memory.nbytes() == copies


def test_a_share_of_the_residual_needs_a_draft() -> None:
    """(1-β) e is in p; the rest would be gone from one buffer."""
    memory, drafts = build_memory("partial:beta=0.25"), build_memory("partial:beta=0.25")
    for number in range(4):
        step(memory, ONE, gradients(number), number, keep=number != 2, stays=True)
        step(drafts, ONE, gradients(number), number, keep=number != 2)
        assert not memory.open(ONE[0]).unresolved
    assert equal(memory.state_dict(), drafts.state_dict())


def test_a_step_that_counted_cannot_be_rolled_back_so_nothing_stays() -> None:
    """The trainer dropped its gradients: they must not enter the training through the memory."""
    memory = ResidualMemory()
    whole_step(memory, TWO, 0, 9.0, "topk", True)
    for one in TWO:
        in_place_step(memory, one, flat(one, gradients(1)), 1, 9.0, "topk", True)
    memory.rollback()
    assert memory.state_dict() == {}
    step(memory, TWO, gradients(2), 2)
    before = memory.state_dict()
    step(memory, TWO, gradients(3), 3, keep=False)
    assert equal(memory.state_dict(), before)


def test_dense_steps_dropped_afterwards_lose_nothing() -> None:
    memory = ResidualMemory()
    whole_step(memory, TWO, 0, 9.0, "topk", True)
    before = memory.state_dict()
    for one in TWO:
        in_place_step(memory, one, flat(one, gradients(1)), 1, 1.0, "topk", True)
    memory.rollback()
    assert equal(memory.state_dict(), before)


class FailsHalfWay(TopK):
    def remove(self, payload: Payload, x: Tensor) -> None:
        x[:5] = torch.nan
        raise RuntimeError("cannot decode")


def test_a_removal_that_fails_half_way_loses_the_residual_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory, codec = ResidualMemory(), FailsHalfWay()
    whole_step(memory, TWO, 0, 9.0, "topk", True)
    kept = memory.state_dict()
    one, other = TWO
    gradient = flat(one, gradients(1))
    payload = codec.compress(memory.open(one).compensate(gradient), 9.0, Key(0, 1, 0, 0), torch.float32)
    with pytest.raises(RuntimeError, match="cannot decode"):
        memory.open(one).update(codec, payload)
    memory.open(one).resolve(gradient, True)
    in_place_step(memory, other, torch.zeros(sum(other.numels)), 1, 1e9, "topk", False)
    memory.commit()
    assert "could not be computed and is lost" in caplog.text
    assert memory.state_dict().keys() == set(other.names)
    assert all(torch.equal(memory.state_dict()[name], kept[name]) for name in other.names)


def test_an_update_that_never_came_keeps_the_residual() -> None:
    """Something failed between the sum and the payload, and the step counts."""
    memory = ResidualMemory()
    whole_step(memory, ONE, 0, 9.0, "topk", True)
    before, gradient = memory.state_dict(), flat(ONE[0], gradients(1))
    memory.open(ONE[0]).compensate(gradient)
    memory.open(ONE[0]).resolve(gradient, True)
    memory.commit()
    assert equal(memory.state_dict(), before)


def test_a_backward_that_did_not_end_does_not_add_its_gradient_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where nobody settled its bucket, the gradient is gone, and the residual with it."""
    memory = ResidualMemory()
    whole_step(memory, ONE, 0, 9.0, "topk", True)
    memory.open(ONE[0]).compensate(flat(ONE[0], gradients(1)))
    p = memory.open(ONE[0]).compensate(flat(ONE[0], gradients(2)))
    assert torch.equal(p, flat(ONE[0], gradients(2)))
    assert "belongs to a backward that did not end" in caplog.text


def test_regrouped_after_a_backward_that_did_not_end_its_gradient_is_no_residual(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = ResidualMemory()
    whole_step(memory, ONE, 0, 9.0, "topk", True)
    memory.open(ONE[0]).compensate(flat(ONE[0], gradients(1)))
    assert not any(memory.open(one).has_residual for one in TWO)
    assert memory.state_dict() == {}
    assert "belongs to a step that was not undone" in caplog.text


def test_a_residual_moves_to_other_memories_and_scales() -> None:
    memory = ResidualMemory()
    whole_step(memory, ONE, 0, 9.0, "topk", True)
    before = memory.state_dict()
    assert equal(convert(memory, ResidualMemory()).state_dict(), before)
    memory.rescale(2.0)
    assert equal(memory.state_dict(), {name: 2.0 * one for name, one in before.items()})


def test_a_residual_that_overflows_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    memory, one = ResidualMemory(), bucket(0, "b")
    memory.load_state_dict({"b": torch.full((7,), 3e38)})
    gradient = torch.full((7,), 3e38)
    memory.open(one).gradient_stays = True
    assert memory.open(one).compensate(gradient).isinf().all()
    memory.open(one).resolve(gradient, False)
    memory.rollback()
    assert memory.dropped == 1
    assert "overflowed and is dropped" in caplog.text
    assert memory.state_dict() == {}
