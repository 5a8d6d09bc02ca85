"""The property suite of error memories. It runs over the registry: a new member inherits it by being registered."""

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gravac.compressors import Key, Payload, TopK
from gravac.compressors import build as build_codec
from gravac.memories import MEMORIES, Memory, build, convert, reshard
from gravac.memories.states import TAG, VELOCITY
from tests.support.maths.memory_steps import (
    ALL,
    ONE,
    SIZES,
    TWO,
    bucket,
    flat,
    gradients,
    inflow,
    offers,
    residuals,
    step,
    tensors_of,
)

EXACT = [text for text in ALL if MEMORIES[text.partition(":")[0]].exact]
WITH_RESIDUAL = [text for text in ALL if text != "none"]
plans = st.lists(
    st.tuples(st.sampled_from([1.0, 2.0, 9.0, 100.0]), st.booleans(), st.booleans()), min_size=1, max_size=8
)


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def momentum(memory: Memory) -> dict[str, Tensor]:
    return {key: u for key, u in memory.state_dict().items() if key.startswith(VELOCITY)}


def used(text: str, steps: int = 3) -> Memory:
    memory = build(text)
    for number in range(steps):
        step(memory, ONE, gradients(number), number)
    return memory


@pytest.mark.parametrize("text", EXACT)
@settings(deadline=None, max_examples=15)
@given(plan=plans)
def test_exact_memories_lose_nothing(text: str, plan: list[tuple[float, bool, bool]]) -> None:
    """Sent + residual = what came in."""
    memory = build(text)
    net = {name: torch.zeros(n, dtype=torch.float64) for name, n in SIZES.items()}
    for number, (cf, two, keep) in enumerate(plan):
        grads = gradients(number)
        came = inflow(memory, grads)
        sent = step(memory, TWO if two else ONE, grads, number, cf=cf, keep=keep)
        for name in SIZES if keep else ():
            net[name] += came[name].double() - sent[name].double()
    residual = residuals(memory)
    for name in SIZES:
        left = residual.get(name, torch.zeros(SIZES[name])).double()
        torch.testing.assert_close(left, net[name], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("text", ALL)
def test_what_is_forgotten_is_gone_and_the_rest_stays(text: str) -> None:
    memory = build(text)
    for number in range(3):
        step(memory, TWO, gradients(number), number)
    before, first = memory.state_dict(), TWO[0].names
    loaded = build(text)
    loaded.load_state_dict(memory.state_dict())  # belongs to no bucket yet
    for one in (memory, loaded):
        one.forget(first)
        after = one.state_dict()
        kept = {name for name in before if name.removeprefix(VELOCITY) not in first}
        assert after.keys() - {TAG} == kept - {TAG}
        assert not one.open(TWO[0]).has_residual
        step(one, TWO, gradients(7), 7)


@pytest.mark.parametrize("cf", [1.0, 9.0])
@pytest.mark.parametrize(
    "text", [text for text in WITH_RESIDUAL if not MEMORIES[text.partition(":")[0]].transforms]
)
def test_the_residual_of_unused_parameters_waits(text: str, cf: float) -> None:
    memory, twin = used(text), used(text)
    before = residuals(memory)
    for number, (unused, keep) in enumerate([("ad", True), ("c", False), ("ad", True), ("cd", True)], 3):
        grads = {name: gradient * (name not in unused) for name, gradient in gradients(number).items()}
        at_first = memory.state_dict()
        sent = step(memory, ONE, grads, number, cf=cf, unused=unused, keep=keep)
        assert not any(bool(sent[name].any()) for name in unused)
        if not keep:
            assert equal(memory.state_dict(), at_first)
            continue
        after = residuals(memory)
        for name in unused:
            rounded = (
                not memory.exact and memory.offered_share() < 1.0
            )  # the share held back is stored once more
            torch.testing.assert_close(after[name], before[name], rtol=1e-5, atol=2.0 if rounded else 1e-4)
        before = after
    step(twin, ONE, gradients(3), 3, cf=cf)
    assert not equal(residuals(twin), before)
    step(memory, ONE, gradients(9), 9, cf=1.0)
    assert not any(bool(residual.any()) for residual in residuals(memory).values()), (
        "used again, all of it is sent"
    )


@pytest.mark.parametrize("text", [text for text in ALL if MEMORIES[text.partition(":")[0]].transforms])
def test_the_momentum_of_unused_parameters_waits_with_the_residual(text: str) -> None:
    memory = used(text)
    before = residuals(memory)
    for number, cf in enumerate((9.0, 1.0, 9.0), 3):
        grads = {name: gradient * (name not in "ad") for name, gradient in gradients(number).items()}
        came = inflow(memory, grads)
        sent = step(memory, ONE, grads, number, cf=cf, unused="ad")
        after = residuals(memory)
        for name in SIZES:
            left = before.get(name, torch.zeros(SIZES[name])) + came[name] - sent[name]
            torch.testing.assert_close(
                after.get(name, torch.zeros(SIZES[name])), left.float(), rtol=1e-4, atol=1e-3
            )
        before = after


@pytest.mark.parametrize("text", ALL)
@settings(deadline=None, max_examples=10)
@given(plan=plans)
def test_a_rolled_back_step_leaves_no_trace(text: str, plan: list[tuple[float, bool, bool]]) -> None:
    memory, twin = build(text), build(text)
    for number, (cf, two, keep) in enumerate(plan):
        layout = TWO if two else ONE
        before = memory.state_dict()
        sent = step(memory, layout, gradients(number), number, cf=cf, keep=keep)
        if keep:  # the twin never sees the steps that did not count
            assert equal(step(twin, layout, gradients(number), number, cf=cf), sent)
        else:
            assert equal(memory.state_dict(), before)
    assert equal(memory.state_dict(), twin.state_dict())


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_non_finite_gradient_leaves_no_trace(text: str, poison: float) -> None:
    memory = used(text)
    before, dropped = memory.state_dict(), memory.dropped
    for one in TWO:
        gradient = flat(one, gradients(9))
        gradient[0] = poison
        assert (
            not memory.open(one).compensate(gradient).isfinite().all()
        )  # here the agent stops and sends NaN
    memory.rollback()
    assert equal(memory.state_dict(), before)
    assert memory.dropped == dropped


@pytest.mark.parametrize("text", ALL)
def test_regrouping_is_exact(text: str) -> None:
    stays, moves = used(text), used(text)
    for layout in (TWO, ONE, TWO):
        assert equal(offers(moves, layout), offers(stays, ONE))


@pytest.mark.parametrize("text", ALL)
def test_an_open_part_holds_whatever_happens_to_its_memory(text: str) -> None:
    memory = used(text)
    part, kept, huge = memory.open(ONE[0]), memory.state_dict(), torch.full((sum(SIZES.values()),), 3e38)

    def held_back() -> None:
        part.compensate(flat(ONE[0], gradients(5)))
        part.hold_back(flat(ONE[0], gradients(6)))
        memory.commit()

    def overflows() -> None:
        if text != "none":
            memory.load_state_dict({"b": torch.full((7,), 3e38)})
        part.compensate(huge)
        memory.rollback()

    for change in (
        held_back,
        lambda: memory.rescale(2.0, ("a", "b")),
        lambda: memory.forget(ONE[0].names),
        lambda: memory.load_state_dict(kept),
        lambda: memory.change_rate(0.5),
        overflows,
        lambda: memory.load_state_dict(kept),
    ):
        change()
        assert memory.open(ONE[0]) is part
        twin = build(text)
        twin.load_state_dict(memory.state_dict())
        assert part.has_residual == twin.open(ONE[0]).has_residual
        assert equal(offers(memory, ONE), offers(twin, ONE))
    offers(memory, TWO)
    assert [one.bucket for one in memory.parts] == TWO
    assert equal(offers(memory, TWO), offers(twin, ONE))


@pytest.mark.parametrize("text", ALL)
def test_state_is_plain_tensors_and_resuming_is_exact(text: str) -> None:
    memory = used(text)
    file = io.BytesIO()
    torch.save(memory.state_dict(), file)
    file.seek(0)
    other = build(text)
    other.load_state_dict(torch.load(file, weights_only=True))
    for number in range(3, 6):
        assert equal(
            step(memory, ONE, gradients(number), number), step(other, ONE, gradients(number), number)
        )
    assert equal(memory.state_dict(), other.state_dict())


@pytest.mark.parametrize("text", ALL)
def test_a_dense_step_sends_the_whole_residual(text: str) -> None:
    memory = used(text)
    zeros = {name: torch.zeros(n) for name, n in SIZES.items()}
    before = offers(memory, ONE, dense=True)
    assert equal(step(memory, ONE, zeros, 9, cf=1.0), before)
    assert not memory.open(ONE[0]).has_residual
    assert residuals(memory) == {}
    came = inflow(memory, zeros)
    for name, offered in offers(memory, ONE).items():
        torch.testing.assert_close(offered, came[name], rtol=1e-6, atol=0.0)
    if not memory.transforms:
        assert memory.state_dict() == {}


@pytest.mark.parametrize("text", WITH_RESIDUAL)
def test_dense_steps_that_hold_back_a_share_empty_the_residual(text: str) -> None:
    """Without ``dense``: the share offered is gone from the residual, in the same sense as ``dense`` would send it."""
    memory, codec = used(text), build_codec("topk")
    total, paid = offers(memory, ONE, dense=True), torch.zeros(sum(SIZES.values()))
    zeros = {name: torch.zeros(n) for name, n in SIZES.items()}
    part = memory.open(ONE[0])
    for number in range(200):
        for name, came in (
            inflow(memory, zeros).items() if number else ()
        ):  # the first is in the total already
            total[name] += came
        paid += part.compensate(torch.zeros_like(paid))
        part.update(codec, None)
        memory.commit()
    # A share held back that is rounded again at each step, as by int8 to at most 2 % of the residual.
    rounded = not memory.exact and memory.offered_share() < 1.0 and TAG not in used(text).state_dict()
    tolerance = 5.0 if rounded else 1e-2
    torch.testing.assert_close(paid, flat(ONE[0], total), rtol=1e-3, atol=tolerance)


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("factor", [0.5, 1024.0])
def test_rescaling_by_a_power_of_two_is_exact(text: str, factor: float) -> None:
    memory = used(text)
    before = offers(memory, ONE)
    memory.rescale(factor)
    assert equal(offers(memory, ONE), {name: residual * factor for name, residual in before.items()})
    memory.rescale(1 / factor, names=("a", "d"))  # one group of the optimizer alone
    after = offers(memory, ONE)
    for name in SIZES:
        assert torch.equal(after[name], before[name] * (1.0 if name in "ad" else factor))
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="must be above 0 and finite"):
            memory.rescale(wrong)


