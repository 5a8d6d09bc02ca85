"""Steps listed one by one on rank 0: what is asked for, in bounded memory, and never at the cost of the window."""

import logging

import pytest

from gravac.signals.gain import GainTracker
from gravac_agent.exchange.clock import Lap
from gravac_agent.exchange.plan import Directive, Plan, next_plan
from gravac_agent.exchange.tick import StepSums
from gravac_agent.windows.listing import Listing

LAP = Lap(seconds=1.0, data_wait=0.125, compute=0.5, compress=0.0625, communicate=0.25, decompress=0.0625)
PLAN: Plan = next_plan(Directive(3, "hold", 10.0, 10.0, 0.0), GainTracker(0.1))


def listing(most: int, steps: int, **sums: float) -> Listing:
    found = Listing(most, ranks=4)
    for step in range(steps):
        found.add(step, PLAN, StepSums(**sums), LAP, 100 + step)
    return found


def test_the_newest_are_kept() -> None:
    found = listing(3, 10, sent_sq=2.0).detail()
    assert found is not None
    assert found.first_step == 7
    assert found.payload_bytes == (428, 432, 436), "of four ranks"
    assert (found.epoch, found.cf) == ((3,) * 3, (PLAN.cf,) * 3)
    assert (found.sent_sq, found.communicate) == ((2.0,) * 3, (0.25,) * 3)


def test_none_are_kept_where_none_are_wanted() -> None:
    assert listing(0, 10).detail() is None
    assert listing(5, 0).detail() is None


def test_what_cannot_be_written_costs_the_list_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "gravac.agent"):
        assert listing(3, 3, residual_sq=float("inf")).detail() is None
    assert "are not listed" in caplog.text
