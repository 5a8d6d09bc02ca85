"""A trial has a price (promise P12): a step that takes too long ends it, on all ranks at the same step."""

from pathlib import Path
from typing import Any

import pytest

from gravac.protocol import Decision, Event, WindowReport
from gravac.traces import read_trace
from tests.support.ranks.harness import RunRanks

pytestmark = pytest.mark.distributed

WINDOW = 4
HELD, DENSE = (None, 40.0), 1.0
SLOW, PATIENT = 0.13, 100.0
"""Seconds that a step may take. A dense one takes 0.27 s on the link, whatever else the machine does."""
TRIAL = [*HELD, None], [None, DENSE, 9, [SLOW, 40.0, None]]
"""A window at CF 40, then nine dense steps, unless they are too slow."""


def records(folder: Path) -> tuple[list[WindowReport], list[Decision], list[str]]:
    found = [line.record for line in read_trace(folder / "tried" / "journal.jsonl")]
    reports = [record for record in found if isinstance(record, WindowReport)]
    events = [record.message for record in found if isinstance(record, Event)]
    return reports, [record for record in found if isinstance(record, Decision)], events


def lengths(reports: list[WindowReport]) -> list[int]:
    return [report.last_step - report.first_step + 1 for report in reports]


def alike(results: list[dict[str, Any]]) -> list[float]:
    """Return the CFs that the steps sent, the same on all ranks, as are the parameters."""
    for result in results:
        assert result["sent"] == results[0]["sent"]
        assert result["parameters"] == results[0]["parameters"]
        assert result["buckets"] >= 4
    return [cf for _, cf, _ in results[0]["sent"]]


@pytest.mark.parametrize(("world", "streams"), [(2, False), (3, False), (2, True)])
def test_a_slow_trial_ends_on_all_ranks_after_three_steps(
    run_ranks: RunRanks, tmp_path: Path, world: int, streams: bool
) -> None:
    """On a device as well, where a step's time is known when the next backward begins."""
    plays = [*TRIAL, [None, 20.0, 5]]
    results = run_ranks("slow_trial", world, plays=plays, steps=18, streams=streams)
    cfs = alike(results)
    assert results[0]["streams"] is streams
    assert cfs[:11] == [40.0] * 6 + [DENSE] * 3 + [40.0] * 2, "three slow steps, then back"
    assert cfs[11:] == [20.0] * 7, "the decision that follows the short window is in force"
    reports, decisions, events = records(tmp_path)
    assert lengths(reports)[:2] == [WINDOW, 5], "the window ends as the first step after the trial begins"
    assert [report.trial_seconds is not None for report in reports[:3]] == [False, True, False]
    assert reports[1].trial_seconds is not None
    assert max(0.25, SLOW) < reports[1].trial_seconds <= max(results[0]["took"]) + 1.0
    assert [decision.trial is not None for decision in decisions[:3]] == [False, True, False]
    (said,) = [message for message in events if "of the trial" in message]
    assert said.startswith("Step 6 of the trial of dense took ")
    assert said.endswith("s, above its limit of 130 ms: back to largest 2.5 %.")


def test_a_trial_that_is_not_slow_runs_its_window(run_ranks: RunRanks, tmp_path: Path) -> None:
    plays = [TRIAL[0], [None, DENSE, 9, [PATIENT, 40.0, None]], [None, 40.0, None]]
    cfs = alike(run_ranks("slow_trial", 2, plays=plays, steps=16))
    assert cfs == [40.0] * 6 + [DENSE] * 9 + [40.0]
    reports, _, events = records(tmp_path)
    assert lengths(reports)[:2] == [WINDOW, 9]
    assert all(report.trial_seconds is None for report in reports)
    assert not [message for message in events if "of the trial" in message]


def test_dense_steps_of_a_trial_that_compresses_do_not_end_it(run_ranks: RunRanks, tmp_path: Path) -> None:
    """The first two steps at a new CF measure its gain, so they are dense and slow. They are not what is tried."""
    plays = [TRIAL[0], [None, 20.0, 6, [SLOW, 40.0, None]]]
    results = run_ranks("slow_trial", 2, plays=plays, steps=12, epsilon=1e-3)
    assert alike(results) == [DENSE] * 2 + [40.0] * 4 + [DENSE] * 2 + [20.0] * 4
    assert results[0]["took"][6] > SLOW
    assert not [message for message in records(tmp_path)[2] if "of the trial" in message]


