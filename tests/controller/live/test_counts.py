"""Totals are of the present start of a trainer, and windows and steps of all."""

import pytest

from gravac.policies import parse
from gravac.protocol import End
from gravac.traces import read_trace
from gravac_controller.report.summary import summarize
from tests.support.in_process import InProcess, post, register, run
from tools.harness.builders import Trainer
from tools.harness.cluster import Cluster


def test_totals_and_baselines_are_of_the_present_start(app: InProcess) -> None:
    slow, fast = Cluster(network_seconds=4.0), Cluster(network_seconds=0.1)
    run(app, Trainer(cluster=slow), register(app, policy=parse("dense").spec()).decision, 3)
    before = app.client.get("/v1/jobs/job").json()
    answer = register(app, policy=parse("dense").spec(), incarnation="second")
    begun = app.client.get("/v1/jobs/job").json()
    assert begun["totals"]["windows"] == 0
    assert begun["baseline_step_seconds"] == before["baseline_step_seconds"], "until it has its own"
    assert (begun["windows"], begun["steps"]) == (3, before["steps"])
    trainer = Trainer(incarnation="second", cluster=fast, window=answer.next_window)
    run(app, trainer, answer.decision, 2)
    job = app.client.get("/v1/jobs/job").json()
    assert job["totals"]["windows"] == 2
    assert job["totals"]["dense_bytes"] == 2 * 400_000 + 3 + 4
    assert job["baseline_step_seconds"] == pytest.approx(fast.step_seconds(1.0))
    assert before["baseline_step_seconds"] == pytest.approx(slow.step_seconds(1.0))
    assert (job["windows"], job["steps"]) == (5, before["steps"] + 100)
    register(app, policy=parse("dense").spec(), incarnation="third", world_size=3)
    assert app.client.get("/v1/jobs/job").json()["baseline_step_seconds"] is None, "of other ranks"
    post(app, "/v1/jobs/job/end", End(incarnation="third", windows=0, steps=0, message=""))
    last = app.services.settings.data_dir / "job" / "journal.jsonl"
    end = [line.record for line in read_trace(last)][-1]
    assert isinstance(end, End)
    assert (end.windows, end.steps) == (5, before["steps"] + 100)
    summary = summarize(last)
    assert (summary.figures.windows, summary.figures.seconds) == (2, job["totals"]["seconds"])
    assert "The training started 2 times. Totals and figures are of its last start." in summary.notes
