"""Worlds that lie to the auto policy: they are as they say, and each figure of them can be bad."""

from collections.abc import Iterator

import pytest

from gravac.policies import Plan
from gravac.policies.base import DENSE
from gravac.protocol import Candidate, Trial
from gravac.signals import efficiency
from lab.benchmarks.auto_worlds import (
    ADVERSITIES,
    drawn,
    lost_by_trials,
    lost_progress,
    measured,
    regret,
    retaken,
    table,
)
from tests.support.efficiencies import fixed_efficiencies
from tools.harness.cluster import level_sums
from tools.harness.plan_world import Job, Step, World, shows

SEVEN, STRONG = Plan("nearest:levels=7", 10.1), Plan("nearest:levels=2", 25.6)


@pytest.fixture(autouse=True)
def _fixed_table() -> Iterator[None]:
    with fixed_efficiencies():
        yield


def step(plan: Plan, window: int, *, trial: bool = False, seconds: float = 1.0, kept: float = 1.0) -> Step:
    return Step(plan, "explore" if trial else "hold", trial, 0, window, seconds, 1.0, 1.0, kept)


def trying(world: World, limit: float) -> Job:
    """Return a job whose first decision tries 7 levels at a price, and names bf16."""
    job = Job(world)
    job._in_force = job._in_force.model_copy(
        update={
            "phase": "explore",
            "cf_candidate": SEVEN.cf,
            "cf_minimum": SEVEN.cf,
            "codec": SEVEN.codec,
            "window_steps": 10,
            "trial": Trial(step_seconds=limit, cf=2.0, codec="bf16"),
        }
    )
    return job


def test_a_trial_whose_step_takes_too_long_ends_three_steps_later() -> None:
    world = World(noise=0.0)
    job = trying(world, 1.5 * world.seconds(SEVEN))
    job.disturb = lambda number: 2.0 if number == 2 else 1.0
    for _ in range(8):
        job.step()
    assert job.sent[:8] == [SEVEN] * 5 + [Plan("bf16", 2.0)] * 3
    (report,) = job.reports
    assert (report.first_step, report.last_step, report.cf) == (0, 4, SEVEN.cf)
    assert report.trial_seconds == pytest.approx(2.0 * world.seconds(SEVEN))
    assert [each.trial for each in job.played] == [True] * 5 + [False] * 3
    job.disturb = None
    job._arriving.clear()  # no decision arrives: windows have the job's length, under the same epoch
    while len(job.reports) < 2:
        job.step()
    later = job.reports[1]
    assert (later.first_step, later.last_step, later.trial_seconds) == (5, 4 + world.window, None)
    assert [(level.epoch, level.cf, level.codec) for level in later.levels] == [(report.epoch, 2.0, "bf16")]


def test_a_trial_within_its_price_ends_with_its_window() -> None:
    world = World(noise=0.0)
    job = trying(world, 1.5 * world.seconds(SEVEN))
    job.windows(1)
    assert (job.reports[0].last_step, job.reports[0].trial_seconds) == (9, None)


def test_a_slow_step_at_the_end_of_a_window_ends_the_trial_in_the_next() -> None:
    world = World(noise=0.0)
    job = trying(world, 1.5 * world.seconds(SEVEN))
    job.disturb = lambda number: 2.0 if number == 8 else 1.0
    for _ in range(12):
        job.step()
    assert [report.last_step for report in job.reports] == [9, 10]
    assert [report.trial_seconds for report in job.reports] == [
        None,
        pytest.approx(2.0 * world.seconds(SEVEN)),
    ]
    assert job.sent[11] == Plan("bf16", 2.0)


def test_a_token_bucket_is_fast_until_it_is_empty() -> None:
    world = World(megabits=10.0, burst=30e6, noise=0.0)
    link, plain = world.cost(DENSE).link_bytes, World(megabits=10.0, noise=0.0)
    assert world.seconds(DENSE, 0, 30e6) < plain.seconds(DENSE) / 10
    assert world.seconds(DENSE, 0, 0.0) == pytest.approx(plain.seconds(DENSE))
    assert world.left(DENSE, 0, 30e6, 1.0) == pytest.approx(30e6 - link + world.rate(0), rel=0.1)
    job = Job(world)
    while len(job.sent) < 40:
        job.step()
    assert job._tokens <= world.burst
    dense = [each.seconds for each in job.played if each.plan == DENSE]
    assert not dense or max(dense) <= plain.seconds(DENSE) * 1.01


def test_a_world_changes_when_it_says() -> None:
    slow = World(link=((100, 0.1),))
    assert slow.seconds(DENSE, 99) == World().seconds(DENSE)
    assert slow.exposed(DENSE, 100) > 9 * slow.exposed(DENSE, 99)
    late = World(late=(100, 60, 0.03))
    assert [round(late.exposed(DENSE, at) - late.exposed(DENSE, 0), 9) for at in (99, 100, 159, 160)] == [
        0.0,
        0.03,
        0.03,
        0.0,
    ]
    young, restarts = World(young=(50, 0.2)), World(restarts=150)
    assert (young.efficiency(SEVEN, 49), young.efficiency(SEVEN, 50)) == (0.2, World().efficiency(SEVEN))
    dips = [restarts.efficiency(SEVEN, at) < restarts.efficiency(SEVEN) for at in (0, 149, 150, 249, 250)]
    assert dips == [False, False, True, True, False]
    wrong = World(wrong=0.3, kind="adam")
    mild, strong = (World(kind="adam").efficiency(plan) - wrong.efficiency(plan) for plan in (SEVEN, STRONG))
    assert 0.0 < mild < strong
    noisy = World(confirmed=0.1, first_confirmed=(0.5, 100))
    assert [noisy.confirmed_at(at) for at in (0, 100, 2000)] == [0.5, 0.25, 0.1]
    assert noisy.efficiency(STRONG, 0) < noisy.efficiency(STRONG, 2000)


