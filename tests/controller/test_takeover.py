"""Two trainings under one job name: the second is refused while the first reports, and takes over once it is silent."""

import json
from collections.abc import Callable

import pytest

from gravac.protocol import End, JobAnswer
from gravac_controller.jobs.registration import LEAST_SECONDS, MOST_SECONDS, patience_seconds
from tests.support.in_process import InProcess, journal, post, register, run, silence
from tools.harness.builders import Trainer, spec

SECOND = spec(incarnation="second")


def window(app: InProcess, trainer: Trainer, seconds: float) -> None:
    """Return a window of this many seconds of wall time."""
    decision = app.services.store.jobs["job"].live.spec_and_decision()[1]
    post(app, "/v1/jobs/job/windows", trainer.report(decision, seconds=seconds))


def test_a_second_run_is_refused_while_the_first_reports(app: InProcess) -> None:
    decision = run(app, trainer := Trainer(), register(app).decision, 2)
    lines = journal(app)
    response = app.client.post(
        "/v1/jobs", content=SECOND.model_dump_json(), headers={"Content-Type": "application/json"}
    )
    problem = response.json()
    assert (response.status_code, problem["reason"]) == (409, "job_is_live")
    for words in ("held by run 'first'", "last reported 0.", "another job= name", "try again in "):
        assert words in problem["detail"]
    assert 1 <= int(response.headers["retry-after"]) <= MOST_SECONDS
    assert journal(app) == lines
    run(app, trainer, decision, 1)


def test_of_two_runs_that_start_together_one_gets_the_job(app: InProcess) -> None:
    """The first has not reported a window yet, and its first one may take long."""
    register(app)
    silence(app, seconds=MOST_SECONDS - 5)
    assert json.loads(post(app, "/v1/jobs", SECOND, status=409))["reason"] == "job_is_live"
    register(app)  # it may register again itself
    silence(app, seconds=5.1)
    post(app, "/v1/jobs", SECOND)


@pytest.mark.parametrize("seconds", [0.1, 4.0, 1000.0])
def test_a_silent_run_is_taken_over(app: InProcess, seconds: float) -> None:
    """After 2.5 of its windows, at least 2 s, at most 30 s."""
    register(app)
    trainer = Trainer()
    window(app, trainer, seconds)
    patience = min(30.0, max(2.0, 2.5 * seconds))
    silence(app, seconds=patience - 1)
    post(app, "/v1/jobs", SECOND, status=409)
    silence(app, seconds=1.001)
    answer = JobAnswer.model_validate_json(post(app, "/v1/jobs", SECOND))
    assert answer.next_window == 1
    late = trainer.report(answer.decision)
    assert json.loads(post(app, "/v1/jobs/job/windows", late, status=409))["reason"] == "superseded"
    # The first run finds itself replaced, and may not take the job back from one that lives.
    assert json.loads(post(app, "/v1/jobs", spec(), status=409))["reason"] == "job_is_live"


def test_a_run_that_ended_is_taken_over_immediately(app: InProcess) -> None:
    run(app, Trainer(), register(app).decision, 1)
    post(app, "/v1/jobs/job/end", End(incarnation="first", windows=1, steps=50, message="done"))
    post(app, "/v1/jobs", SECOND)


def test_a_controller_of_one_job_accepts_the_next_start_immediately(
    open_app: Callable[..., InProcess],
) -> None:
    """Its agent holds the folder's lock, so the start before is dead."""
    app = open_app(job="job")
    run(app, Trainer(), register(app).decision, 2)
    post(app, "/v1/jobs", SECOND)


def test_a_restarted_controller_still_knows_who_reports(open_app: Callable[..., InProcess]) -> None:
    app = open_app()
    run(app, Trainer(), register(app).decision, 2)
    app.close()
    again = open_app()
    post(again, "/v1/jobs", SECOND, status=409)
    post(again, "/v1/jobs", spec())
    silence(again)
    post(again, "/v1/jobs", SECOND)
    old = Trainer(window=2).report(register(again, incarnation="second").decision)
    assert json.loads(post(again, "/v1/jobs/job/windows", old, status=409))["reason"] == "superseded"


def test_a_clock_that_was_set_back_locks_nobody_out(app: InProcess) -> None:
    run(app, Trainer(), register(app).decision, 2)
    silence(app, seconds=-3600)
    post(app, "/v1/jobs", SECOND)


def test_patience_has_bounds() -> None:
    assert patience_seconds(None) == MOST_SECONDS
    assert patience_seconds(0.0) == LEAST_SECONDS
    assert patience_seconds(4.0) == 10.0
    assert patience_seconds(1e9) == MOST_SECONDS
