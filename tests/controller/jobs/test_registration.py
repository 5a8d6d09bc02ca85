"""Two trainings under one job name: the second is refused while the first reports, and takes over once it is silent."""

import json
from collections.abc import Callable

import pytest

from gravac.policies import parse
from gravac.protocol import End, JobAnswer, ModelShape, OptimizerSpec
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


def model(digest: str) -> ModelShape:
    return ModelShape(name="Net", tensors=4, elements=1000, digest=digest)


def optimizer(name: str) -> OptimizerSpec:
    return OptimizerSpec(name=name, kind="other", learning_rate=0.1, momentum=None, weight_decay=None)


def test_another_training_gets_a_name_of_its_own(app: InProcess) -> None:
    """Another model or optimizer under a known name, while that job runs or after its end."""
    ours = {"model": model("a" * 16), "optimizer": optimizer("SGD")}
    run(app, Trainer(), register(app, **ours).decision, 2)
    lines = journal(app)
    other = register(app, **ours | {"optimizer": optimizer("AdamW")}, incarnation="second")
    assert other.job == "job-2"
    for words in ("job 'job' is another training", "it trains with SGD, this run with AdamW", "job 'job-2'"):
        assert words in other.note
    assert other.note in app.client.get("/v1/jobs/job-2").json()["events"][0]["event"]["message"]
    run(app, Trainer("job-2", "second"), other.decision, 1)
    again = register(app, **ours | {"optimizer": optimizer("AdamW")}, incarnation="second")
    assert (again.job, again.next_window, again.note) == ("job-2", 1, other.note)
    third = register(app, **ours | {"model": model("b" * 16)}, incarnation="third")
    assert third.job == "job-3"
    assert "it trains Net (4 tensors, 1,000 elements, digest aaaa" in third.note
    assert journal(app) == lines, "the known job is as it was"
    silence(app, "job-2")
    resumed = register(app, **ours | {"optimizer": optimizer("AdamW")}, incarnation="fourth")
    assert (resumed.job, resumed.next_window) == ("job-2", 1), "it goes on under the name that it had"


def test_what_may_change_between_starts_of_one_training(app: InProcess) -> None:
    ours = {"model": model("a" * 16), "optimizer": optimizer("SGD")}
    decision = run(app, Trainer(), register(app, **ours).decision, 2)
    rate = optimizer("SGD").model_copy(update={"learning_rate": 9.0})
    frozen = model("a" * 16).model_copy(update={"tensors": 2, "elements": 10})
    changes = {"world_size": 4, "window_steps": 7, "optimizer": rate, "model": frozen}
    assert register(app, **ours | changes, incarnation="second").job == "job"
    unknown = register(app, incarnation="third")  # by an agent that knows neither
    assert unknown.job == "job"
    state = app.services.store.jobs["job"]._known().policy_state
    loaded = {"optimizer": optimizer("AdamW"), "policy_state": state, "first_window": 2}
    answer = register(app, **ours | loaded, incarnation="fourth")  # from a checkpoint
    assert (answer.job, answer.note) == ("job", "")
    assert answer.decision == decision


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy": parse("observe").spec()}, "its policy is gravac, that of this run observe"),
        ({"compressor": "randomk"}, "its compressor is topk, that of this run randomk"),
        ({"memory": "none"}, "its memory is residual, that of this run none"),
    ],
)
def test_another_rule_gets_a_name_of_its_own(app: InProcess, change: dict[str, object], words: str) -> None:
    """Also with a checkpoint: what was measured holds for no other."""
    run(app, Trainer(), register(app).decision, 2)
    lines = journal(app)
    other = register(app, **change, incarnation="second")
    assert (other.job, other.next_window) == ("job-2", 0)
    assert words in other.note
    run(app, Trainer("job-2", "second"), other.decision, 1)
    state = register(app, **change, incarnation="second").policy_state
    silence(app, "job-2")
    loaded = register(app, **change, incarnation="third", policy_state=state, first_window=1)
    assert (loaded.job, loaded.next_window) == ("job-2", 1)
    assert journal(app) == lines