def test_hiccups_take_ten_times_as_long() -> None:
    job = Job(World(noise=0.0, hiccups=0.05))
    for _ in range(400):
        job.step()
    factors = [each.factor for each in job.played]
    assert set(factors) == {1.0, 10.0}
    assert 5 <= factors.count(10.0) <= 40


@pytest.mark.parametrize("kind", ["sgd", "adam", "adam-aged", "adam-low-beta"])
@pytest.mark.parametrize("eta", [0.4, 0.8, 0.95])
def test_windows_show_what_a_plan_keeps(kind: str, eta: float) -> None:
    """Next to a dense reference of many steps what simulations say weighs little."""
    world, plan = World(kind=kind, ranks=4), Plan("topk", 10.0)
    sums = level_sums(0, plan.cf, 10_000, 10_000, 1.0, 0.1, plan.codec).sums
    found = efficiency.measured(shows(eta, plan, world, 0.13, sums), "topk", plan.cf, kind, 0.13, 4)
    assert found is not None
    expected = world.expected(plan)
    late = efficiency.counts_late("topk", kind)
    assert found.likely == pytest.approx(min(eta, expected) if late else eta, abs=0.002)


def test_few_steps_show_it_with_noise() -> None:
    def shown(noise: float) -> list[float]:
        job = Job(World(kind="adam", reference=True, shown_noise=noise, noise=0.0))
        job.windows(12)
        return [
            (level.codec, level.cf, round(level.sums.moved_dot_reference, 6))
            for report in job.reports[4:]
            for level in report.levels
            if level.cf > 1.0
        ]

    plans = {(codec, cf) for codec, cf, _ in shown(0.0)}
    assert len(set(shown(0.0))) == len(plans), "one figure for each plan"
    assert len(set(shown(0.05))) > 4 + len(plans)


def test_a_trial_costs_what_it_takes_longer_than_the_plan_held_before() -> None:
    job = Job(World())
    job.played = [step(DENSE, 0), step(SEVEN, 1, trial=True, seconds=3.0), step(DENSE, 2)]
    job.seconds = 5.0
    assert lost_by_trials(job) == pytest.approx(2.0 / 5.0)
    job.played[1] = step(SEVEN, 1, trial=True, seconds=0.5)
    assert lost_by_trials(job) == 0.0


def test_progress_counts_as_lost_from_the_third_window_after_one_that_showed_it() -> None:
    job = Job(World())
    job.played = [step(SEVEN, window, kept=0.88) for window in range(5)]
    assert lost_progress(job) == pytest.approx(2 * 0.1 / 5)
    job.played = [step(SEVEN, window, kept=0.88 if window != 2 else 1.0) for window in range(5)]
    assert lost_progress(job) == 0.0
    job.played = [step(SEVEN, window, kept=0.98) for window in range(5)]
    assert lost_progress(job) == 0.0


@pytest.mark.parametrize(("kept", "found"), [(0.9, [3]), (0.99, [])])
def test_a_plan_is_retaken_when_its_last_measurement_was_outside_the_bound(
    kept: float, found: list[int]
) -> None:
    job = Job(World())
    row = Candidate(
        cf=SEVEN.cf,
        codec=SEVEN.codec,
        gain=None,
        samples_per_second=None,
        useful_samples_per_second=None,
        window=1,
        verdict="passed",
        efficiency=kept,
    )
    start = job.decisions[0]
    taken = {"cf_candidate": SEVEN.cf, "cf_minimum": SEVEN.cf, "codec": SEVEN.codec, "phase": "hold"}
    old = row.model_copy(update={"efficiency": 0.99})  # what the policy expects now; window 1 measured it
    job.decisions = [
        start.model_copy(update={"window": 0, **taken}),
        start.model_copy(update={"window": 1, "candidates": (row,)}),
        start.model_copy(update={"window": 2, "candidates": (old,)}),
        start.model_copy(update={"window": 3, "candidates": (old,), **taken}),
        start.model_copy(update={"window": 4, "candidates": (old,), **taken}),
    ]
    assert retaken(job) == found


def test_regret_is_against_the_best_plan_in_hindsight() -> None:
    world = World(megabits=10.0, noise=0.0)
    job = Job(world, "dense")
    for _ in range(100):
        job.step()
    best, seconds = world.best_static(100.0, 0.02)
    assert best != DENSE
    assert regret(job) == pytest.approx(world.seconds(DENSE) * 100 / seconds - 1.0)
    changing = World(megabits=10.0, noise=0.0, link=((50, 0.1),))
    again = Job(changing, "dense")
    for _ in range(100):
        again.step()
    assert regret(again) > regret(job)


def test_each_adversity_is_in_worlds_and_a_world_can_be_played_again() -> None:
    for name in ADVERSITIES:
        one, _, names = drawn(0, 2, name)
        assert names == (name,)
        assert name == "none" or one != drawn(0, 2, "none")[0]
        assert len(drawn(0, 3, name)[2]) == 2
    results = [measured(0, None, number) for number in range(4)]
    assert results == [measured(0, None, number) for number in range(4)]
    assert "| all | 4 |" in table(results)[-1]
