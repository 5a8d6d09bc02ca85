"""A trainer counts windows from 0 or from its checkpoint, its job from the first start of all."""

from gravac.policies import StaticPolicy
from gravac.protocol import End, Event
from gravac_agent.reporting.numbering import Numbering, renumbered
from tests.support.peer import SPEC, job_end, window_report


def test_windows_follow_those_of_other_runs() -> None:
    numbering = Numbering(0)
    numbering.register(4, SPEC, queued=0)
    assert numbering.offset == 4, "after a run before this one"
    numbering.register(5, SPEC, queued=0)
    assert numbering.offset == 4, "window 0 was accepted, and its answer was lost"
    numbering.register(7, SPEC, queued=1)
    assert numbering.offset == 6, "another run has reported 5 and 6 meanwhile"
    numbering.register(9, SPEC, queued=None)
    assert numbering.offset == 6, "nothing waits that would need another number"
    numbering.restart(3)
    assert numbering.offset == 0, "unknown until it is registered"
    numbering.register(9, SPEC.model_copy(update={"first_window": 3}), queued=None)
    assert numbering.offset == 6


def test_no_more_decisions_than_windows_that_were_reported() -> None:
    """Whatever number a controller claims. Of a checkpoint, each start since may have ended an order."""
    numbering = Numbering(0)
    assert numbering.most_decided(1000, SPEC) is None
    resumed = {"policy_state": StaticPolicy(cf=10).start().state.model_dump_json(), "first_window": 3}
    assert numbering.most_decided(10, SPEC.model_copy(update=resumed)) == 15
    numbering.register(4, SPEC, queued=None)
    assert numbering.most_decided(1000, SPEC) == 0
    for window in range(3):
        numbering.report(window)
    assert numbering.most_decided(1000, SPEC) == 3
    assert numbering.most_decided(5, SPEC) == 1
    numbering.decide(4)
    assert numbering.most_decided(1000, SPEC) == 2


def test_records_get_the_number_and_the_name_of_the_job() -> None:
    report = window_report(3)
    moved = renumbered(report, "job-2", 4)
    assert (moved.job, moved.window, moved.first_step) == ("job-2", 7, report.first_step)
    assert renumbered(report, report.job, 0) is report
    note = Event(kind="note", window=None, message="no window")
    assert renumbered(note, "job-2", 4) == note
    assert renumbered(note.model_copy(update={"window": 1}), "job-2", 4).window == 5
    end: End = job_end(4)
    assert renumbered(end, "job-2", 4) is end, "the journal counts the whole job"
