"""Error memories: transactions, regrouping of buckets, state, resharding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.compressors import Key, build
from gravac.memories import MEMORIES, Bucket, ResidualMemory
from gravac.memories import build as build_memory

SIZES = {"a": 30, "b": 7, "c": 120, "d": 1}
KEY = Key(0, 0, 0, 0)


def bucket(number: int, *names: str) -> Bucket:
    return Bucket(number, names, tuple(SIZES[name] for name in names))


ONE = [bucket(0, "d", "c", "b", "a")]
TWO = [bucket(0, "c"), bucket(1, "a", "d", "b")]


def step(
    memory: ResidualMemory, layout: list[Bucket], grads: dict[str, torch.Tensor], cf: float, keep: bool = True
) -> dict[str, torch.Tensor]:
    """One step through ``layout``; returns what was sent, per parameter."""
    codec, sent = build("topk"), {}
    for one in layout:
        gradient = torch.cat([grads[name] for name in one.names])
        before = gradient.clone()
        compensated = memory.open(one).compensate(gradient).clone()
        assert torch.equal(gradient, before)
        payload = codec.compress(compensated, cf, KEY, torch.float32) if cf > 1 else None
        memory.open(one).update(codec, payload)
        out = torch.zeros_like(gradient)
        if payload is None:
            out.copy_(compensated)
        else:
            codec.decompress(payload, out)
        sent |= dict(zip(one.names, torch.split(out, list(one.numels)), strict=True))
    memory.commit() if keep else memory.rollback()
    return sent


def gradients(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    # Small integers: sums are exact in float32, so conservation can be tested with ==.
    return {name: torch.randint(-50, 50, (n,), generator=generator).float() for name, n in SIZES.items()}


@settings(deadline=None, max_examples=50)
@given(
    plan=st.lists(
        st.tuples(st.sampled_from([1.0, 2.0, 9.0, 100.0]), st.booleans(), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_nothing_is_lost_whatever_the_cf_the_buckets_and_the_skipped_steps(
    plan: list[tuple[float, bool, bool]],
) -> None:
    memory = ResidualMemory()
    came = {name: torch.zeros(n) for name, n in SIZES.items()}
    went = {name: torch.zeros(n) for name, n in SIZES.items()}
    for number, (cf, two, keep) in enumerate(plan):
        before = memory.state_dict()
        grads = gradients(number)
        sent = step(memory, TWO if two else ONE, grads, cf, keep)
        if keep:
            for name in SIZES:
                came[name] += grads[name]
                went[name] += sent[name]
        else:
            after = memory.state_dict()
            assert {n for n, t in after.items() if t.any()} == {n for n, t in before.items() if t.any()}
            assert all(torch.equal(after[n], before[n]) for n in after if n in before)
    residual = memory.state_dict()
    for name in SIZES:
        assert torch.equal(went[name] + residual.get(name, torch.zeros(SIZES[name])), came[name])


def test_a_dense_step_sends_the_residual_and_leaves_none() -> None:
    memory = ResidualMemory()
    first = step(memory, ONE, gradients(1), 100.0)
    assert memory.open(ONE[0]).has_residual
    second = step(memory, ONE, {name: torch.zeros(n) for name, n in SIZES.items()}, 1.0)
    assert not memory.open(ONE[0]).has_residual
    for name in SIZES:
        assert torch.equal(first[name] + second[name], gradients(1)[name])
    assert memory.state_dict() == {}


def test_state_moves_to_other_buckets_and_back() -> None:
    memory = ResidualMemory()
    step(memory, ONE, gradients(1), 50.0)
    state = memory.state_dict()
    other = ResidualMemory()
    other.load_state_dict(state)
    assert other.open(TWO[0]).has_residual
    zeros = {name: torch.zeros(n) for name, n in SIZES.items()}
    sent = step(other, TWO, zeros, 1.0)
    for name in SIZES:
        assert torch.equal(sent[name], state[name])
    assert other.nbytes() == 2 * 4 * sum(SIZES.values())


def test_rescale_multiplies_the_residual() -> None:
    memory = ResidualMemory()
    step(memory, ONE, gradients(3), 50.0)
    before = memory.state_dict()
    memory.rescale(0.5)
    assert all(torch.equal(memory.state_dict()[name], before[name] * 0.5) for name in before)


@pytest.mark.parametrize("wrong", [torch.ones(2, 2), torch.ones(3, dtype=torch.int64), "text"])
def test_wrong_state_is_named(wrong: object) -> None:
    with pytest.raises(ValueError, match="residual of 'a' must be a 1-D float tensor"):
        ResidualMemory().load_state_dict({"a": wrong})  # type: ignore[dict-item]


def test_state_of_another_model_is_named() -> None:
    memory = ResidualMemory()
    memory.load_state_dict({"a": torch.ones(3)})
    with pytest.raises(ValueError, match="residual of 'a' has 3 elements, its gradient 30"):
        step(memory, ONE, gradients(0), 10.0)


def test_no_memory_loses_what_is_not_sent() -> None:
    memory, codec = build_memory("none"), build("topk")
    gradient = torch.randn(30)
    assert memory.open(bucket(0, "a")).compensate(gradient) is gradient
    memory.open(bucket(0, "a")).update(codec, codec.compress(gradient, 10.0, KEY, torch.float32))
    memory.commit()
    assert not memory.open(bucket(0, "a")).has_residual
    assert memory.nbytes() == 0
    with pytest.raises(ValueError, match="memory='none' cannot hold"):
        memory.load_state_dict({"a": gradient})


def test_registry() -> None:
    assert {"none", "residual", "partial", "conef", "conef-sketch", "iconef-v1", "iconef-v2"} <= set(MEMORIES)
    with pytest.raises(ValueError, match="memory='ef' is unknown; choose one of conef, "):
        build_memory("ef")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("conef:bits=3", r"memory='conef', setting bits: must be 4 or 8 \(got 3\)"),
        ("conef:codec=topk", "setting codec: 'topk' is biased"),
        ("conef:codec=tpok", "setting codec: compressor='tpok' is unknown"),
        ("conef:bits=many", r"memory='conef', setting bits: .*'many'.*Meaning: Bits an element"),
        ("conef:size=0.1", "memory='conef' has no setting 'size'; it has bits, beta"),
        ("conef-sketch:size=0", r"setting size: must be above 0 \(got 0"),
        ("conef-sketch:size=1.5", "setting size: must be at most 1"),
        ("partial:beta=1", "setting beta: must be below 1"),
        ("partial:beta", "'beta' must be written setting=value"),
        ("partial:beta=0.1,beta=0.2", "setting 'beta' is given twice"),
        ("none:beta=0.1", "memory='none' has no setting 'beta'; it has none"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_what_is_allowed(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        build_memory(text)


def test_settings_are_read_and_written_back() -> None:
    for text in ("residual", "conef:bits=4,beta=0.25", "partial:beta=0.9"):
        assert build_memory(text).spec == text
    sketch = build_memory("conef-sketch:size=0.2")
    assert sketch.settings.beta == pytest.approx(0.8)
    assert build_memory(sketch.spec).settings == sketch.settings


def test_a_bucket_that_changes_late_in_a_step_does_not_lose_the_drafts_of_the_others() -> None:
    memory, codec = ResidualMemory(), build("topk")
    memory.open(bucket(0, "a")).compensate(torch.ones(30))
    memory.open(bucket(0, "a")).update(codec, codec.compress(torch.ones(30), 30.0, KEY, torch.float32))
    memory.open(bucket(1, "b", "c")).compensate(torch.ones(127))
    memory.open(bucket(1, "b", "c")).update(codec, None)
    memory.commit()
    memory.open(bucket(0, "a")).compensate(torch.ones(30))
    memory.open(bucket(0, "a")).update(codec, None)  # all sent: no residual
    memory.open(bucket(1, "c")).compensate(torch.ones(120))  # bucket 1 is another one now
    memory.open(bucket(1, "c")).update(codec, None)
    memory.commit()
    assert not memory.open(bucket(0, "a")).has_residual
