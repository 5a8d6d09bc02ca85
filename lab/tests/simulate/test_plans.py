"""A plan that does not exist is named with the fix."""

import pytest

from gravac_lab.simulate.plans import PlanError, parse


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("topk", "names no strength: write topk@10"),
        ("dense:repeat=0", "repeat=0 must be a number from 1 to 1000"),
        ("dense:repeat=x", "repeat=x must be a number from 1 to 1000"),
        ("topk@ten", "'ten' is no number"),
        ("topk@1", "must be above 1"),
        ("topkk@10", "topkk.*did you mean.*topk"),
        ("topk@10/residul", "residul.*did you mean.*residual"),
        ("int8@4/residual/gathr", "collective='gathr' is unknown .did you mean 'gather'"),
        ("topk@10/residual/compressed-all-reduce", "needs a quantizer"),
    ],
)
def test_a_plan_that_does_not_exist_is_named_with_the_fix(plan: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        parse(plan)
