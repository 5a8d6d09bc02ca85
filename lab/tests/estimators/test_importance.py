"""Estimators: unbiased by enumeration, of known variance, refusing what cannot be."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac_lab.estimators import LSVRG, EstimatorSample, Importance, Uniform, build
from lab.tests.support.quadratics import NAMES, expectation, made, quadratics


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), samples=st.integers(1, 12))
def test_unbiased_to_rounding(name: str, seed: int, samples: int) -> None:
    problem = quadratics(seed, samples)
    estimator = made(name, problem.curvature)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(4, generator=generator, dtype=torch.float64)
    estimator.gradient(problem, start, estimator.draw(generator))  # L-SVRG remembers this point ...
    x = torch.randn(4, generator=generator, dtype=torch.float64)  # ... and is asked about another
    assert float(estimator.probability.sum()) == pytest.approx(1.0, abs=1e-12)
    mean, _ = expectation(estimator, problem, x)
    assert (mean - problem.full_gradient(x)).abs().max() < 1e-12


def test_a_batch_is_the_mean_of_its_draws() -> None:
    problem = quadratics(0)
    estimator = Importance(problem.curvature)
    sample = estimator.draw(torch.Generator().manual_seed(1), 5)
    assert sample.indices.shape == sample.weights.shape == (5,)
    x = torch.ones(4, dtype=torch.float64)
    singles = [
        problem.gradient(x, EstimatorSample(i[None], w[None]))
        for i, w in zip(sample.indices, sample.weights, strict=True)
    ]
    torch.testing.assert_close(estimator.gradient(problem, x, sample), torch.stack(singles).mean(0))


def test_equal_scores_make_importance_uniform() -> None:
    importance, uniform = Importance(torch.full((7,), 3.5)), Uniform(7)
    torch.testing.assert_close(importance.probability, uniform.probability, rtol=0, atol=1e-15)
    torch.testing.assert_close(importance.weight, torch.ones(7, dtype=torch.float64), rtol=0, atol=1e-14)
    draws = [e.draw(torch.Generator().manual_seed(5), 1000).indices for e in (importance, uniform)]
    assert torch.equal(draws[0], draws[1])


def test_expected_smoothness_falls_from_the_largest_to_the_mean() -> None:
    curvature = torch.tensor([1.0, 1.0, 1.0, 97.0])
    assert Uniform(4).smoothness(curvature) == pytest.approx(97.0)
    assert Importance(curvature).smoothness(curvature) == pytest.approx(25.0)
    assert made("lsvrg-importance", curvature).smoothness(curvature) == pytest.approx(25.0)


@pytest.mark.parametrize("name", NAMES)
def test_draws_follow_the_probabilities(name: str) -> None:
    estimator = made(name, torch.tensor([1.0, 2.0, 3.0, 4.0, 0.1]))
    count = 40_000
    drawn = Counter(estimator.draw(torch.Generator().manual_seed(0), count).indices.tolist())
    assert set(drawn) == set(range(5))
    chi_square = sum(
        (drawn[j] - count * float(p)) ** 2 / (count * float(p)) for j, p in enumerate(estimator.probability)
    )
    assert chi_square < 23.5  # four degrees of freedom: 1 in 10,000


def test_the_last_sample_can_be_drawn_and_nothing_beyond_it() -> None:
    estimator = Importance(torch.full((3,), 1e-3))
    estimator._cumulative[-1] = 0.5  # as if rounding had left it far below 1
    assert int(estimator.draw(torch.Generator().manual_seed(0), 1000).indices.max()) == 2


def test_a_floor_bounds_the_weights_and_keeps_the_mean() -> None:
    problem = quadratics(4)
    guesses = torch.rand(9, generator=torch.Generator().manual_seed(1))
    guesses[0] = 0.0
    estimator = Importance(guesses, floor=0.2)
    assert float(estimator.weight.max()) <= 5.0 + 1e-12
    x = torch.zeros(4, dtype=torch.float64)
    torch.testing.assert_close(expectation(estimator, problem, x)[0], problem.full_gradient(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(0), "samples=0"),
        (lambda: Importance(torch.tensor([])), "one number per sample"),
        (lambda: Importance(torch.ones(2, 2)), "one number per sample"),
        (lambda: Importance(torch.tensor([1.0, 0.0])), r"scores\[1\]=0.0: .*floor > 0"),
        (lambda: Importance(torch.tensor([1.0, -1.0]), floor=0.1), r"scores\[1\]=-1.0"),
        (lambda: Importance(torch.tensor([math.nan, 1.0])), r"scores\[0\]=nan"),
        (lambda: Importance(torch.tensor([math.inf, 1.0]), floor=0.1), r"scores\[0\]=inf"),
        (lambda: Importance(torch.zeros(3), floor=0.1), "all 0"),
        (lambda: Importance(torch.tensor([5e-324, 1e300], dtype=torch.float64)), "set floor > 0"),
        (lambda: Importance(torch.ones(3), floor=1.5), "floor=1.5"),
        (lambda: LSVRG(Uniform(3), refresh=0.0), "refresh=0.0"),
        (lambda: LSVRG(LSVRG(Uniform(3))), "already reduces variance"),
        (lambda: build("svrg", torch.ones(3)), "estimator='svrg' is unknown .did you mean 'lsvrg'..; choose one of"),
        (lambda: build("lsvrg", torch.ones(3), base="svrg"), "base='svrg' of lsvrg is unknown; choose one of imp"),
        (lambda: build("lsvrg", torch.ones(3), refresh=2.0), "refresh=2.0"),
        (lambda: build("lsvrg", torch.ones(3), rate=2.0), "no setting 'rate'; it has base, refresh"),
        (lambda: build("uniform", torch.ones(3), floor=0.1), "no setting 'floor'; it has none"),
        (lambda: Uniform(3).load_state_dict({"point": torch.ones(1)}), "keeps nothing"),
        (lambda: LSVRG(Uniform(3)).load_state_dict({"point": torch.ones(1)}), r"expected 'gradient' and 'point'"),
        (
            lambda: LSVRG(Uniform(3)).load_state_dict({"point": torch.ones(1), "gradient": torch.ones(2)}),
            r"shapes \[\(1,\), \(2,\)\]",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_named(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_huge_scores_do_not_overflow() -> None:
    estimator = Importance(torch.full((4,), 1e308, dtype=torch.float64))
    torch.testing.assert_close(estimator.probability, torch.full((4,), 0.25, dtype=torch.float64))