@pytest.mark.parametrize("text", ALL)
def test_bytes_are_those_really_held(text: str) -> None:
    memory = used(text)
    codec = build_codec("topk")
    for one in TWO:  # regrouped on the way
        p = memory.open(one).compensate(flat(one, gradients(4)))
        memory.open(one).update(codec, codec.compress(p, 5.0, Key(0, 4, one.number, 0), torch.float32))
    del p

    def held() -> int:
        return sum(
            {
                t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_of(memory)
            }.values()
        )

    inside = memory.nbytes()
    assert inside >= held()
    memory.commit()
    assert held() <= memory.nbytes() <= inside
    if text != "none":
        assert memory.nbytes() > 0


@pytest.mark.parametrize("text", WITH_RESIDUAL)
@pytest.mark.parametrize("huge", [3e38, torch.inf, torch.nan])
def test_an_overflown_memory_costs_one_step_and_not_the_job(
    text: str, huge: float, caplog: pytest.LogCaptureFixture
) -> None:
    memory = build(text)
    state = {name: torch.full((n,), huge) for name, n in SIZES.items()}
    memory.load_state_dict(state)
    skipped = 0
    for number in range(4):
        gradient = torch.full((sum(SIZES.values()),), 3e38)
        if memory.open(ONE[0]).compensate(gradient if number == 0 else gradient * 1e-38).isfinite().all():
            memory.open(ONE[0]).update(build_codec("topk"), None)
            memory.commit()
        else:
            skipped += 1
            memory.rollback()
    assert skipped <= 1
    assert memory.dropped == skipped
    assert ("overflowed and is dropped" in caplog.text) == bool(skipped)
    assert all(residual.isfinite().all() for residual in offers(memory, ONE).values())


