"""Positions that follow from a seed: random, in runs, and dealt out among ranks; equal on every backend."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.kernels import add_run, distinct, global_positions, run_places, take_run
from tests.support.maths.backends import everywhere, same, vector


@settings(deadline=None, max_examples=60)
@given(
    numel=st.sampled_from([0, 1, 2, 3, 1023, 1024, 1025, 1500, 4097, 65_536, 2**31 - 1]),
    count=st.integers(0, 3000),
    seed=st.integers(0, 2**63 - 1),
)
def test_distinct_places(numel: int, count: int, seed: int) -> None:
    count = min(count, numel)
    places = everywhere(lambda: distinct(numel, count, seed))
    assert places.dtype == torch.int32
    assert places.shape == (count,)
    assert places.unique().numel() == count
    if count:
        assert 0 <= int(places.min()) <= int(places.max()) < numel
        assert torch.equal(distinct(numel, count // 2, seed), places[: count // 2])


@pytest.mark.parametrize(("numel", "count"), [(6, 2), (1100, 220), (1500, 150)])
def test_all_places_and_pairs_are_equally_likely(numel: int, count: int) -> None:
    """Sums of squared deviations (chi-square) of places, and of distances of pairs, over many seeds."""
    rounds = 2000
    times = torch.zeros(numel, dtype=torch.float64)
    first_two = torch.zeros(numel, dtype=torch.float64)
    for seed in range(rounds):
        places = distinct(numel, count, seed).long()
        times[places] += 1
        first_two[(places[0] - places[1]) % numel] += 1
    share = count / numel
    chi = float((times - rounds * share).square().sum()) / (rounds * share * (1 - share))
    assert abs(chi - numel) < 5 * math.sqrt(2 * numel)
    expected = rounds / (numel - 1)
    assert first_two[0] == 0
    pairs = float((first_two[1:] - expected).square().sum()) / expected
    assert abs(pairs - (numel - 1)) < 5 * math.sqrt(2 * numel)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="count=11 must be between 0 and numel=10"):
        distinct(10, 11, 0)
    with pytest.raises(ValueError, match="numel below 2\\^31"):
        distinct(2**31, 1, 0)


@settings(deadline=None, max_examples=80)
@given(numel=st.integers(1, 200), seed=st.integers(0, 2**63 - 1), data=st.data())
def test_runs_go_round_the_end(numel: int, seed: int, data: st.DataObject) -> None:
    count, start = data.draw(st.integers(0, numel)), seed % numel
    x = vector(numel, seed % 1000, "normal")
    places = run_places(numel, start, count)
    assert places.tolist() == [(start + i) % numel for i in range(count)]
    values, left = take_run(x, start, count), x.clone()
    same(values, x[places])
    add_run(left, start, values, -1.0)
    assert not left[places].any()
    add_run(left, start, values, 1.0)
    assert torch.equal(left, x)


def test_a_run_that_is_none_is_refused() -> None:
    for start, count in ((10, 1), (-1, 1), (0, 11), (0, -1)):
        with pytest.raises(ValueError, match=f"start={start} must be between 0 and 9, count={count}"):
            take_run(torch.ones(10), start, count)


SEEDS = st.sampled_from([0, 1, 12345, 2**31 - 1]) | st.integers(0, 2**31 - 1)


@settings(deadline=None)
@given(numel=st.integers(1, 5000), ranks=st.integers(1, 9) | st.just(1000), seed=SEEDS)
def test_each_row_is_dealt_to_all_ranks(numel: int, ranks: int, seed: int) -> None:
    """The first rows, and the last ones that 32 bits hold."""
    for first in (0, (2**31 - 1) // ranks - -(-numel // ranks)):
        rows = torch.arange(first, first + -(-numel // ranks), dtype=torch.int32)
        dealt = [
            everywhere(lambda owner=owner, rows=rows: global_positions(rows, owner, ranks, seed))
            for owner in range(ranks)
        ]
        assert all(torch.equal(places // ranks, rows) for places in dealt)
        assert torch.equal(
            torch.cat(dealt).sort().values,
            torch.arange(first * ranks, (first + len(rows)) * ranks, dtype=torch.int32),
        )


def test_known_values() -> None:
    """The wire depends on them: a rank with another version would own other elements."""
    rows = torch.arange(4, dtype=torch.int32)
    dealt = [
        everywhere(lambda owner=owner: global_positions(rows, owner, 3, 7)).tolist() for owner in range(3)
    ]
    assert dealt == [[0, 4, 8, 9], [1, 5, 6, 10], [2, 3, 7, 11]]
