"""What policy auto believes of plans: limits that whole jobs seldom meet, on both sides of each (docs/constants.md)."""

import dataclasses

import pytest

from gravac import offers
from gravac.policies import AutoPolicy, Plan
from gravac.policies.auto import beliefs as rule
from gravac.policies.auto.beliefs import Belief, Times, believe, learn
from gravac.policies.auto.choose import Search
from gravac.policies.auto.plans import plans
from gravac.policies.auto.settings import AutoState, Beliefs, Coding, Seen
from gravac.policies.auto.table import PlanFacts, PlanTable
from gravac.policies.base import DENSE
from gravac.protocol import WindowReport
from gravac.signals.efficiency import Efficiency
from tools.harness.plan_world import Job, World

SEVEN = Plan("nearest:levels=7", 10.1)


def held(world: World, policy: str = "auto", windows: int = 8) -> Job:
    job = Job(dataclasses.replace(world, noise=0.0), policy)
    assert job.windows(windows).phase == "hold"
    return job


def table(job: Job) -> PlanTable:
    assert isinstance(job.fold.policy, AutoPolicy)
    return job.fold.policy.table


def state_of(job: Job) -> AutoState:
    return AutoState.model_validate_json(job.fold.policy_state)


def after(
    job: Job, report: WindowReport | None = None, believed: dict[str, object] | None = None, **changes: object
) -> Search:
    """Return the newest window of a job as the rule sees it, with another report, other beliefs or another state."""
    state = state_of(job)
    known = state.beliefs.model_copy(update=believed or {})
    state = state.model_copy(update={"beliefs": known, **changes})
    report = report or job.reports[-1]
    lesson = learn(table(job), state.beliefs, report, state.decision, state.held_seconds)
    return Search(table(job), state, lesson, report)


def with_level(job: Job, sums: dict[str, object] | None = None, **changes: object) -> WindowReport:
    """Return the newest report of a job with other fields of its levels, or of their sums."""
    levels = tuple(
        level.model_copy(update={"sums": level.sums.model_copy(update=sums or {}), **changes})
        for level in job.reports[-1].levels
    )
    return job.reports[-1].model_copy(update={"levels": levels})


def timed(job: Job, step: float, exposed: float) -> WindowReport:
    """Return the newest report of a job with other times."""
    return with_level(job, step_seconds_median=step, exposed_seconds_median=exposed)


def again(job: Job, before: AutoState, report: WindowReport | None = None) -> rule.Lesson:
    """Return what the newest window teaches in an earlier state."""
    return learn(table(job), before.beliefs, report or job.reports[-1], before.decision, before.held_seconds)


def seen(plan: Plan, **changes: object) -> Seen:
    """Return a plan as measured in window 1: steps of a second, of which they wait a tenth."""
    given = {"step_seconds": 1.0, "exposed_seconds": 0.1, "window": 1, "fresh": True, "shown": 1}
    return Seen.model_validate({"codec": plan.codec, "cf": plan.cf, **given, **changes})


def believed(
    job: Job, rows: tuple[Seen, ...], plan: Plan, window: int = 1, step: int = 10_000, **changes: object
) -> Belief:
    """Return what is believed of a plan after these measurements, while dense steps are in force."""
    beliefs = Beliefs(seen=rows).model_copy(update=changes)
    return next(row for row in believe(table(job), beliefs, DENSE, window, step) if row.plan == plan)


def facts(job: Job, plan: Plan, **changes: object) -> PlanFacts:
    return dataclasses.replace(table(job).by_plan[plan], **changes)  # type: ignore[arg-type]


# What a window teaches.


@pytest.mark.parametrize(("phase", "least"), [("warmup", 1), ("explore", 2), ("hold", 3)])
def test_a_window_counts_from_a_few_settled_steps_on(phase: str, least: int) -> None:
    job = held(World(megabits=30.0))
    decision = state_of(job).decision.model_copy(update={"phase": phase})
    for steps in (least - 1, least):
        found = after(job, with_level(job, settled_steps=steps), decision=decision)
        assert found.lesson.settled == (steps == least)


