"""Each plan that sends whole messages on a GPU, or should, against what the CPU makes of it, on one rank and on two."""

import pytest

from tests.support.gpu.cases import PLANS, Runs
from tests.support.gpu.exact import difference
from tests.support.gpu.places import CPU, NCCL, Place, on

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]
ROUNDED = ("nearest", "topk+twobit")
"""A GPU rounds these in blocks that depend on the order in which its programs run, or by sums of another order."""
MOST_DIFFERENCE = 0.05
"""Of the change that training made, where values are rounded otherwise."""
MOST_OF_EXACT = 0.3
"""The same between whole messages, of which some slots stay empty, and exact Top-k."""


@on(CPU, NCCL)
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_trains_as_on_the_cpu(runs: Runs, place: Place, world: int, plan: str) -> None:
    """On the CPU: what simulated streams send as a GPU would trains nearly as the exchange with threads."""
    name = f"plan: {plan}"
    expected = runs.results(*CPU, world, f"{name}, as on a GPU")[0]
    ranks = runs.results(*place, world, name)
    assert len({one["parameters"] for one in ranks}) == 1
    assert ranks[0]["finite"]
    assert ranks[0]["steps"] == expected["steps"]
    found = difference(ranks[0], expected)
    if place == CPU:
        assert expected["executor"] == "StreamExecutor"
        assert found <= (MOST_OF_EXACT if plan.startswith("topk") else 1e-6)
        return
    assert ranks[0]["executor"] == "StreamExecutor"
    assert ranks[0]["payload_bytes"] == expected["payload_bytes"]
    assert found <= MOST_DIFFERENCE
    if plan not in ROUNDED:
        assert ranks[0]["parameters"] == expected["parameters"]