def test_the_plan_gone_back_to_stays_until_another_epoch(run_ranks: RunRanks, tmp_path: Path) -> None:
    """Decisions of the same epoch, with and without a price, and a controller that was away, do not begin it again."""
    again = [None, DENSE, 2, [SLOW, 40.0, None]]
    plays = [*TRIAL, again, [None, DENSE, 3], [None, DENSE, 3], [None, 20.0, None]]
    results = run_ranks("slow_trial", 2, plays=plays, steps=25, fallback=[14, 16])
    cfs, phases = alike(results), [phase for _, _, phase in results[0]["sent"]]
    away = phases.index("fallback")
    assert phases[away : away + 2] == ["fallback"] * 2, (
        "in it, windows have the length that was decided: three"
    )
    assert cfs[6:9] == [DENSE] * 3
    assert cfs[9:away] == [40.0] * (away - 9)
    assert cfs[away : away + 2] == [DENSE] * 2
    assert cfs[away + 2 :] == [40.0] * 4 + [20.0] * 3
    reports, _, events = records(tmp_path)
    assert lengths(reports) == [WINDOW, 5, WINDOW, 3, WINDOW, WINDOW, 1]
    assert [report.trial_seconds is None for report in reports] == [True, False, *[True] * 5]
    assert len([message for message in events if "of the trial" in message]) == 1


def test_a_codec_and_its_cf_are_gone_back_to(run_ranks: RunRanks, tmp_path: Path) -> None:
    """From the job's compressor to one of the policy's, whose gain is still known, so that no step is sent dense."""
    held = "powersgd:rank=2"
    plays = [[held, 8.0, None], [None, DENSE, 9, [SLOW, 8.0, held]], [None, 40.0, None]]
    results = run_ranks("slow_trial", 2, plays=plays, steps=14, epsilon=1e-3)
    alike(results)
    sent = [(codec, cf) for codec, cf, _ in results[0]["sent"]]
    assert sent[2:6] == [(held, 8.0)] * 4
    assert sent[6:11] == [("topk", DENSE)] * 3 + [(held, 8.0)] * 2
    assert [each for each in records(tmp_path)[2] if "of the trial of dense took" in each]


@pytest.mark.parametrize("stalled", ["0", "1", "01"])
def test_a_trainer_that_does_something_else_does_not_end_a_trial(
    run_ranks: RunRanks, tmp_path: Path, stalled: str
) -> None:
    """One rank saves a checkpoint between two steps, and the others wait for it in their exchange; or all do."""
    stalls = {f"{rank} 7": [1.5] for rank in stalled}
    plays = [TRIAL[0], [None, 20.0, 9, [0.5, 40.0, None]], [None, 40.0, None]]
    results = run_ranks("slow_trial", 2, plays=plays, steps=14, stalls=stalls)
    assert alike(results) == [40.0] * 6 + [20.0] * 8
    assert max(results[0]["took"][7:9]) > 1.0 or stalled != "1", "rank 0 has waited for rank 1"
    assert not [message for message in records(tmp_path)[2] if "of the trial" in message]


@pytest.mark.parametrize(("at", "elastic"), [(7, False), (8, False), (10, False), (10, True)])
def test_a_checkpoint_of_a_trial(run_ranks: RunRanks, tmp_path: Path, at: int, elastic: bool) -> None:
    """Saved while it runs, when its end is agreed on, and after it."""
    plays = [*TRIAL, TRIAL[1], TRIAL[1]]  # decisions of the same epoch
    results = run_ranks("trial_goes_on", 2, plays=plays, at=at, elastic=elastic)
    assert results[0] == results[1]
    sent = [*results[0]["first"], *results[0]["second"]]
    # A step that was slow just before is not known to the second run, whose own first step says it again.
    dense = {7: 4, 8: 3, 10: 3}[at]
    assert sent == [40.0] * 6 + [DENSE] * dense + [40.0] * (len(sent) - 6 - dense)
