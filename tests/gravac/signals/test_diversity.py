"""Gradient diversity: every identity by enumeration, so that a wrong constant cannot hide in noise."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gravac.signals.diversity import DiversityTracker, diversity, split


def gradients(count: int, size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator, dtype=torch.float64) + 0.5


def sq(x: Tensor) -> float:
    return float(x.square().sum())


def scalars(vectors: Tensor) -> tuple[float, float]:
    """Mean of the squares, and square of the mean: what a step reports."""
    return float(vectors.square().sum(1).mean()), sq(vectors.mean(0))


def test_equal_gradients_are_not_diverse_and_orthogonal_ones_are() -> None:
    equal, orthogonal = torch.ones(4, 3), torch.eye(4)
    assert diversity(*scalars(equal), 4) == pytest.approx(1 / 4)
    assert diversity(*scalars(orthogonal), 4) == pytest.approx(1.0)
    opposed = torch.tensor([[1.0], [-1.0]])
    assert diversity(*scalars(opposed), 2) is None


def test_diversity_is_the_ratio_of_sums() -> None:
    g = gradients(7, 5)
    assert diversity(*scalars(g), 7) == pytest.approx(sq(g) / sq(g.sum(0)), rel=1e-12)


@pytest.mark.parametrize(("ranks", "local_batch"), [(2, 1), (3, 1), (2, 2)])
def test_two_scalars_are_unbiased_for_signal_and_variance(ranks: int, local_batch: int) -> None:
    """Over every way ranks may draw their batches from 4 samples."""
    g = gradients(4, 3, seed=1)
    signal_sum = variance_sum = 0.0
    draws = list(itertools.product(range(4), repeat=ranks * local_batch))
    for chosen in draws:
        local = g[list(chosen)].view(ranks, local_batch, 3).mean(1)
        signal_sq, variance = split(*scalars(local), ranks, local_batch)
        signal_sum += signal_sq
        variance_sum += variance
    assert signal_sum / len(draws) == pytest.approx(sq(g.mean(0)), rel=1e-11)
    assert variance_sum / len(draws) == pytest.approx(
        float((g - g.mean(0)).square().sum(1).mean()), rel=1e-11
    )


def test_split_is_the_textbook_formula() -> None:
    a, c, n, b = 3.0, 0.7, 4, 8
    big = n * b
    signal_sq, variance = split(a, c, n, b)
    assert signal_sq == pytest.approx((big * c - b * a) / (big - b))
    assert variance == pytest.approx((a - c) / (1 / b - 1 / big))


def test_the_tracker_finds_the_bound_of_a_population() -> None:
    g = gradients(50, 10, seed=3) * 3
    sample_sq, full_sq = scalars(g)
    exact = sample_sq / full_sq
    generator, tracker = torch.Generator().manual_seed(0), DiversityTracker(0.004)
    for _ in range(3000):
        chosen = torch.randint(50, (4, 2), generator=generator)
        tracker.update(*scalars(g[chosen].mean(1)), ranks=4, local_batch=2)
    assert tracker.batch_bound() == pytest.approx(exact, rel=0.1)
    # Averaging the ratio, as a naive tracker would, is far off: the test above must notice the difference.
    ratios = []
    for _ in range(1000):
        chosen = torch.randint(50, (4, 2), generator=generator)
        signal_sq, variance = split(*scalars(g[chosen].mean(1)), 4, 2)
        ratios.append(1 + variance / signal_sq)
    assert abs(sum(ratios) / len(ratios) / exact - 1) > 0.2


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 8), st.integers(1, 64)), max_size=20
    )
)
def test_the_tracker_averages_numerator_and_denominator_apart(
    steps: list[tuple[float, float, int, int]],
) -> None:
    tracker, signal_sq, variance = DiversityTracker(0.25), None, None
    for local_sq, mean_sq, ranks, batch in steps:
        tracker.update(local_sq, mean_sq, ranks, batch)
        if ranks < 2:
            continue
        s, v = split(local_sq, mean_sq, ranks, batch)
        signal_sq = s if signal_sq is None else 0.75 * signal_sq + 0.25 * s
        variance = v if variance is None else 0.75 * variance + 0.25 * v
    if signal_sq is None or variance is None:
        assert tracker.batch_bound() is None
        return
    assert tracker.signal_sq == pytest.approx(signal_sq, rel=1e-6, abs=1e-6)
    assert tracker.variance == pytest.approx(variance, rel=1e-6, abs=1e-6)
    bound = tracker.batch_bound()
    assert tracker.signal_sq is not None
    assert (bound is None) == (not tracker.signal_sq > 0)
    assert bound is None or bound >= 1.0


def test_what_says_nothing_changes_nothing() -> None:
    tracker = DiversityTracker(0.5)
    tracker.update(2.0, 1.0, ranks=1, local_batch=4)
    assert tracker.batch_bound() is None
    tracker.update(2.0, 1.5, ranks=2, local_batch=4)
    before = tracker.batch_bound()
    assert before == pytest.approx(1 + (0.5 * 4 * 2) / (2 * 1.5 - 2.0))
    for bad in (math.nan, math.inf):
        tracker.update(bad, 1.0, ranks=2, local_batch=4)
        tracker.update(1.0, bad, ranks=2, local_batch=4)
    assert tracker.batch_bound() == before


def test_drowned_in_noise_is_unknown_not_huge() -> None:
    tracker = DiversityTracker(0.5)
    tracker.update(2.0, 0.5, ranks=2, local_batch=4)
    assert tracker.batch_bound() is None
    assert tracker.noise_scale() is None


@pytest.mark.parametrize("smoothing", [0.0, -1.0, 1.5, math.nan])
def test_bad_smoothing_is_named(smoothing: float) -> None:
    with pytest.raises(ValueError, match=r"smoothing=.* is not in \(0, 1\]"):
        DiversityTracker(smoothing)


def test_bad_counts_are_named() -> None:
    with pytest.raises(ValueError, match="ranks=1"):
        split(1.0, 1.0, 1, 4)
    with pytest.raises(ValueError, match="local_batch=0"):
        split(1.0, 1.0, 2, 0)
