"""Regret: times to target relative to dense, the best plan in hindsight, alone, rivals, and what a policy learned."""

import math
from dataclasses import replace

import pytest

from gravac_lab.tournament import LossCurve, Run
from gravac_lab.tournament.regret import Cell, RegretJob, cell, family
from lab.tests.support.tournament import AT, run

DENSE = (5.0, 4.0, 3.0, 2.0, 1.0)
TARGET = 0.8
"""Of 50 steps: the loss of dense after 40, which is 2."""
SECONDS = {"dense": 1.0, "alone": 0.1, "nearest:levels=7@10": 0.5, "topk+bf16@100": 0.2, "topk+bf16@10": 0.6}


def job(policy: str, seconds: float, losses: tuple[float, ...] = DENSE, seed: int = 1) -> RegretJob:
    """A job whose steps all take as long."""
    return RegretJob(
        policy=policy,
        seed=seed,
        by_step=LossCurve(AT, losses),
        by_seconds=LossCurve(tuple(seconds * at for at in AT), losses),
        held="nearest:levels=7@10",
    )


RUNS = (
    run("dense", DENSE),
    run("alone", (5.0, 4.8, 4.5, 4.0, 3.0)),
    run("nearest:levels=7@10", (5.0, 4.0, 3.0, 2.0, 1.2)),  # as good as dense in all levels but the last
    run("topk+bf16@100", (5.0, 5.0, 5.0, 4.0, 2.0)),  # 50 steps to the target, and far off before
    run("topk+bf16@10", (5.0, 4.5, 4.0, 3.5, 3.0)),  # never there
)


def compared(*jobs: RegretJob, runs: tuple[Run, ...] = RUNS, seconds: dict[str, float] = SECONDS) -> Cell:
    found = cell("lm", 4, "1gbit", runs, jobs, lambda one: seconds[one.plan], TARGET)
    assert found is not None
    return found


def test_the_bound_decides_which_plan_is_best_in_hindsight() -> None:
    """Top-k 100x is fastest, at 50 steps of 0.2 s against 40 of 1 s, but loses a fifth and more of the efficiency."""
    found = compared(job("auto", 0.55), job("auto:bound=1", 0.25))
    assert (found.best(0.02).name, found.best(1.0).name) == ("nearest:levels=7@10", "topk+bf16@100")
    assert found.best(0.02).time == pytest.approx(20 / 40)
    assert found.best(1.0).time == pytest.approx(10 / 40)
    assert found.regret("auto", 0.02) == pytest.approx(0.1), "22 s against 20 s"
    assert found.regret("auto:bound=1", 1.0) == pytest.approx(0.0), "10 s each"
    assert found.regret("auto", 1.0) == pytest.approx(1.2)
    assert found.plans["topk+bf16@10"].reached == 0
    assert "alone" not in found.plans


def test_dense_is_best_where_no_plan_is_faster() -> None:
    """As on a fast link: with equal times, too, the advice is not to compress."""
    found = compared(job("auto", 1.01), seconds=dict.fromkeys(SECONDS, 1.0))
    assert found.plans["nearest:levels=7@10"].time == found.plans["dense"].time == 1.0
    assert found.best(1.0).name == "dense"
    assert found.regret("auto", 0.02) == pytest.approx(0.01)


def test_a_plan_of_unknown_efficiency_keeps_no_bound() -> None:
    """It reaches no level of dense's later part."""
    flat = (run("dense", DENSE), run("topk+bf16@100", (5.0,) * 5))
    found = compared(job("auto", 1.0), runs=flat)
    assert found.plans["topk+bf16@100"].efficiency is None
    assert not found.plans["topk+bf16@100"].keeps(0.9)
    assert found.best(0.9).name == "dense"


def test_each_seed_is_compared_with_its_own_dense_and_the_median_counts() -> None:
    """Losses of seed 2 are ten times those of seed 1, and in seed 3 the plan does not reach the target."""
    name = "nearest:levels=7@10"
    runs, jobs = [], []
    for seed, scale in ((1, 1.0), (2, 10.0), (3, 100.0)):
        scaled = tuple(scale * loss for loss in DENSE)
        runs += [run("dense", scaled, seed), run(name, scaled if seed < 3 else (500.0,) * 5, seed)]
        jobs.append(job("auto", 0.3 * seed, scaled, seed))
    found = compared(*jobs, runs=tuple(runs))
    assert found.plans["dense"].times == (1.0, 1.0, 1.0)
    assert found.plans[name].times == (0.5, 0.5, math.inf)
    assert (found.plans[name].time, found.plans[name].reached, found.plans[name].efficiency) == (0.5, 2, 1.0)
    assert found.jobs["auto"].times == pytest.approx((0.3, 0.6, 0.9))
    assert found.regret("auto", 0.02) == pytest.approx(0.2), "medians: 0.6 against 0.5"


