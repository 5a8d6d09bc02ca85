"""L-SVRG: exact at its point, better near it, and resumed where it was."""

import math

import pytest
import torch

from gravac_lab.estimators import LSVRG, Uniform, build
from lab.tests.support.quadratics import every_draw, expectation, quadratics


@pytest.mark.parametrize("base", ["uniform", "importance"])
def test_lsvrg_is_exact_at_its_point_and_better_near_it(base: str) -> None:
    problem = quadratics(3)
    estimator, plain = build("lsvrg", problem.curvature, base=base), build(base, problem.curvature)
    x = torch.full((4,), 2.0, dtype=torch.float64)
    for sample in every_draw(estimator):
        torch.testing.assert_close(
            estimator.gradient(problem, x, sample), problem.full_gradient(x), rtol=0, atol=1e-12
        )
    near = x + 0.01
    assert expectation(estimator, problem, near)[1] < 1e-3 * expectation(plain, problem, near)[1]


def test_the_coin_moves_the_point_to_the_old_x_as_often_as_it_should() -> None:
    problem, generator = quadratics(0), torch.Generator().manual_seed(0)
    estimator = LSVRG(Uniform(9), refresh=0.25)
    estimator.gradient(problem, torch.zeros(4, dtype=torch.float64), estimator.draw(generator))
    moves = 0
    for step in range(1, 2001):
        x_old = torch.full((4,), float(step), dtype=torch.float64)
        estimator.after_step(problem, x_old, generator)
        assert estimator.point is not None
        moved = bool(torch.equal(estimator.point, x_old))
        moves += moved
        x_old.add_(1.0)  # the caller's tensor is its own
        assert not moved or float(estimator.point[0]) == step
    assert abs(moves - 500) < 4.5 * math.sqrt(2000 * 0.25 * 0.75)


def test_lsvrg_resumes_where_it_was() -> None:
    problem, x = quadratics(1), torch.ones(4, dtype=torch.float64)
    one, two = LSVRG(Uniform(9)), LSVRG(Uniform(9))
    assert one.nbytes() == 0
    one.gradient(problem, x, every_draw(one)[0])
    assert one.nbytes() == 2 * 4 * 8
    two.load_state_dict(one.state_dict())
    for sample in every_draw(one):
        assert torch.equal(one.gradient(problem, x + 1, sample), two.gradient(problem, x + 1, sample))
    two.load_state_dict({})
    assert two.point is None
