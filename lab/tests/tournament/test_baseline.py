"""Baseline: dense runs with the same seed, of which no single one decides what a plan is compared with."""

import math

import pytest

from gravac_lab.tournament import LossCurve, Run, baselines, place, standings
from gravac_lab.tournament.regret import RegretJob, cell
from lab.tests.support.tournament import AT, run

LUCKY = (5.0, 4.0, 3.0, 1.5, 1.0)
"""The one dense run without rounding errors, which happens to be ahead of its repetitions."""
REPEATS = ((5.0, 4.0, 3.0, 2.0, 1.4), (5.0, 4.0, 3.0, 2.2, 1.6))
PLAN = (5.0, 4.0, 3.0, 2.0, 1.6)


def repeated(*others: Run) -> list[Run]:
    repeats = [run(f"dense:repeat={number}", losses) for number, losses in enumerate(REPEATS, 1)]
    return [run("dense", LUCKY), *repeats, *others]


def test_the_median_of_dense_runs_is_the_baseline_not_the_lucky_one() -> None:
    plan = run("topk@10", PLAN)
    alone, three = baselines([run("dense", LUCKY)])[place(plan)], baselines(repeated())[place(plan)]
    assert (alone.final, three.final) == (1.0, 1.4)
    assert (alone.target(0.8), three.target(0.8)) == (1.5, 2.0)
    assert three.steps_to(2.0) == pytest.approx(40.0), "of 36.7, 40 and 43.3"
    assert three.steps_to(1.2) == math.inf, "two of three do not get there"
    late = LossCurve(AT, (5.0, 4.4, 3.4, 2.0, 1.0))
    assert alone.efficiency(late) == pytest.approx(0.901, abs=1e-3)
    assert three.efficiency(late) == pytest.approx(0.957, abs=1e-3), "of 0.901, 0.957 and 0.975"
    assert alone.worth(plan.curve) == pytest.approx(39.3 / 50, abs=0.01)
    assert three.worth(plan.curve) == pytest.approx(46.7 / 50, abs=0.01), "of 39.3, 46.7 and 50"


def test_most_of_an_even_number_of_dense_runs_reach_the_target() -> None:
    """Two of these four never reach the mean of the middle two, 1.75, so no plan could be measured by it."""
    ends = ((1.0, 0.9), (1.5, 1.4), (2.0, 1.9), (2.5, 2.4))
    runs = [run(f"dense:repeat={number}", (5.0, 4.0, 3.0, *end)) for number, end in enumerate(ends[1:], 1)]
    (base,) = baselines([run("dense", (5.0, 4.0, 3.0, *ends[0])), *runs]).values()
    assert base.target(0.8) == 2.0
    assert base.steps_to(base.target(0.8)) == pytest.approx((36.667 + 40.0) / 2, abs=1e-3)


def test_a_repetition_is_of_its_own_seed_and_no_plan_in_hindsight() -> None:
    """Of seed 2 there is no repetition. A job that reaches what most dense runs reach has reached the target."""
    runs = [*repeated(run("topk@10", PLAN)), run("dense", DENSE := (5.0, 4.0, 3.0, 1.8, 1.0), seed=2)]
    assert baselines(runs)["lm", 4, 50, 2].curves == (LossCurve(AT, DENSE),)
    jobs = [
        RegretJob(
            policy="auto", seed=1, by_step=LossCurve(AT, PLAN), by_seconds=LossCurve(AT, PLAN), held="x"
        )
    ]
    lucky = cell("lm", 4, "1gbit", [runs[0], runs[3]], jobs, lambda _: 1.0, 0.8)
    found = cell("lm", 4, "1gbit", runs, jobs, lambda _: 1.0, 0.8)
    assert lucky is not None
    assert found is not None
    assert set(found.plans) == {"dense", "topk@10"}
    assert (lucky.jobs["auto"].reached, found.jobs["auto"].reached) == (0, 1)
    assert found.plans["dense"].times == (1.0, 1.0)
    assert found.regret("auto", 1.0) == pytest.approx(0.0)
    assert found.dense_run.times == (pytest.approx(36.667 / 40, abs=1e-3), 1.0)
    assert found.against_dense("auto") == pytest.approx(40 / 36.667 - 1.0, abs=1e-3), "of its own seed"
    (learned,) = found.learned["auto"]
    assert learned.above_dense == pytest.approx(1.6 / 1.4 - 1.0)


def test_standings_show_by_how_much_dense_runs_differ() -> None:
    found = {
        standing.plan: standing for standing in standings(repeated(run("topk@10", PLAN)), lambda _: 1.0, 0.8)
    }
    assert found["dense"].above_dense is not None
    assert found["dense"].above_dense.median == pytest.approx(1.0 / 1.4 - 1.0)
    assert found["dense:repeat=2"].above_dense is not None
    assert found["dense:repeat=2"].above_dense.median == pytest.approx(1.6 / 1.4 - 1.0)
    assert (found["topk@10"].reached, found["dense:repeat=2"].reached) == (1, 1)