def test_luck_is_what_a_plan_costs_that_was_chosen_on_other_seeds() -> None:
    """Seed 3 favors Top-k, which never reaches the target with the others: hindsight does not carry over."""
    seconds = {"dense": 1.0, "nearest:levels=7@10": 0.5, "topk+bf16@10": 0.2}
    runs = []
    for seed in (1, 2, 3):
        runs += [run("dense", DENSE, seed), run("nearest:levels=7@10", DENSE, seed)]
        runs.append(run("topk+bf16@10", DENSE if seed == 3 else (9.0,) * 5, seed))
    found = compared(job("auto", 0.5), runs=tuple(runs), seconds=seconds)
    assert (found.best(0.02).name, found.luck(0.02)) == ("nearest:levels=7@10", (0.0, 0.0, 0.0))
    once = tuple(one for one in runs if one.seed != 1)
    found = compared(job("auto", 0.5, seed=2), runs=once, seconds=seconds)
    assert found.luck(1.0) == pytest.approx((math.inf, 0.0)), (
        "Top-k is chosen for seed 2, as it was best on seed 3"
    )
    assert compared(job("auto", 0.5)).luck(0.02) == (), "one seed"


def test_a_job_without_dense_of_its_seed_is_left_out() -> None:
    assert compared(job("auto", 0.5), job("auto", 9.0, seed=2)).jobs["auto"].times == (0.5,)
    assert cell("lm", 4, "1gbit", RUNS, [job("auto", 9.0, seed=2)], lambda _: 1.0, TARGET) is None


def test_alone_counts_apart_from_plans() -> None:
    """Steps alone take a tenth, but here alone never reaches the target; where it does, it may be sooner."""
    found = compared(job("auto", 0.5))
    assert found.alone is not None
    assert found.against_alone("auto") == -1.0
    good = (replace(RUNS[1], curve=RUNS[0].curve), *(one for one in RUNS if one.plan != "alone"))
    assert compared(job("auto", 0.5), runs=good).against_alone("auto") == pytest.approx(4.0)
    assert compared(job("auto", 0.5, (9.0,) * 5)).against_alone("auto") is None, "neither gets there"
    assert compared(job("auto", 0.5), runs=RUNS[:1]).against_alone("auto") is None


def test_a_rival_is_taken_at_its_best_setting_and_speed_up_is_its_time_by_ours() -> None:
    found = compared(job("auto", 0.5), job("late", 0.5, (9.0,) * 5))
    best = found.rival(("topk", "topk+bf16"))
    assert best is not None
    assert best.name == "topk+bf16@100"
    assert found.speedup("auto", best) == pytest.approx(10 / 20)
    assert found.speedup("auto", found.plans["topk+bf16@10"]) == math.inf
    assert found.speedup("late", best) == 0.0
    assert found.speedup("late", found.plans["topk+bf16@10"]) is None
    assert found.rival(("powersgd",)) is None
    assert [
        family(plan) for plan in ("qsgd:bits=2,block=64@16", "topk+bf16@10/ef", "accordion:low=10", "dense")
    ] == [
        "qsgd",
        "topk+bf16",
        "accordion",
        "dense",
    ]


def test_what_a_job_learned_is_compared_at_equal_steps_however_long_they_took() -> None:
    """Dense ends at 1, alone at 3."""
    (learned,) = compared(job("auto", 0.01, (5.0, 4.0, 3.0, 2.0, 1.5))).learned["auto"]
    assert learned.above_dense == pytest.approx(0.5)
    assert learned.retained == pytest.approx(0.75)
    assert learned.worth == pytest.approx(45 / 50), "dense is at 1.5 after 45 of its 50 steps"
    (learned,) = compared(job("auto", 0.01), runs=RUNS[:1]).learned["auto"]
    assert (learned.above_dense, learned.retained, learned.worth) == (0.0, None, 1.0)
    better = job("auto", 0.01, (5.0, 4.0, 3.0, 2.0, 0.5))
    assert compared(better).learned["auto"][0].worth == 1.0
