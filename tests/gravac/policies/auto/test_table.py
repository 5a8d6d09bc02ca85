"""The table of plans of a job: which of them policy auto leaves out (docs/constants.md)."""

import pytest

from gravac.policies import AutoPolicy, Plan
from gravac.policies.auto.table import table_of
from gravac.protocol import PlanCost
from tests.gravac.policies.auto.test_beliefs import facts, held
from tools.harness.cluster import job_spec
from tools.harness.plan_world import World

SEVEN = Plan("nearest:levels=7", 10.1)


def test_no_plan_loses_more_than_four_percent_unless_the_user_lists_it() -> None:
    spec = held(World(megabits=30.0)).fold.spec
    assert [table_of((), bound, spec).accepted for bound in (0.03, 1.0)] == [0.03, 0.04]
    assert table_of(("topk+bf16@100",), 1.0, spec).accepted == 1.0


def test_a_young_training_loses_more_by_delays() -> None:
    """(CF / 150)² of a step's progress at first, nothing after 5/6 CF steps."""
    job = held(World(kind="adam-aged", megabits=30.0))
    late = facts(job, Plan("topk+twobit", 36.0))
    settled = late.expected(None, 30)
    assert settled is not None
    assert settled == late.expected(None, 10_000)
    for step, share in ((0, 1.0), (15, 0.5), (29, 1 / 30)):
        found = late.expected(None, step)
        assert found is not None
        assert found.likely == pytest.approx(settled.likely - share * (36 / 150) ** 2)
    assert facts(job, SEVEN).expected(None, 0) == facts(job, SEVEN).expected(None, 10_000)


@pytest.mark.parametrize(("nbytes", "ladder"), [(985.0, (1.0, 2.0, 4.0)), (995.0, (1.0, 2.0))])
def test_plans_of_one_codec_that_send_as_much_are_one(nbytes: float, ladder: tuple[float, ...]) -> None:
    stated = tuple(
        PlanCost(codec=None, cf=cf, payload_bytes=int(size), link_bytes=size, messages=2.0)
        for cf, size in {1.0: 4000.0, 2.0: 1000.0, 4.0: nbytes}.items()
    )
    policy = AutoPolicy()
    assert policy.fitted(job_spec(policy.spec(), compressor="dgc", plans=stated)).ladder() == ladder
