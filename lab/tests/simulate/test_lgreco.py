"""L-GreCo in the simulator: errors by hand, strengths by layer within the budget, and a whole run."""

import math

import pytest
import torch

from gravac.memories import Bucket
from gravac_lab.simulate.lgreco import Lgreco, errors, parse_lgreco
from gravac_lab.simulate.plans import PlanError, parse
from gravac_lab.simulate.run import learn

N = 1000
LAYERS = (
    Bucket(0, ("flat",), (N,), ((10, 100),)),
    Bucket(1, ("bias",), (3,), ((3,),)),
    Bucket(2, ("peaked",), (N,), ((10, 100),)),
)


def gradients(ranks: int = 2) -> list[list[torch.Tensor]]:
    """Of one layer all elements are alike; of the other a few hold nearly everything."""
    peaked = torch.full((N,), 1e-3)
    peaked[:20] = 5.0
    return [[torch.full((N,), 1.0), torch.ones(3), peaked] for _ in range(ranks)]


def test_errors_by_hand() -> None:
    found = errors(torch.tensor([3.0, -4.0, 0.0, 1.0]), [1.01, 2.0, 4.0, 400.0])
    assert [one.error for one in found] == pytest.approx([0.0, 1.0, math.sqrt(10.0), math.sqrt(10.0)])
    assert [one.nbytes for one in found] == [4, 2, 1, 1], "at least one element is kept"


def test_a_peaked_layer_is_sent_stronger_within_the_same_error() -> None:
    plan = parse_lgreco("lgreco:topk@10,interval=2")
    rule = Lgreco(plan, LAYERS)
    for _ in range(2):
        assert [plan.cf for plan in rule.plans(1.0)] == [10.0, 1.0, 10.0], "uniform in the first interval"
        rule.observe(gradients())
    flat, bias, peaked = (plan.cf for plan in rule.plans(1.0))
    assert bias == 1.0
    assert peaked >= 40.0, "20 of 1,000 elements hold the energy"
    assert flat <= 10.0
    total = [2 * each for each in gradients(1)[0]]  # of two steps
    budget = sum(errors(total[at], [10.0])[0].error for at in (0, 2))
    chosen = errors(total[0], [flat])[0], errors(total[2], [peaked])[0]
    assert sum(one.error for one in chosen) <= budget * (1 + 1e-9)
    assert sum(one.nbytes for one in chosen) < 200, "fewer than 10x sends of both"
    assert rule.figures() == {"spread": round(peaked / flat, 3)}


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    rule = Lgreco(parse_lgreco("lgreco:topk@10,interval=1"), LAYERS)
    broken = gradients()
    broken[1][2][5] = math.inf
    rule.plans(1.0)
    rule.observe(broken)
    assert [plan.cf for plan in rule.plans(1.0)] == [10.0, 1.0, 10.0]
    rule.observe(gradients())
    assert rule.plans(1.0)[2].cf > 10.0, "the sums hold nothing of the step before"


def test_a_run_has_a_row() -> None:
    row = learn("logistic:images=digits", "lgreco:topk+bf16@10,interval=3", 2, 1, 9, points=3)
    assert row["spread"] >= 1.0
    assert 0 < row["payload_bytes"] < 4 * row["elements"]
    losses = [loss for _, loss, *_ in row["curve"]]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("lgreco:topk@10", "needs a strength and an interval"),
        ("lgreco:topk@10,interval=0", "needs a strength and an interval"),
        ("lgreco:topk@10,intervall=5", "needs a strength and an interval"),
        ("lgreco:topk,interval=5", "it names no strength"),
        ("lgreco:tpok@10,interval=5", "did you mean 'topk'"),
        ("lgreco:nearest@10,interval=5", "errors of nearest are not known without sending"),
        ("lgreco:dense,interval=5", "errors of dense are not known"),
    ],
)
def test_what_is_refused(text: str, error: str) -> None:
    with pytest.raises(PlanError, match=error):
        parse_lgreco(text)


def test_it_is_no_plan_of_one_strength() -> None:
    with pytest.raises(PlanError, match="lgreco is no plan of one strength"):
        parse("lgreco:topk@10,interval=5")
    assert parse_lgreco("lgreco:topk@10,interval=5/momentum").uniform.memory == "momentum"