@pytest.mark.parametrize(
    ("noise", "off", "moved"), [(0.01, 1.07, 0), (0.01, 1.09, 1), (0.04, 1.19, 0), (0.04, 1.21, 1)]
)
def test_a_step_time_has_moved_beyond_its_noise(noise: float, off: float, moved: int) -> None:
    job = held(World(megabits=30.0))
    reference = state_of(job).beliefs.reference
    assert reference is not None
    report = timed(job, off * reference, state_of(job).beliefs.reference_exposed)
    assert after(job, report, {"noise": noise}).beliefs.off == moved


@pytest.mark.parametrize(
    ("times", "noise", "moved"), [(1.9, 0.02, False), (2.1, 0.02, True), (2.1, 0.2, True), (2.1, 0.23, False)]
)
def test_a_wait_that_doubled_has_moved(times: float, noise: float, moved: bool) -> None:
    job = held(World(ranks=2, megabits=100.0))
    usual = Beliefs(noise=noise, reference=0.5, reference_exposed=0.1)
    was, _ = rule._compared(table(job), usual, job.plan, Times(0.5, 0.1 * times), measured_wait=True)
    assert (was is not None) == moved


def test_two_windows_in_a_row_are_a_move() -> None:
    """Then the noise is no less than was assumed at first."""
    job = held(World(megabits=30.0))
    reference = state_of(job).beliefs.reference
    assert reference is not None
    report = timed(job, 2.0 * reference, state_of(job).beliefs.reference_exposed)
    rules = []
    for before in (0, 1):
        found = after(job, report, {"off": before, "slower": True, "noise": 0.001})
        rules.append(found.choose().what)
    assert rules[0] == "suspected"
    assert rules[1] in ("tried", "settled")
    assert found.beliefs.noise == 0.02


@pytest.mark.parametrize(("elapsed", "tried"), [(0.0, False), (1e5, True)])
def test_faster_steps_that_wait_as_long_say_nothing_of_the_network(elapsed: float, tried: bool) -> None:
    """A plan that sends more is tried, as the line may be off, where that can be afforded."""
    job = held(World(megabits=30.0))
    before = state_of(job).beliefs
    assert before.reference is not None
    assert job.plan != DENSE
    report = timed(job, 0.85 * before.reference, 0.99 * before.reference_exposed)
    found = after(job, report, {"off": 1, "slower": False, "elapsed": elapsed})
    choice = found.choose()
    assert found.lesson.moved, "the step has"
    assert (found.beliefs.per_byte, found.beliefs.line_error) == (before.per_byte, 1.0)
    assert (choice.plan.cf < job.plan.cf) == tried


def test_a_window_counts_a_fifth_in_the_noise_of_the_gradient_and_in_the_step_time() -> None:
    job = held(World(ranks=4, megabits=30.0, reference=True))
    assert state_of(job).beliefs.confirmed == pytest.approx(0.13)
    row = next(row for row in state_of(job).beliefs.seen if row.plan == job.plan)
    found = after(job, timed(job, 1.05 * row.step_seconds, row.exposed_seconds))
    assert found.row(job.plan).seconds == pytest.approx((1.0 + 0.2 * 0.05) * row.step_seconds)
    job.change(confirmed=0.03)
    job.windows(1)
    assert state_of(job).beliefs.confirmed == pytest.approx(0.13 - 0.2 * 0.1)


@pytest.mark.parametrize(("times", "counts"), [(1.09, True), (1.11, False)])
def test_gradients_that_rose_are_not_taken_for_noise(times: float, counts: bool) -> None:
    job = held(World(ranks=4, megabits=30.0, reference=True))
    energy = state_of(job).beliefs.gradient
    assert energy is not None
    level = job.reports[-1].levels[-1].sums
    sums = {"gradient_sq": times * energy * level.steps, "raw_mean_sq": 1.0, "raw_dot_next": 0.0}
    confirmed = after(job, with_level(job, sums)).beliefs.confirmed
    assert confirmed is not None
    assert (confirmed < 0.12) == counts


