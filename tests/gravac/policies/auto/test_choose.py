"""When policy auto holds, leaves, searches or looks: each limit on both sides of it (docs/constants.md)."""

import dataclasses

import pytest

from gravac.policies import Plan
from gravac.policies.auto import beliefs as rule
from gravac.policies.auto.beliefs import believe
from gravac.policies.auto.choose import Search, at_once
from gravac.policies.auto.settings import Beliefs
from gravac.policies.base import DENSE
from tests.gravac.policies.auto.test_beliefs import (
    after,
    again,
    facts,
    held,
    state_of,
    table,
    with_level,
)
from tools.harness.plan_world import Job, World

SEVEN = Plan("nearest:levels=7", 10.1)


def test_windows_are_short_until_a_plan_is_held() -> None:
    """One dense step, then two at a time; after six of these a normal window. A trial has ten."""
    job = Job(World(ranks=2, megabits=100.0, probe=None, noise=0.0))
    start = state_of(job)
    assert start.decision.window_steps == 1
    job.windows(1, levels=())
    for waited, steps in ((4, 2), (5, None)):
        found = Search(
            table(job),
            start.model_copy(update={"waited": waited}),
            rule.nothing(start.beliefs),
            job.reports[-1],
        )
        assert found.choose().window_steps == steps
    while job.last.phase != "explore":
        job.windows(1)
    assert job.last.window_steps == 10


@pytest.mark.parametrize(("waited", "gives_up"), [(4, False), (5, True)])
def test_a_trial_without_settled_steps_is_given_up_after_six_windows(waited: int, gives_up: bool) -> None:
    """And rests for as many."""
    job = held(World(megabits=30.0))
    decision = state_of(job).decision.model_copy(update={"phase": "explore"})
    found = after(job, with_level(job, settled_steps=0), decision=decision, waited=waited)
    assert (found.choose().what == "given_up") == gives_up
    if gives_up:
        row = next(row for row in found.beliefs.seen if row.plan == job.plan)
        assert row.until == found.report.window + 6


@pytest.mark.parametrize(("tried", "phase"), [(2, "explore"), (3, "hold")])
def test_a_search_tries_three_plans(tried: int, phase: str) -> None:
    job = Job(World(ranks=2, megabits=100.0, probe=None, noise=0.0))
    before = state_of(job)
    while job.windows(1).phase != "explore":
        before = state_of(job)
    found = Search(
        table(job), before.model_copy(update={"trials": tried}), again(job, before), job.reports[-1]
    )
    assert found.choose().phase == phase


@pytest.mark.parametrize(("noise", "margin"), [(0.005, 0.02), (0.03, 0.06)])
def test_another_plan_must_promise_more_than_the_noise(noise: float, margin: float) -> None:
    found = after(held(World(megabits=30.0)))
    found.change(beliefs=found.beliefs.model_copy(update={"noise": noise}))
    over = dataclasses.replace(found.row(DENSE), seconds=1.0, efficiency=1.0)
    for more, wins in ((-0.001, False), (0.001, True)):
        row = dataclasses.replace(over, seconds=1.0 / (1.0 + margin + more))
        assert found._wins(row, over) == wins


@pytest.mark.parametrize(("looks", "times"), [(0, 1), (3, 8), (4, 16), (5, 16)])
def test_dense_steps_are_looked_at_ever_less_often(looks: int, times: int) -> None:
    """After 50 windows in hold at first."""
    job = held(World(ranks=2, megabits=100.0, probe=None), windows=40)
    assert job.plan != DENSE
    for unlooked, looked in ((50 * times - 2, False), (50 * times - 1, True)):
        found = after(job, None, {"elapsed": 1e6}, looks=looks, unlooked=unlooked)
        assert (found.choose().plan == DENSE) == looked


@pytest.mark.parametrize(("times", "clear"), [(2.9, False), (3.1, True)])
def test_a_plan_that_saves_much_more_than_it_takes_is_tried_at_once(times: float, clear: bool) -> None:
    job = held(World(megabits=30.0))
    row = facts(job, SEVEN, exchange=10.0 - times * facts(job, SEVEN).coding)
    own = dataclasses.replace(table(job), rows=(facts(job, DENSE, exchange=10.0), row))
    assert at_once(own, believe(own, Beliefs(), DENSE, 0, 0)) == (SEVEN if clear else None)


@pytest.mark.parametrize(("exchange", "chosen"), [(0.52, 5.1), (0.56, 36.0)])
def test_of_late_plans_that_save_nearly_as_much_the_mildest_is_tried_at_once(
    exchange: float, chosen: float
) -> None:
    """Within 5 %: dense takes 11 s, the strong plan a tenth of a second."""
    job = held(World(kind="adam-aged", megabits=30.0))
    same = {"coding": 0.0, "kept": facts(job, Plan("topk+twobit", 5.1)).kept}
    mild = facts(job, Plan("topk+twobit", 5.1), **{**same, "exchange": 11.0 - 10.9 * (1.0 - exchange / 10.9)})
    strong = facts(job, Plan("topk+twobit", 36.0), **{**same, "exchange": 0.1})
    own = dataclasses.replace(table(job), rows=(facts(job, DENSE, exchange=11.0), mild, strong))
    found = at_once(own, believe(own, Beliefs(), DENSE, 0, 10_000))
    assert found is not None
    assert found.cf == chosen


@pytest.mark.parametrize(("share", "direct"), [(0.11, True), (0.09, False)])
def test_a_plan_that_sends_over_ten_times_more_is_reached_by_one_between(share: float, direct: bool) -> None:
    job = held(World(megabits=30.0))
    found = after(job, None, {"elapsed": 1e6})
    found.change(beliefs=found.beliefs.model_copy(update={"largest": share * table(job).dense.link_bytes}))
    step, toward = found._step_to(found.row(DENSE), found.row(job.plan))
    assert step is not None
    assert (step.plan == DENSE) == direct
    assert toward == (None if direct else DENSE)
