"""Limits of the auto policy that whole jobs seldom meet: each on both sides of it (docs/constants.md)."""

import dataclasses
from collections.abc import Iterator

import pytest
from gravac.policies.auto.outlook import accepted_loss
from gravac.policies.auto.rule import AutoEvaluation
from gravac.policies.auto.space import plans
from gravac.policies.auto.timemodel import clear_start, coding, fit, hides, pass_ns, prior_coding

from gravac import offers
from gravac.policies import AutoPolicy, Plan
from gravac.policies.auto.settings import AutoState, Coding, Seen
from gravac.policies.base import DENSE
from gravac.protocol import GainCurve, PlanCost, WindowReport
from gravac.signals.efficiency import Efficiency
from tests.support.efficiencies import fixed_efficiencies
from tools.harness.cluster import job_spec
from tools.harness.plan_world import Job, World

SEVEN = Plan("nearest:levels=7", 10.1)


@pytest.fixture(autouse=True)
def _fixed_table() -> Iterator[None]:
    with fixed_efficiencies():
        yield


def held(world: World, policy: str = "auto", windows: int = 8) -> Job:
    job = Job(dataclasses.replace(world, noise=0.0), policy)
    assert job.windows(windows).phase == "hold"
    return job


def after(job: Job, report: WindowReport | None = None, **changes: object) -> AutoEvaluation:
    """Return the newest window of a job as the rule sees it, with another report or another state."""
    policy = job.fold.policy
    assert isinstance(policy, AutoPolicy)
    state = AutoState.model_validate_json(job.fold.policy_state).model_copy(update=changes)
    return AutoEvaluation(policy.settings, policy._space, state, report or job.reports[-1])


def state_of(job: Job) -> AutoState:
    return AutoState.model_validate_json(job.fold.policy_state)


def test_a_window_counts_three_tenths_in_the_noise_of_the_gradient() -> None:
    job = held(World(ranks=4, megabits=30.0, reference=True))
    assert state_of(job).confirmed == pytest.approx(0.13)
    job.change(confirmed=0.03)
    job.windows(1)
    assert state_of(job).confirmed == pytest.approx(0.13 - 0.3 * 0.1)


@pytest.mark.parametrize(("usual", "holds"), [(0.13, True), (0.015, False)])
def test_what_is_known_first_of_the_noise_is_of_all_windows_so_far(usual: float, holds: bool) -> None:
    """The first window that holds a plan shows noise alone. The trials before it did so, too, or they did not."""
    job = Job(World(ranks=4, megabits=30.0, reference=True, confirmed=usual))
    while job.last.phase != "hold":
        job.windows(1)
    before, plan, tried = state_of(job), job.plan, len(job.reports)
    job.windows(1)
    levels = [
        level.model_copy(update={"sums": level.sums.model_copy(update={"raw_dot_next": 0.0})})
        for level in job.reports[-1].levels
    ]
    report = job.reports[-1].model_copy(update={"levels": tuple(levels)})
    verdict = after(job, report, **dict(before)).decide()
    assert isinstance(verdict.state, AutoState)
    assert verdict.state.confirmed == pytest.approx(usual * tried / (tried + 1))
    assert (Plan(verdict.decision.codec, verdict.decision.cf_candidate) == plan) == holds