@pytest.mark.parametrize("text", ALL)
def test_an_update_without_compensate_changes_nothing(text: str) -> None:
    """The agent sends nothing and calls ``update`` when encoding failed, perhaps before anything was compensated."""
    memory, codec = used(text), build_codec("topk")
    before = memory.state_dict()
    blank = codec.blank(sum(SIZES.values()), 5.0, Key(0, 0, 0, 0), torch.float32, torch.device("cpu"), 0.0)
    memory.open(ONE[0]).update(codec, blank)
    memory.commit()
    assert equal(memory.state_dict(), before)


class Undecodable(TopK):
    """Fails where a payload is taken off what was offered."""

    def remove(self, payload: Payload, x: Tensor) -> None:
        x.fill_(torch.nan)
        raise RuntimeError("cannot decode")


@pytest.mark.parametrize("text", WITH_RESIDUAL)
def test_a_failing_update_keeps_the_residual(text: str) -> None:
    memory, codec = used(text), Undecodable()
    before, gradient = memory.state_dict(), flat(ONE[0], gradients(9))
    payload = codec.compress(memory.open(ONE[0]).compensate(gradient), 5.0, Key(0, 9, 0, 0), torch.float32)
    with pytest.raises(RuntimeError, match="cannot decode"):
        memory.open(ONE[0]).update(codec, payload)
    memory.open(ONE[0]).update(codec, payload)  # as the agent does, with nothing sent
    memory.commit()
    assert equal(memory.state_dict(), before)


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_gradients_of_any_dtype(text: str, dtype: torch.dtype) -> None:
    memory, codec, one = build(text), build_codec("topk"), bucket(0, "c", "d")
    for number in range(3):
        gradient = flat(one, gradients(number)).to(dtype)
        p = memory.open(one).compensate(gradient)
        payload = codec.compress(p, 5.0, Key(0, number, 0, 0), torch.bfloat16)
        memory.open(one).update(codec, payload)
        memory.commit()
    assert all(
        residual.dtype == torch.float32 for name, residual in memory.state_dict().items() if "::" not in name
    )