@pytest.mark.parametrize(("usual", "holds"), [(0.13, True), (0.015, False)])
def test_what_is_known_first_of_the_noise_is_of_all_windows_so_far(usual: float, holds: bool) -> None:
    """The first window that holds a plan shows noise alone. The trials before it did so, too, or they did not."""
    job = Job(World(ranks=4, megabits=30.0, reference=True, confirmed=usual))
    while job.last.phase != "hold":
        job.windows(1)
    before, plan, tried = state_of(job), job.plan, len(job.reports)
    job.windows(1)
    report = with_level(job, {"raw_dot_next": 0.0})
    found = Search(table(job), before, again(job, before, report), report)
    choice = found.choose()
    assert found.beliefs.confirmed == pytest.approx(usual * tried / (tried + 1))
    assert (choice.plan == plan) == holds


@pytest.mark.parametrize(
    ("share", "before", "wakes"), [(0.54, 0.5, False), (0.56, 0.5, True), (0.99, None, False)]
)
def test_what_a_plan_lost_counts_no_more_once_the_gradient_compresses_better(
    share: float, before: float | None, wakes: bool
) -> None:
    """A tenth more energy in a tenth of the elements, under the same plan: after Top-k each other plan's has more."""
    job = held(World(megabits=30.0))
    curve = job.reports[-1].curve
    assert curve is not None
    gains = (*curve.gains[:20], share, *curve.gains[21:])
    report = job.reports[-1].model_copy(update={"curve": curve.model_copy(update={"gains": gains})})
    lost = seen(Plan("nearest:levels=3", 17.3), efficiency=0.5, steps=50.0, failures=1, tenth=0.1)
    mine = rule.row_of(state_of(job).beliefs, job.plan).model_copy(update={"tenth": before})
    others = (each for each in state_of(job).beliefs.seen if each.plan != job.plan)
    found = after(job, report, {"seen": (*others, mine, lost)})
    assert (found.row(lost.plan).steps == 0.0) == wakes
    assert rule.row_of(found.beliefs, job.plan).tenth == (share if wakes or before is None else before)


def test_after_a_plan_is_left_shares_are_compared_from_then_on() -> None:
    beliefs = Beliefs(seen=(seen(DENSE, tenth=0.5), seen(SEVEN, tenth=0.3)))
    found = rule.failed(beliefs, SEVEN, 4)
    assert [row.tenth for row in found.seen] == [None, None]
    assert rule.row_of(found, SEVEN).failures == 1


# What follows for the efficiency of plans.


@pytest.mark.parametrize(("steps", "shows"), [(4, False), (5, True)])
def test_a_trial_needs_a_few_steps_next_to_the_dense_reference(steps: int, shows: bool) -> None:
    job = held(World(kind="adam", reference=True, megabits=30.0))
    sums: dict[str, object] = {"progress_steps": steps, "reference_sq": 1.0, "moved_dot_reference": 0.5}
    found = rule._tried(table(job), with_level(job, sums).levels[-1], Efficiency(0.98, 0.96, 1.0))
    assert found is not None
    assert (found.likely < 0.9) == shows


@pytest.mark.parametrize(("steps", "error"), [(5, 0.05), (80, 0.025), (100, 0.0228218)])
def test_the_error_of_an_efficiency_falls_with_the_root_of_its_steps(steps: int, error: float) -> None:
    row = believed(held(World(megabits=30.0)), (seen(SEVEN, efficiency=0.9, steps=steps),), SEVEN)
    assert row.efficiency_error == pytest.approx(error, rel=1e-3)
    assert row.efficiency == pytest.approx((20 * 0.995 + steps * 0.9) / (20 + steps))


def test_the_newest_two_hundred_steps_count() -> None:
    """Of 50 steps that lose all and 200 before that lose nothing."""
    job = held(World(ranks=4, megabits=30.0, kind="adam", reference=True), windows=12)
    row = next(row for row in state_of(job).beliefs.seen if row.plan == job.plan)
    assert row.steps == 200
    found = after(job, with_level(job, {"moved_dot_reference": -1.0}))
    assert found.row(job.plan).steps == 200
    worst = 1 / (1 + 0.4 * 4.605)
    now = next(row for row in found.beliefs.seen if row.plan == job.plan)
    assert now.efficiency == pytest.approx((200 * row.efficiency + 50 * worst) / 250, abs=0.002)  # type: ignore[operator]


