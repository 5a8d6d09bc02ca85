"""Policy observe: it never compresses, and says what policy auto would do, by the same code."""

from collections.abc import Iterator

import pytest

from gravac.policies.base import DENSE, Plan
from gravac.policies.observe import lines
from gravac.protocol import PhaseSeconds, Spread
from tests.support.efficiencies import fixed_efficiencies
from tools.harness.plan_world import Job, World

STEPS = 50


@pytest.fixture(autouse=True)
def _fixed_table() -> Iterator[None]:
    with fixed_efficiencies():
        yield


def spent(communicate: float, compute: float, data_wait: float = 0.0) -> PhaseSeconds:
    """Phases of a window, from seconds of a step."""
    times = {"data_wait": data_wait, "compute": compute, "communicate": communicate}
    return PhaseSeconds(compress=0.0, decompress=0.0, **{name: STEPS * each for name, each in times.items()})


def ranks(*communicate: float) -> Spread:
    """Waiting of ranks, as least, median, 95th percentile and most, from seconds of a step."""
    zero = (0.0,) * 4
    least, middle, many, most = (STEPS * each for each in communicate)
    return Spread(
        step_seconds=zero,
        data_wait=zero,
        compute=zero,
        compress=zero,
        communicate=(least, middle, many, most),
        decompress=zero,
    )


def verdict(job: Job, windows: int = 3, **changes: object) -> list[str]:
    return lines(job.windows(windows, **changes).reason)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("megabits", [20.0, 100.0, 1000.0])
def test_it_names_the_plan_that_auto_tries_first(kind: str, megabits: float) -> None:
    world = World(ranks=2, megabits=megabits, kind=kind, probe=None, noise=0.0, reference=True)
    auto, job = Job(world), Job(world, policy="observe")
    auto.windows(10)
    tried = next(decision for decision in auto.decisions if decision.rule == "explore")
    plan = Plan(tried.codec, tried.cf_candidate)
    said = verdict(job, phases=spent(world.exposed(DENSE), world.compute))
    assert auto.fold.policy.table.by_plan[plan].label in said[2]  # type: ignore[attr-defined]
    times = tried.reason.partition("predicted ")[2].partition(" times")[0]
    assert f"samples/s, {times} times those of dense" in said[2]


def test_three_lines_on_a_slow_network() -> None:
    world = World(ranks=2, megabits=100.0, kind="adam", probe=None, noise=0.0, reference=True)
    job = Job(world, policy="observe")
    assert verdict(job, phases=spent(1.074, 0.3), spread=ranks(1.074, 1.074, 1.074, 1.074)) == [
        "Network: 78 % of a step is exposed communication (1.07 s of 1.37 s).",
        "Why: 2 ranks exchange 12.8 MB of gradients a step; of a step, computation 22 %.",
        "Next: send 10.1x fewer bytes with 7 levels: steps of about 437 ms, each of which is expected to keep 98 % "
        'of the progress, so 143 useful samples/s, 3.07 times those of dense, by policy="auto".',
    ]
    rows = {Plan(row.codec, row.cf): row for row in job.last.candidates}
    assert rows[DENSE].verdict == "chosen"
    assert len(rows) > 10
    assert all(
        row.efficiency is not None and row.predicted_samples_per_second for row in list(rows.values())[1:]
    )


def test_it_never_compresses_nor_begins_an_epoch() -> None:
    job = Job(World(ranks=2, megabits=20.0), policy="observe")
    job.windows(10)
    assert set(job.sent) == {DENSE}
    assert {(each.epoch, each.cf_candidate, each.codec) for each in job.decisions} == {(0, 1.0, None)}
    assert job.fold.policy.ladder() == (1.0,)


def test_a_fast_network_is_not_the_problem() -> None:
    job = Job(World(ranks=2, megabits=1e5), policy="observe")
    said = verdict(job, phases=spent(0.01, 0.79, 0.2))
    assert said[0] == (
        "Not the network: 1 % of a step is exposed communication (10.0 ms of 1 s); compression can save at most that."
    )
    assert said[2] == (
        "Next: load data faster, for which a step waits 20 % of its time: give the loader more workers."
    )
    said = verdict(Job(World(ranks=2, megabits=1e5), policy="observe"), phases=spent(0.01, 0.99))
    assert said[2].startswith("Next: speed up computation, 99 % of a step")


def test_late_ranks_are_not_the_network() -> None:
    """The slowest rank waits least, and what the others wait longer they wait for it."""
    job = Job(World(ranks=2), policy="observe")
    said = verdict(job, phases=spent(0.4, 0.6), spread=ranks(0.04, 0.4, 0.7, 0.7))
    assert said[0] == (
        "Late ranks, not the network: 40 % of a step is exposed communication (400 ms of 1 s), 360 ms of it waiting "
        "for ranks that come later."
    )
    assert said[2] == "Next: find what delays the slowest rank, for which the others wait."


def test_a_cause_that_covers_less_than_most_of_the_time_is_one_of_several() -> None:
    job = Job(World(ranks=2, megabits=100.0), policy="observe")
    said = verdict(job, phases=spent(0.4, 0.6), spread=ranks(0.1, 0.4, 0.7, 0.7))
    assert said[0] == (
        "Several causes: 40 % of a step is exposed communication (400 ms of 1 s): 300 ms waiting for ranks that come "
        "later, 100 ms transferring."
    )
    assert said[2] == "Next: find what delays the slowest rank, for which the others wait.", "the larger part"


def test_ranks_that_nothing_compares_are_not_said_to_be_in_time() -> None:
    job = Job(World(ranks=2, megabits=20.0), policy="observe")
    said = verdict(job, phases=spent(0.5, 0.5))
    assert said[0] == (
        "Network or late ranks: 50 % of a step is exposed communication (500 ms of 1 s); how much of it waits for late "
        "ranks is not known."
    )
    said = verdict(job, 1, phases=spent(0.5, 0.5), spread=ranks(0.5, 0.5, 0.5, 0.5))
    assert said[0].startswith("Network: 50 %"), "as in the windows that compare them"


def test_the_verdict_is_on_all_windows() -> None:
    job = Job(World(ranks=2, megabits=20.0), policy="observe")
    verdict(job, 1, phases=spent(0.0, 1.0))
    said = verdict(job, 1, phases=spent(1.0, 1.0), spread=ranks(1.0, 1.0, 1.0, 1.0))
    assert said[0].startswith("Network: 33 % of a step")