@pytest.mark.parametrize("text", WITH_RESIDUAL)
def test_another_world_size_conserves_the_mean(text: str) -> None:
    ranks = [build(text) for _ in range(3)]
    for rank, memory in enumerate(ranks):
        for number in range(3):
            step(memory, ONE, gradients(100 * rank + number), number)
    new = build(text)
    new.load_state_dict(reshard([memory.state_dict() for memory in ranks]))
    mean = {
        name: sum((offers(memory, ONE, dense=True)[name].double() for memory in ranks), torch.zeros(n)) / 3
        for name, n in SIZES.items()
    }
    for name, residual in offers(new, TWO, dense=True).items():
        torch.testing.assert_close(residual.double(), mean[name], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("new", WITH_RESIDUAL)
@pytest.mark.parametrize("old", WITH_RESIDUAL)
def test_another_memory_takes_over_the_residual(old: str, new: str) -> None:
    before = used(old)
    after = convert(before, build(new))
    if (
        TAG in after.state_dict()
    ):  # then the residual is stored as its sketch; dense back again must find the same sketch
        again = convert(convert(after, build("residual")), build(new))
        torch.testing.assert_close(
            flat(ONE[0], offers(again, ONE)), flat(ONE[0], offers(after, ONE)), rtol=1e-5, atol=1e-3
        )
        return
    assert equal(residuals(after), residuals(before))
    moves = momentum(used(new)) and momentum(before)  # which is no residual
    assert equal(momentum(after), momentum(before) if moves else {})
    if not before.transforms:
        assert equal(offers(after, ONE, dense=True), offers(before, ONE, dense=True))


def test_no_memory_refuses_a_residual() -> None:
    with pytest.raises(ValueError, match="memory='none' cannot hold the residual"):
        convert(used("conef-sketch"), build("none"))
    convert(build("residual"), build("none"))


@pytest.mark.parametrize("text", ALL)
def test_what_is_held_back_is_in_the_residual(text: str) -> None:
    """If the step counts, and only then; on top of what the step itself leaves; and it goes out with a dense step."""
    plain, holding, rolled = used(text), used(text), used(text)
    excess = flat(ONE[0], gradients(77))
    for memory, keep in ((plain, True), (holding, True), (rolled, False)):
        grads = flat(ONE[0], gradients(3))
        p = memory.open(ONE[0]).compensate(grads)
        payload = build_codec("topk").compress(p, 5.0, Key(0, 3, 0, 0), torch.float32)
        memory.open(ONE[0]).update(build_codec("topk"), payload)
        if memory is not plain:
            memory.open(ONE[0]).hold_back(excess)
            excess_kept = excess.clone()
        memory.commit() if keep else memory.rollback()
    assert torch.equal(excess, excess_kept)
    assert equal(rolled.state_dict(), used(text).state_dict())
    if text == "none":
        return
    before, after = residuals(plain), residuals(holding)
    if TAG not in holding.state_dict():  # a sketch errs
        for name, piece in zip(ONE[0].names, torch.split(excess, list(ONE[0].numels)), strict=True):
            torch.testing.assert_close(after[name], before[name] + piece, rtol=1e-5, atol=1e-3)
    assert not equal(before, after)
    step(holding, ONE, gradients(4), 4, cf=1.0)
    assert not any(float(value.abs().max()) > 1e-3 for value in residuals(holding).values()), "all went out"