def test_what_a_plan_showed_counts_half_after_ever_more_windows() -> None:
    """Four, and twice as many with each failure, up to four."""
    job = held(World(megabits=30.0))
    for failures, windows in ((0, 4), (1, 8), (2, 16), (4, 64), (5, 64)):
        row = seen(SEVEN, efficiency=0.5, steps=80.0, failures=failures)
        error = believed(job, (row,), SEVEN, 1 + windows).efficiency_error
        assert error == pytest.approx(0.25 / (20 + 40) ** 0.5), failures
        good = seen(
            SEVEN, efficiency=0.99, steps=80.0, failures=failures, barred=(1 + windows) * (failures > 0)
        )
        rests = [believed(job, (good,), SEVEN, 1 + after).keeps for after in (windows - 1, windows)]
        assert rests == ([False, True] if failures else [True, True]), failures


@pytest.mark.parametrize(("likely", "tried"), [(0.966, True), (0.964, False)])
def test_under_adam_a_plan_may_be_tried_that_is_expected_to_lose_a_little_more(
    likely: float, tried: bool
) -> None:
    """Three quarters of the bound."""
    job = held(World(kind="adam", reference=True, megabits=30.0))
    kept = facts(job, SEVEN).kept
    assert kept is not None
    changed = facts(job, SEVEN, kept=kept.model_copy(update={"likely": likely, "low": 0.95}))
    own = dataclasses.replace(
        table(job), rows=tuple(changed if row.plan == SEVEN else row for row in table(job).rows)
    )
    rows = believe(own, Beliefs(), DENSE, 1, 1)
    assert next(row for row in rows if row.plan == SEVEN).doubtful == tried


# What follows for the seconds of their steps.


@pytest.mark.parametrize("ratio", [0.2, 2.5])
def test_coding_times_of_other_codecs_are_corrected(ratio: float) -> None:
    """By what one codec showed, as a machine is slow for all; they are off by half, where not measured."""
    seven = facts(held(World(megabits=30.0)), SEVEN)
    assert rule._coding(Beliefs(), seven) == pytest.approx((seven.coding, 0.5 * seven.coding))
    other, own = (Beliefs(codings=(Coding(family=each, ratio=ratio),)) for each in ("topk", "nearest"))
    likely = ratio * seven.coding
    assert rule._coding(other, seven) == pytest.approx((likely, 0.5 * likely))
    assert rule._coding(own, seven) == pytest.approx((ratio * seven.coding, 0.02 * ratio * seven.coding))


def test_the_network_as_measured_at_the_start_is_off_by_half() -> None:
    """And so is one that was not, by the first plan alone."""
    job = held(World(megabits=30.0, probe=None))
    row = seen(DENSE, exposed_seconds=1.0)
    line = rule._line(table(job), Beliefs(seen=(row,)), row)
    assert (line.own, line.waiting, line.error) == (0.0, 0.0, 0.5)
    job = held(World(megabits=30.0))
    dense = table(job).dense
    assert dense.exchange is not None
    row = seen(DENSE, step_seconds=1.0 + dense.exchange, exposed_seconds=dense.exchange)
    line = rule._line(table(job), Beliefs(seen=(row,)), row)
    assert (line.per_byte, line.error) == (pytest.approx(dense.exchange / dense.size), 0.5)


@pytest.mark.parametrize(("times", "contradicted"), [(0.45, True), (0.6, False), (1.9, False), (2.1, True)])
def test_a_plan_that_waits_twice_or_half_as_long_contradicts_what_was_known(
    times: float, contradicted: bool
) -> None:
    """Of the network as measured at the start, a wait half as long may be one that hides."""
    job = held(World(megabits=30.0))
    seven = facts(job, SEVEN)
    assert seven.exchange is not None
    row = seen(SEVEN, step_seconds=3.0, exposed_seconds=times * 2.0)
    known = Beliefs(seen=(row,), waiting=0.0, per_byte=2.0 / seven.size, noise=0.001)
    line = rule._line(table(job), known, row)
    assert (line.per_byte == pytest.approx(times * 2.0 / seven.size)) == contradicted
    start = table(job).dense.exchange or 0.0
    longer = seen(SEVEN, step_seconds=3.0, exposed_seconds=times * seven.exchange)
    line = rule._line(table(job), Beliefs(seen=(longer,), noise=0.0), longer)
    assert (line.per_byte > 1.5 * start / table(job).dense.size) == (contradicted and times > 1.0)


