"""Selection against a plain sort: exactly k, deterministic, ties by index."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.compressors.quantize.elias import decode, encode
from gravac.kernels import (
    energy,
    inner,
    pack,
    pack_trits,
    packed_bytes,
    relative,
    row_scales,
    select_top,
    stochastic_round,
    trit_bytes,
    unpack,
    unpack_trits,
)

element = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, -1e-40, 3e38, math.inf, -math.inf, math.nan]),
    st.floats(width=32),
)


def by_sorting(x: torch.Tensor, k: int) -> list[int]:
    def rank(index: int) -> tuple[bool, float, int]:
        value = abs(float(x[index]))
        return not math.isnan(value), 0.0 if math.isnan(value) else -value, index

    return sorted(sorted(range(x.numel()), key=rank)[:k])


@settings(deadline=None, max_examples=300)
@given(values=st.lists(element, min_size=1, max_size=60), data=st.data())
def test_select_top_equals_a_sort(values: list[float], data: st.DataObject) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    k = data.draw(st.integers(1, len(values)))
    assert select_top(x, k).tolist() == by_sorting(x, k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("k", [1, 100, 9_999, 10_000])
def test_select_top_agrees_with_torch_on_large_input(dtype: torch.dtype, k: int) -> None:
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(1)).to(dtype)
    chosen = select_top(x, k)
    assert chosen.numel() == k
    assert torch.equal(chosen, chosen.sort().values)
    mine, theirs = x[chosen].abs().sort().values, x.abs().topk(k).values.sort().values
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("k", [0, 11])
def test_impossible_k_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=r"outside 1\.\.10"):
        select_top(torch.ones(10), k)


def test_energy_distinguishes_overflow_from_infinity() -> None:
    assert energy(torch.full((10,), 1e25)) == pytest.approx(1e51)
    assert not math.isfinite(energy(torch.tensor([1.0, math.inf])))
    assert math.isnan(energy(torch.tensor([1.0, math.nan])))
    assert inner(torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0])) == -5.0


@pytest.mark.parametrize("bits", range(1, 9))
@settings(deadline=None, max_examples=30)
@given(data=st.data(), n=st.integers(0, 60))
def test_packing_is_lossless_and_takes_the_declared_bits(bits: int, data: st.DataObject, n: int) -> None:
    values = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=n, max_size=n))
    packed = pack(torch.tensor(values, dtype=torch.int64), bits)
    assert packed.dtype == torch.uint8
    assert packed.numel() == packed_bytes(n, bits) == math.ceil(n * bits / 8)
    assert unpack(packed, n, bits).tolist() == values


@settings(deadline=None, max_examples=30)
@given(values=st.lists(st.integers(0, 2), max_size=40))
def test_packing_trits_is_lossless(values: list[int]) -> None:
    packed = pack_trits(torch.tensor(values, dtype=torch.int8))
    assert packed.numel() == trit_bytes(len(values)) == math.ceil(len(values) / 5)
    assert unpack_trits(packed, len(values)).tolist() == values


@pytest.mark.parametrize("bits", [0, 9])
def test_impossible_widths_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=f"bits={bits} must be between 1 and 8"):
        pack(torch.zeros(3), bits)


@settings(deadline=None, max_examples=60)
@given(
    levels=st.lists(st.one_of(st.just(0), st.integers(-200, 200)), min_size=1, max_size=80),
    zeros=st.integers(0, 5000),
)
def test_elias_coding_is_lossless(levels: list[int], zeros: int) -> None:
    expected = torch.tensor([*levels, *([0] * zeros), levels[0]])
    assert torch.equal(decode(encode(expected), expected.numel()), expected)


def test_elias_code_of_large_gaps_and_of_nothing() -> None:
    far = torch.zeros(3_000_000, dtype=torch.int64)
    assert encode(far).numel() == 0
    assert torch.equal(decode(encode(far), far.numel()), far)
    far[-1] = -127
    assert torch.equal(decode(encode(far), far.numel()), far)
    with pytest.raises(ValueError, match=r"last level belongs to element 2999999 of 1000"):
        decode(encode(far), 1000)


def test_energy_of_tiny_numbers_is_not_lost() -> None:
    assert energy(torch.full((10,), 1e-25)) == pytest.approx(1e-49)
    assert energy(torch.zeros(10)) == 0.0


def test_scales_survive_both_ends_of_the_range() -> None:
    rows = torch.tensor([[1e-30, -1e-30], [3e38, 3e38], [0.0, 0.0]])
    l2 = row_scales(rows, "l2").tolist()
    assert l2[0] == pytest.approx(2**0.5 * 1e-30)
    assert l2[1:] == [torch.finfo(torch.float32).max, 0.0]
    assert relative(rows, row_scales(rows, "linf")).tolist() == [[1, -1], [1, 1], [0, 0]]


def test_stochastic_rounding_has_the_right_mean() -> None:
    a = torch.tensor([0.0, 0.25, -0.25, 2.0, 6.9]).repeat(20_000, 1)
    rounded = stochastic_round(a, 3)
    assert set((rounded - a.floor()).unique().tolist()) == {0.0, 1.0}
    assert torch.allclose(rounded.mean(0), a[0], atol=4.5 * 0.5 / 20_000**0.5)
