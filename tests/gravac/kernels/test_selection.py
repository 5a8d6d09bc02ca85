"""Exactly k, the same on every backend, the residual left behind in the same pass."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.kernels import (
    Tally,
    count_above,
    scatter_add,
    select_top,
    take_above,
    take_top,
    take_top_of_chunks,
    tally,
)
from tests.support.maths.backends import LENGTHS, everywhere, on, vector


def by_sorting(x: torch.Tensor, k: int) -> torch.Tensor:
    """By magnitude, NaN first; equal ones by place."""
    order = torch.argsort(x.view(torch.int32) & 0x7FFFFFFF, descending=True, stable=True)
    return order[:k].sort().values.int()


@settings(deadline=None, max_examples=150)
@given(
    n=LENGTHS,
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["normal", "mixed", "wild"]),
    clear=st.booleans(),
    hint=st.booleans(),
    data=st.data(),
)
def test_the_largest_are_taken_and_zeros_left(
    n: int, seed: int, kind: str, clear: bool, hint: bool, data: st.DataObject
) -> None:
    n = max(n, 1)
    x = vector(n, seed, kind)
    k = data.draw(st.integers(1, n))

    def run() -> tuple[torch.Tensor, ...]:
        p = x.clone()
        return *take_top(p, k, tally(p) if hint else None, clear=clear), p

    indices, values, left = everywhere(run)
    assert torch.equal(indices, by_sorting(x, k))
    assert torch.equal(values.view(torch.int32), x[indices.long()].view(torch.int32))
    residual = x.clone()
    if clear:
        residual[indices.long()] = 0.0
    assert torch.equal(left.view(torch.int32), residual.view(torch.int32))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["normal", "mixed"]), data=st.data())
def test_a_second_level_comes_from_the_first_ones_values(seed: int, kind: str, data: st.DataObject) -> None:
    x = vector(900, seed, kind)
    first = data.draw(st.integers(1, 900))
    second = data.draw(st.integers(1, first))

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        hint = tally(x)
        indices, values = take_top(x, first, hint)
        places, _ = take_top(values, second, hint)
        return indices, indices[places.long()]

    assert torch.equal(everywhere(run)[1], by_sorting(x, second))


def test_buffers_are_filled_in_place() -> None:
    x = vector(1000, 1)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        indices, values = torch.empty(10, dtype=torch.int32), torch.empty(10)
        given = take_top(x, 10, indices=indices, values=values)
        assert given[0] is indices
        assert given[1] is values
        return indices, values

    everywhere(run)
    with pytest.raises(ValueError, match=r"indices is torch.int64 .* must be contiguous, torch.int32"):
        take_top(x, 10, indices=torch.empty(10, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"values is torch.float32 of shape \(9,\)"):
        take_top(x, 10, values=torch.empty(9))


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_the_tally_of_another_tensor_is_refused_and_changes_nothing(name: str) -> None:
    """Too many candidates would write past the buffers; too few would send rubbish."""
    x, few, many = vector(1000, 1, "normal"), vector(1000, 2, "normal") * 1e6, torch.zeros(1000)
    with on(name):  # type: ignore[arg-type]
        for other in (few, many, x[:800], x * 2):
            left = x.clone()
            with pytest.raises(ValueError, match="hint is of another tensor"):
                take_top(left, 400, tally(other), clear=True)
            assert torch.equal(left, x)
        empty = Tally(torch.zeros(4096, dtype=torch.int64), torch.zeros(4096, dtype=torch.float64))
        with pytest.raises(ValueError, match="hint is of another tensor"):
            take_top(x.clone(), 4, empty)


@pytest.mark.parametrize("k", [0, 11])
def test_an_impossible_k_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=rf"k={k} is outside 1\.\.10"):
        take_top(torch.ones(10), k)


@settings(deadline=None, max_examples=100)
@given(
    n=LENGTHS,
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["normal", "mixed", "wild"]),
    level=st.one_of(
        st.floats(0, 20, width=32), st.sampled_from([-1.0, torch.inf, torch.nan, 1e-45, 0.1, 1e300])
    ),
)
def test_what_is_above_a_level(n: int, seed: int, kind: str, level: float) -> None:
    """0.1 is no float32, and 1e300 none at all: levels are rounded alike everywhere. NaN always passes."""
    x = vector(n, seed, kind)
    expected = (~(x.abs() < torch.tensor(level))).nonzero().squeeze(1)
    indices, values = everywhere(lambda: take_above(x, level))
    assert indices.dtype == torch.int32
    assert indices.tolist() == expected.tolist()
    assert torch.equal(values.view(torch.int32), x[expected].view(torch.int32))
    assert everywhere(lambda: count_above(x, level)) == expected.numel()


def test_half_precision_is_selected_alike() -> None:
    x = vector(700, 9, "mixed").to(torch.bfloat16)
    assert torch.equal(everywhere(lambda: select_top(x, 70)), by_sorting(x.float(), 70).long())


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 300),
    k=st.integers(0, 200),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1.0, -1.0, 0.25, 0.1]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    wide=st.booleans(),
)
def test_payloads_add_up(n: int, k: int, seed: int, scale: float, dtype: torch.dtype, wide: bool) -> None:
    """Also places that occur twice."""
    indices = torch.randint(n, (k,), generator=torch.Generator().manual_seed(seed))
    values, start = vector(k, seed, "mixed").to(dtype), vector(n, seed + 1, "normal")

    def run() -> torch.Tensor:
        out = start.clone()
        scatter_add(out, indices if wide else indices.int(), values, scale)
        return out

    expected = start.tolist()
    for place, value in zip(indices.tolist(), values.float() * scale, strict=True):
        expected[place] = float(torch.tensor(expected[place]) + value)
    assert everywhere(run).tolist() == expected


@pytest.mark.parametrize("name", ["cpu", "reference"])
@pytest.mark.parametrize("bad", [-1, 5, 2**31 - 1])
def test_a_damaged_payload_touches_nothing(name: str, bad: int) -> None:
    out = torch.zeros(5)
    with on(name), pytest.raises(IndexError, match=r"outside 0\.\.4"):  # type: ignore[arg-type]
        scatter_add(out, torch.tensor([1, bad, 2], dtype=torch.int32), torch.ones(3))
    assert not out.any()
    with pytest.raises(ValueError, match="each value needs its place"):
        scatter_add(out, torch.tensor([1]), torch.ones(2))


@settings(deadline=None, max_examples=100)
@given(
    n=st.integers(1, 1500),
    seed=st.integers(0, 10**6),
    share=st.floats(0.0, 1.0),
    most=st.sampled_from([1, 7, 64, 100, 4096]),
    kind=st.sampled_from(["normal", "mixed", "wild"]),
)
def test_chunks_keep_their_largest_everywhere(n: int, seed: int, share: float, most: int, kind: str) -> None:
    x = vector(n, seed, kind)
    k = max(1, int(share * n))
    chunks = min(k, -(-n // most))
    check_chunks(x, k, chunks)


def test_chunks_that_would_keep_more_than_they_have_are_one() -> None:
    """184 chunks of 6 or 7 elements, and shares of 6 or 7 that do not fit them."""
    check_chunks(vector(1286, 3, "normal"), 1251, 184)


def check_chunks(x: torch.Tensor, k: int, chunks: int) -> None:
    n, indices, values = x.numel(), *everywhere(lambda: take_top_of_chunks(x, k, chunks))
    shares = [
        ((c + 1) * k // chunks - c * k // chunks, (c + 1) * n // chunks - c * n // chunks)
        for c in range(chunks)
    ]
    if any(keep > size for keep, size in shares):
        chunks = 1
    assert torch.equal(values.view(torch.int32), x[indices.long()].view(torch.int32))
    expected = []
    for chunk in range(chunks):
        begin, end = chunk * n // chunks, (chunk + 1) * n // chunks
        keep = (chunk + 1) * k // chunks - chunk * k // chunks
        assert keep >= 1
        sizes = (x[begin:end].view(torch.int32) & 0x7FFFFFFF).tolist()
        largest = sorted(range(end - begin), key=lambda at, sizes=sizes: (-sizes[at], at))[:keep]
        expected += sorted(begin + at for at in largest)
    assert indices.tolist() == expected


def test_a_chunk_that_could_keep_nothing_is_refused() -> None:
    for k, chunks in ((2, 3), (5, 2), (1, 0)):
        with pytest.raises(ValueError, match="each chunk must keep 1 element or more"):
            take_top_of_chunks(torch.ones(4), k, chunks)


element = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, -1e-40, 3e38, math.inf, -math.inf, math.nan]),
    st.floats(width=32),
)


def sorted_places(x: torch.Tensor, k: int) -> list[int]:
    def rank(index: int) -> tuple[bool, float, int]:
        value = abs(float(x[index]))
        return not math.isnan(value), 0.0 if math.isnan(value) else -value, index

    return sorted(sorted(range(x.numel()), key=rank)[:k])


@settings(deadline=None, max_examples=300)
@given(values=st.lists(element, min_size=1, max_size=60), data=st.data())
def test_select_top_equals_a_sort(values: list[float], data: st.DataObject) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    k = data.draw(st.integers(1, len(values)))
    assert select_top(x, k).tolist() == sorted_places(x, k)


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
