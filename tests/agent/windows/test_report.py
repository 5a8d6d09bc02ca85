"""The report of a window on rank 0: sums of ranks, levels, and the curve."""

import pytest
import torch

from gravac.kernels import tally
from gravac.signals.spectrum import LADDER, Spectrum
from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_agent.exchange.tick import StepSums
from gravac_agent.windows import report as window_report
from gravac_agent.windows.meters import (
    RankTotals,
    StepClock,
    WindowTotals,
    totals_of,
)
from gravac_agent.windows.report import build_report
from tests.agent.windows.test_meters import result

PLAN = StepPlan(Directive(1, "hold", 10.0, 10.0, 0.1), 10.0)


def test_report_adds_ranks_and_keeps_levels_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StepClock()
    window = WindowTotals(4, 200)
    dense = StepPlan(Directive(1, "explore", 10.0, 40.0, 0.1), 1.0)
    for number in range(6):
        plan = dense if number < 2 else PLAN
        sums = StepSums(
            gradient_sq=1.0, compensated_sq=4.0, sent_sq=2.0, nonfinite=1.0 if number == 5 else 0.0
        )
        window.add(
            plan, sums, clock.end_step(result(0.0)), 100, 100 if number < 2 else 20, settled=number > 2
        )
    window.own.samples = 96
    window.add_loss(2.0)
    other = RankTotals(*window.own.values())
    other.loss_sum, other.seconds = 4.0, 9.0
    report = build_report(window, [window.own, other], {10.0: 0.5}, None, "job", "start")
    assert (report.window, report.first_step, report.last_step, report.cf, report.epoch) == (
        4,
        200,
        205,
        10.0,
        1,
    )
    assert (report.samples, report.dense_bytes, report.payload_bytes) == (192, 1200, 2 * (200 + 80))
    assert report.loss == 3.0
    assert report.nonfinite_steps == 1
    first, second = report.levels
    assert (first.cf, first.steps, first.settled_steps, first.step_seconds_median) == (1.0, 2, 0, None)
    assert (second.cf, second.steps, second.settled_steps, second.payload_bytes) == (10.0, 4, 3, 160)
    assert (second.sums.steps, second.sums.compensated_sq, second.sums.sent_sq) == (3, 12.0, 6.0)
    assert report.ranks[1].step_seconds == 9.0
    monkeypatch.setattr(window_report, "LISTED_RANKS", 1)
    fewer = build_report(window, [window.own, other], {10.0: 0.5}, None, "job", "start")
    assert fewer == report.model_copy(update={"ranks": report.ranks[:1]})
    assert report.spread is not None
    assert report.spread.step_seconds[2:] == (9.0, 9.0)
    assert report.spread.step_seconds[0] == round(report.ranks[0].step_seconds, 6)


def test_the_curve_of_a_window_is_that_of_all_ranks_and_steps() -> None:
    """Energies are added before they are divided: a rank with little gradient counts little."""
    mine, theirs = WindowTotals(0, 0), WindowTotals(0, 0)
    loud, quiet = torch.zeros(100), torch.full((100,), 1e-3)
    loud[:10] = 5.0  # ten elements hold it all
    for x in (loud, loud):
        mine.add_curve(Spectrum.of(tally(x)).curve())
    theirs.add_curve(Spectrum.of(tally(quiet)).curve())
    vectors = [window.vector() for window in (mine, theirs)]
    curve = mine.curve_over_ranks(vectors, own=True)
    assert curve is not None
    assert (curve.steps, curve.own, curve.gains[0]) == (2, True, 1.0)
    gain = curve.gains[LADDER.index(10.0)]
    assert gain is not None
    assert 0.999 < gain < 1.0
    assert curve.gains[-1] == pytest.approx(0.1, abs=1e-5)  # one of ten equal ones
    assert WindowTotals(0, 0).curve_over_ranks(vectors, own=True) is None


def test_a_rank_without_a_curve_adds_nothing_to_it() -> None:
    window = WindowTotals(0, 0)
    totals = len(window.own.values())
    assert len(window.vector()) == totals + len(LADDER) + 1
    assert float(window.vector()[totals:].abs().sum()) == 0.0
    assert totals_of(window.vector()) == window.own