@pytest.mark.parametrize(("times", "determined"), [(1.35, False), (1.45, True)])
def test_two_plans_determine_the_line_if_their_bytes_are_apart(times: float, determined: bool) -> None:
    job = held(World(megabits=30.0, probe=None))
    rows = (facts(job, DENSE, size=1000.0 * times), facts(job, SEVEN, size=1000.0))
    two = (seen(DENSE), seen(SEVEN))
    line = rule._line(dataclasses.replace(table(job), rows=rows), Beliefs(seen=two), two[0])
    assert line.determined == determined


def test_what_hides_bounds_what_bytes_take() -> None:
    """Of two seconds that were expected a tenth shows, and one hides: the bytes take no longer than these."""
    job = held(World(megabits=30.0))
    size = facts(job, SEVEN).size
    row = seen(SEVEN, step_seconds=10.0, exposed_seconds=0.1)
    known = Beliefs(seen=(row,), waiting=-1.0, per_byte=3.0 / size, noise=0.0)
    line = rule._line(table(job), known, row)
    assert (line.waiting, line.per_byte * size, line.error) == pytest.approx((-1.0, 1.1, 1.0))


def test_an_exchange_may_hide_behind_half_of_a_steps_own_work() -> None:
    job = held(World(megabits=30.0))
    dense = table(job).dense
    line = rule._Line(2.0, 0.0, -0.5, 4.0 / dense.size, 0.0, True)
    seconds, _, _, least, _, _ = rule._seconds(table(job), Beliefs(), dense, line, None)
    assert (seconds, least) == pytest.approx((2.0 + 3.5, 2.0 + 3.5 - 0.5 * 2.0))


@pytest.mark.parametrize(("share", "times"), [(0.11, 1.0), (0.05, 2.0)])
def test_a_prediction_is_no_knowledge_far_beyond_what_was_sent(share: float, times: float) -> None:
    """More than ten times the bytes: then the wait may be as many times longer."""
    job = held(World(megabits=30.0, probe=None))
    dense = table(job).dense
    line = rule._Line(1.0, 0.0, 0.0, 1.0 / dense.size, 0.0, True)
    known = Beliefs(largest=share * dense.link_bytes)
    assert rule._seconds(table(job), known, dense, line, None)[4] == pytest.approx(1.0 + times)


# What a job may choose from.


def test_strengths_of_a_compressor_that_the_user_chose() -> None:
    assert [plan.cf for plan in plans((), "dgc")] == [1, 2, 4, 10, 25, 50, 100, 200, 400, 1000]


def test_coding_takes_as_long_as_its_codec_states_and_a_little_more() -> None:
    """The error memory, and Huffman coding by the bytes without it, of which a rank need not decode its own."""
    assert offers.coding_seconds("nearest:levels=7", 10.1, 1000, 2) == pytest.approx(
        1000 * (1.5 + 2.4 + 2 * 3.0) * 1e-9
    )
    assert offers.coding_seconds("dense", 1.0, 1000, 2) == 0.0
    encode, decode = offers.pass_ns("nearest:levels=7,coding=huffman", 10.0, 2)
    assert encode == pytest.approx(2.4 + 3.2 * 0.4)
    assert decode == pytest.approx(2 * 3.0 + 2.6 * 0.4)


@pytest.mark.parametrize(
    ("plan", "backlog", "counts"),
    [
        (Plan("dither:levels=7", 10.1), 0.0, False),
        (Plan("dither:levels=7", 10.1), 0.5, True),
        (SEVEN, 0.0, True),
    ],
)
def test_what_is_rounded_at_random_is_not_measured_by_what_comes_late(
    plan: Plan, backlog: float, counts: bool
) -> None:
    """A GPT under SGD kept 45 % of its progress with 3 levels at random, while its backlog showed 99 %."""
    job = held(World(kind="sgd", reference=True, megabits=30.0))
    sums = {"residual_dot_gradient": backlog * job.reports[-1].levels[-1].sums.gradient_sq}
    report = with_level(job, sums)
    found = rule._kept(table(job), Beliefs(), plan, report.levels[-1], report, "hold")
    assert (rule.row_of(found, plan).steps > 0.0) == counts
