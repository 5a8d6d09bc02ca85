"""Several agents in one process: each trains as it would alone, with a page and a trace of its own."""

from pathlib import Path

import pytest

from gravac.protocol import Event
from gravac.replays.replay import check
from gravac.traces import read_trace
from tests.support.ranks.harness import RunRanks

pytestmark = pytest.mark.distributed


def test_a_gan_on_digits(run_ranks: RunRanks, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    one, two = run_ranks("gan", 2, steps=300, fresh=True)  # sklearn brings a log handler
    assert one["dense"] == one["plain"], "dense agents change no bit"
    assert min(one["buckets"]) >= 3
    assert one["ready"] == [True, True]
    assert one["steps"] == [300, 300]
    assert min(one["saved"]) > 5
    assert one["parameters"] == two["parameters"]
    assert one["after"] < 0.6 * one["before"], "the images come closer to the digits"
    assert len({page.split()[0] for page in one["pages"]}) == 2, "each agent has its page"
    for job, page, trace in zip(("gan-g", "gan-d"), one["pages"], one["traces"], strict=True):
        assert f'"{job}"' in page
        assert Path(trace) == tmp_path / job / "journal.jsonl"
        assert check(Path(trace)).ok


def test_each_agent_trains_as_it_does_alone(run_ranks: RunRanks) -> None:
    results = run_ranks("interleaved", 2)
    assert results[0]["jobs"] == results[1]["jobs"], "each rank has a name of its own, and rank 0's counts"
    for result in results:
        assert result["together"] == result["alone"]
        assert result["skipped"] == [0, 1]
        assert result["jobs"][1] == f"{result['jobs'][0]}-2"


def test_a_bad_step_of_one_model_does_not_touch_the_other_one(run_ranks: RunRanks) -> None:
    one, two = run_ranks("one_optimizer", 2)
    assert one["kept"] == [False, True]
    assert one["parameters"] == two["parameters"]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_the_trainer_drops_leave_no_residual(run_ranks: RunRanks, set_to_none: bool) -> None:
    """The job's first steps are dense, so there is no residual when the agent sees the first such step."""
    one, two = run_ranks("dropped", 2, set_to_none=set_to_none, policy="static:cf=10,epsilon=0.001")
    assert one["same"] == [True] * 6
    assert one["grown"] > 0, "other steps leave one"
    assert one["steps"] == 12
    assert one["parameters"] == two["parameters"]


def test_the_first_dropped_step_stays_in_the_memory_and_is_reported(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    """Until gradients are zeroed without a step, nobody adds up the parameters, which would show that none was made."""
    one, two = run_ranks("dropped", 2, set_to_none=True, policy="static:cf=10")
    assert one["same"] == [False] + [True] * 5
    assert one["parameters"] == two["parameters"]
    events = [line.record for line in read_trace(tmp_path / "d" / "journal.jsonl")]
    said = [
        event.message
        for event in events
        if isinstance(event, Event) and "The residual of this step stays" in event.message
    ]
    assert len(said) == 1


def test_agents_started_in_another_order_are_refused(run_ranks: RunRanks) -> None:
    for result in run_ranks("other_order", 2, fresh=True):
        assert (
            "AgreementError: all ranks need the same settings, but agent: rank 0 has 1, rank 1 has 2"
            in result["error"]
        )


def test_ranks_in_different_numbers_of_groups(run_ranks: RunRanks) -> None:
    one, two, three = run_ranks("groups_of_some_ranks", 3, seconds=60)
    assert one["parameters"] == two["parameters"] == three["parameters"]
    assert len(set(one["jobs"])) == 3
    assert two["jobs"] == one["jobs"]
    assert three["jobs"] == one["jobs"][::2]
    assert one["jobs"][1:] == [f"{one['jobs'][0]}-2-ranks0", f"{one['jobs'][0]}-3"]
