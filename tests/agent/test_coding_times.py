"""What plans take to encode and decode is measured on this machine, not looked up."""

import math
import time
from typing import Any

import pytest
import torch

from gravac.compressors.quantize.nearest import Nearest
from gravac.policies import AutoPolicy, Plan
from gravac.protocol import PlanCost
from gravac_agent.setup import coding_times
from gravac_agent.setup.coding_times import measure_coding

ELEMENTS = 1 << 18


def cost(plan: Plan, decoded: int | None = None) -> PlanCost:
    return PlanCost(
        codec=plan.codec, cf=plan.cf, payload_bytes=1, link_bytes=1.0, messages=1.0, decoded=decoded
    )


def measured(*costs: PlanCost, elements: int = ELEMENTS, ranks: int = 2) -> list[float]:
    return measure_coding(costs, "topk+bf16", "residual", elements, ranks, torch.float32)


def test_every_plan_of_auto_is_measured_and_the_random_numbers_of_the_trainer_stay() -> None:
    state = torch.get_rng_state()
    plans = AutoPolicy().plans("topk+bf16")
    found = dict(zip(plans, measured(*map(cost, plans)), strict=True))
    assert found.pop(plans[0]) == 0.0, "dense is not coded"
    assert all(0.0 < seconds < 5.0 for seconds in found.values()), found
    assert torch.equal(torch.get_rng_state(), state)


def test_a_slow_machine_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding is done once, decoding as often as payloads arrive, and a longer gradient takes longer."""
    compress, decompress = Nearest.compress, Nearest.decompress

    def slow_compress(self: Nearest, *given: Any, **named: Any) -> Any:
        time.sleep(0.03)
        return compress(self, *given, **named)

    def slow_decompress(self: Nearest, *given: Any, **named: Any) -> None:
        time.sleep(0.02)
        decompress(self, *given, **named)

    monkeypatch.setattr(coding_times, "MOST_ELEMENTS", ELEMENTS // 2)
    plan = Plan("nearest:levels=7", 10.1)

    def least(one: PlanCost, ranks: int = 2) -> float:  # the machine may be busy
        return min(measured(one, ranks=ranks)[0] for _ in range(3))

    usual = least(cost(plan))
    monkeypatch.setattr(Nearest, "compress", slow_compress)
    monkeypatch.setattr(Nearest, "decompress", slow_decompress)
    two, eight, three = least(cost(plan)), least(cost(plan), ranks=8), least(cost(plan, 3), ranks=8)
    assert two > usual + 2 * 0.03
    assert eight - two == pytest.approx(2 * 6 * 0.02, rel=0.4), "two buckets, six more payloads"
    assert eight - three == pytest.approx(2 * 5 * 0.02, rel=0.4)


def test_what_cannot_be_measured_stays_as_stated() -> None:
    found = measured(cost(Plan("nonsense", 10.0)), cost(Plan(None, 10.0)))
    assert math.isinf(found[0])
    assert 0.0 < found[1] < 5.0