@pytest.mark.parametrize(("lost", "counts"), [(0.009, False), (0.011, True)])
def test_a_plan_that_loses_next_to_nothing_says_nothing_of_the_others(
    lost: float, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {10.1: (0.95, 1.0 - lost, 1.0)}
    offer = dataclasses.replace(offers.of("nearest"), sgd=kept)
    monkeypatch.setitem(offers._REGISTERED, "nearest", offer)
    offers.of.cache_clear()
    job = held(World(ranks=4, megabits=30.0, reference=True, severity=0.5), "auto:plans=nearest:levels=7")
    assert job.plan == SEVEN
    assert (state_of(job).severity < 1.0) == counts


@pytest.mark.parametrize(("steps", "shows"), [(4, False), (5, True)])
def test_a_trial_needs_a_few_steps_next_to_the_dense_reference(steps: int, shows: bool) -> None:
    job = held(World(kind="adam", reference=True, megabits=30.0))
    sums = (
        job.reports[-1]
        .levels[-1]
        .sums.model_copy(update={"progress_steps": steps, "reference_sq": 1.0, "moved_dot_reference": 0.5})
    )
    assert (after(job)._tried(sums, 0.99, Efficiency(0.98, 0.96, 1.0)) < 0.9) == shows


def test_each_rest_is_twice_as_long_as_the_last_one_up_to_a_limit() -> None:
    found, windows = after(held(World(megabits=30.0))), []
    for _ in range(7):
        found.rest(SEVEN)
        windows.append(next(each.windows for each in found.state.resting if each.plan == SEVEN))
    assert windows == [2, 4, 8, 16, 32, 64, 64]


@pytest.mark.parametrize(("share", "wakes"), [(0.57, False), (0.63, True)])
def test_a_plan_rests_no_longer_once_the_gradient_compresses_better(share: float, wakes: bool) -> None:
    """A fifth more energy in a tenth of the elements."""
    job = held(World(megabits=30.0))
    curve = job.reports[-1].curve
    assert curve is not None
    found = after(job, job.reports[-1].model_copy(update={"curve": _with_tenth(curve, 0.5)}))
    found.rest(SEVEN)
    found.report = job.reports[-1].model_copy(update={"curve": _with_tenth(curve, share)})
    found.wake()
    assert (not found.state.resting) == wakes


def _with_tenth(curve: GainCurve, share: float) -> GainCurve:
    return curve.model_copy(update={"gains": (*curve.gains[:20], share, *curve.gains[21:])})


@pytest.mark.parametrize(("late", "counts"), [(8, True), (9, False)])
def test_a_measured_efficiency_counts_for_eight_windows(late: int, counts: bool) -> None:
    found = after(held(World(megabits=30.0), windows=14))
    row = Seen(
        codec=SEVEN.codec,
        cf=SEVEN.cf,
        step_seconds=1.0,
        exposed_seconds=0.1,
        efficiency=0.5,
        window=found.report.window - late,
        fresh=True,
    )
    found.change(seen=(row,))
    assert (found.view(None).efficiency(SEVEN) == 0.5) == counts


@pytest.mark.parametrize(("looks", "times"), [(0, 1), (3, 8), (4, 16), (5, 16)])
def test_dense_steps_are_looked_at_ever_less_often(looks: int, times: int) -> None:
    """Where they cost little, after 50 windows at first; where they cost much, so that they take one hundredth."""
    cheap, dear = (
        after(held(World(megabits=1000.0)), looks=looks),
        after(held(World(megabits=10.0)), looks=looks),
    )
    assert cheap._patience(cheap.view(None)) == 50 * times
    view = dear.view(None)
    cost = (view.seconds(DENSE) / view.seconds(dear.plan) - 1.0) * 10 / 50
    assert cost > 0.5
    assert dear._patience(view) == pytest.approx(100 * cost * times)


@pytest.mark.parametrize(
    ("times", "noise", "moved"), [(1.9, 0.02, False), (2.1, 0.02, True), (2.1, 0.2, True), (2.1, 0.23, False)]
)
def test_a_wait_that_doubled_has_moved(times: float, noise: float, moved: bool) -> None:
    found = after(held(World(ranks=2, megabits=100.0)), reference_exposed=0.1, noise=noise)
    assert found.measured is not None
    measured = dataclasses.replace(found.measured, exposed_seconds=0.1 * times)
    assert found._network_moved(measured, 0.5, 0.01) == moved


@pytest.mark.parametrize(("ratio", "expected"), [(0.2, 1 / 3), (2.5, 2.5), (4.0, 3.0)])
def test_coding_times_of_other_codecs_are_corrected_within_limits(ratio: float, expected: float) -> None:
    """By what one codec showed: at most three times, at least a third."""
    space = after(held(World(megabits=30.0))).space
    plain = coding(space, (), SEVEN)
    assert coding(space, (Coding(family="topk", ratio=ratio),), SEVEN) == pytest.approx(expected * plain)
    assert coding(space, (Coding(family="nearest", ratio=ratio),), SEVEN) == pytest.approx(ratio * plain)


def test_a_step_is_its_own_work_at_least_in_part() -> None:
    """Where all of it waits, a fiftieth; and of an unknown network, each message waits 50 µs."""
    job = held(World(megabits=30.0, probe=None))
    space = after(job).space
    row = Seen(
        codec=None, cf=1.0, step_seconds=1.0, exposed_seconds=1.0, efficiency=1.0, window=1, fresh=True
    )
    model = fit(space, (row,), (), row, None, None)
    assert model.own == pytest.approx(0.02)
    assert model.waiting == pytest.approx(5e-5 * space.costs[DENSE].messages)


@pytest.mark.parametrize(("times", "determined"), [(1.35, False), (1.45, True)])
def test_two_plans_determine_the_line_if_their_bytes_are_apart(times: float, determined: bool) -> None:
    space = after(held(World(megabits=30.0, probe=None))).space
    costs = {
        plan: cost.model_copy(update={"link_bytes": 1000.0 * (times if plan == DENSE else 1.0)})
        for plan, cost in space.costs.items()
    }
    rows = [
        Seen(
            codec=plan.codec,
            cf=plan.cf,
            step_seconds=1.0,
            exposed_seconds=0.1,
            efficiency=1.0,
            window=1,
            fresh=True,
        )
        for plan in (DENSE, SEVEN)
    ]
    model = fit(dataclasses.replace(space, costs=costs), rows, (), rows[0], None, None)
    assert model.determined == determined


@pytest.mark.parametrize(("phase", "least"), [("warmup", 1), ("explore", 2), ("hold", 3)])
def test_a_window_counts_from_a_few_settled_steps_on(phase: str, least: int) -> None:
    job = held(World(megabits=30.0))
    decision = state_of(job).decision.model_copy(update={"phase": phase})
    for steps in (least - 1, least):
        levels = [level.model_copy(update={"settled_steps": steps}) for level in job.reports[-1].levels]
        report = job.reports[-1].model_copy(update={"levels": tuple(levels)})
        assert (after(job, report, decision=decision).measured is not None) == (steps == least)


@pytest.mark.parametrize(("noise", "margin"), [(0.005, 0.02), (0.03, 0.06)])
def test_another_plan_must_promise_more_than_the_noise(noise: float, margin: float) -> None:
    assert after(held(World(megabits=30.0)), noise=noise).margin == margin


@pytest.mark.parametrize(("progress", "kept"), [(0.889, 0.98), (0.865, 0.945)])
def test_a_trial_may_be_three_points_below_the_simulations(progress: float, kept: float) -> None:
    job = held(World(kind="adam", reference=True, megabits=30.0))
    sums = (
        job.reports[-1]
        .levels[-1]
        .sums.model_copy(update={"progress_steps": 9, "reference_sq": 1.0, "moved_dot_reference": progress})
    )
    assert after(job)._tried(sums, 1.0, Efficiency(0.99, 0.98, 1.0)) == pytest.approx(kept, abs=0.001)


@pytest.mark.parametrize(("likely", "tried"), [(0.966, True), (0.964, False)])
def test_under_adam_a_plan_may_be_tried_that_is_expected_to_lose_a_little_more(
    likely: float, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three quarters of the bound."""
    job = held(World(kind="adam", reference=True, megabits=30.0))
    offer = dataclasses.replace(offers.of("nearest"), adam={10.1: (0.95, likely, 1.0)})
    monkeypatch.setitem(offers._REGISTERED, "nearest", offer)
    offers.of.cache_clear()
    assert after(job, seen=(), resting=(), severity=1.0).view(None).may_keep(SEVEN) == tried


def test_no_plan_loses_more_than_four_percent_unless_the_user_lists_it() -> None:
    space = after(held(World(megabits=30.0))).space
    assert [accepted_loss(bound, space) for bound in (0.03, 1.0)] == [0.03, 0.04]
    assert accepted_loss(1.0, dataclasses.replace(space, limited=True)) == 1.0


def test_windows_are_short_until_a_plan_is_held() -> None:
    """One dense step, then two at a time; after six of these a normal window. A trial has ten."""
    job = Job(World(ranks=2, megabits=100.0, probe=None, noise=0.0))
    start = state_of(job)
    assert start.decision.window_steps == 1
    job.windows(1, levels=())
    waits = [
        after(job, decision=start.decision, waited=waited)._start().decision.window_steps for waited in (4, 5)
    ]
    assert waits == [2, None]
    while job.last.phase != "explore":
        job.windows(1)
    assert job.last.window_steps == 10


@pytest.mark.parametrize(("trials", "phase"), [(2, "explore"), (3, "hold")])
def test_a_search_tries_three_plans(trials: int, phase: str) -> None:
    job = Job(World(ranks=2, megabits=100.0, probe=None, noise=0.0))
    before = state_of(job)
    while job.windows(1).phase != "explore":
        before = state_of(job)
    found = after(job, **{**dict(before), "trials": trials})
    assert found.decide().decision.phase == phase


@pytest.mark.parametrize(("waiting", "tried"), [(0.12, True), (0.09, False)])
def test_a_plan_is_tried_for_what_it_could_hide(waiting: float, tried: bool) -> None:
    """Dense steps of a second wait for other ranks: a plan is tried if it could save a tenth."""
    job = held(
        World(megabits=20_000.0, latency=1e-9, elements=36_000, compute=1.0 - waiting, waiting=waiting)
    )
    assert any(plan != DENSE for plan in job.sent) == tried


@pytest.mark.parametrize(("times", "measured"), [(1.4, True), (1.6, False)])
def test_dense_steps_are_not_measured_where_they_take_half_as_long_again(
    times: float, measured: bool
) -> None:
    world = World(ranks=4, megabits=1000.0)
    plan = held(dataclasses.replace(world, compute=0.05)).plan
    slow, fast = world.exposed(DENSE), world.seconds(plan) - world.compute
    job = held(dataclasses.replace(world, compute=(slow - times * fast) / (times - 1.0)))
    assert job.plan == plan
    assert (DENSE in job.sent) == measured


@pytest.mark.parametrize(("megabits", "tried"), [(30.0, False), (300.0, True)])
def test_faster_steps_that_wait_as_long_say_nothing_of_the_network(megabits: float, tried: bool) -> None:
    """Dense is tried, as its line may be off, but not where it is predicted to take three times as long."""
    found = after(held(World(megabits=megabits)), off=1, slower=False)
    reference, per_byte = found.state.reference, found.state.per_byte
    assert found.measured is not None
    assert reference is not None
    assert found.plan != DENSE
    found.measured = dataclasses.replace(
        found.measured, step_seconds=0.85 * reference, exposed_seconds=0.99 * found.state.reference_exposed
    )
    decision = found._hold().decision
    assert decision.rule in ("explore", "reexplore"), "the step has moved"
    assert found.state.per_byte == per_byte
    assert (decision.cf_minimum == 1.0) == tried


@pytest.mark.parametrize(
    ("noise", "off", "moved"), [(0.01, 1.07, 0), (0.01, 1.09, 1), (0.04, 1.19, 0), (0.04, 1.21, 1)]
)
def test_a_step_time_has_moved_beyond_its_noise(noise: float, off: float, moved: int) -> None:
    found = after(held(World(megabits=30.0)), noise=noise)
    assert found.measured is not None
    assert found.state.reference is not None
    found.measured = dataclasses.replace(found.measured, step_seconds=off * found.state.reference)
    found._hold()
    assert found.state.off == moved


def test_two_windows_in_a_row_are_a_move() -> None:
    """Then the noise is no less than was assumed at first."""
    rules = []
    for before in (0, 1):
        found = after(held(World(megabits=30.0)), off=before, slower=True, noise=0.001)
        assert found.measured is not None
        assert found.state.reference is not None
        found.measured = dataclasses.replace(found.measured, step_seconds=2.0 * found.state.reference)
        rules.append(found._hold().decision.rule)
    assert rules[0] == "hold" != rules[1]
    assert found.state.noise == 0.02


def test_strengths_of_a_compressor_that_the_user_chose() -> None:
    assert [plan.cf for plan in plans((), "dgc")] == [1, 2, 4, 10, 25, 50, 100, 200, 400, 1000]


@pytest.mark.parametrize(("nbytes", "ladder"), [(985.0, (1.0, 2.0, 4.0)), (995.0, (1.0, 2.0))])
def test_plans_of_one_codec_that_send_as_much_are_one(nbytes: float, ladder: tuple[float, ...]) -> None:
    stated = tuple(
        PlanCost(codec=None, cf=cf, payload_bytes=int(size), link_bytes=size, messages=2.0)
        for cf, size in {1.0: 4000.0, 2.0: 1000.0, 4.0: nbytes}.items()
    )
    policy = AutoPolicy()
    assert policy.fitted(job_spec(policy.spec(), compressor="dgc", plans=stated)).ladder() == ladder


def test_coding_takes_as_long_as_its_codec_states_and_a_little_more() -> None:
    """The error memory, and Huffman coding by the bytes without it, of which a rank need not decode its own."""
    space = after(held(World(ranks=2, megabits=30.0))).space
    costs = {SEVEN: space.costs[SEVEN].model_copy(update={"decoded": 2})}
    space = dataclasses.replace(space, costs={DENSE: space.costs[DENSE], **costs})
    assert prior_coding(space, SEVEN) == pytest.approx(space.elements * (1.5 + 2.4 + 2 * 3.0) * 1e-9)
    encode, decode = pass_ns("nearest:levels=7,coding=huffman", 10.0, 2)
    assert encode == pytest.approx(2.4 + 3.2 * 0.4)
    assert decode == pytest.approx(2 * 3.0 + 2.6 * 0.4)


@pytest.mark.parametrize(("times", "clear"), [(2.9, False), (3.1, True)])
def test_a_plan_that_saves_much_more_than_it_takes_is_tried_at_once(times: float, clear: bool) -> None:
    space = after(held(World(megabits=30.0))).space
    took = prior_coding(space, SEVEN)
    seconds = {DENSE: 10.0, SEVEN: 10.0 - times * took}
    costs = {plan: space.costs[plan].model_copy(update={"seconds": each}) for plan, each in seconds.items()}
    found = clear_start(dataclasses.replace(space, costs=costs), [SEVEN], lambda _: 1.0)
    assert found == (SEVEN if clear else None)


@pytest.mark.parametrize(("exposed", "hidden"), [(0.29, True), (0.31, False)])
def test_an_exchange_of_which_little_shows_hides(exposed: float, hidden: bool) -> None:
    assert hides(-1.0, exposed) == hidden
