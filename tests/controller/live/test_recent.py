"""The memory of all jobs together is bounded, and what was dropped is read from the journals."""

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from gravac.protocol import Candidate, Decision, GainCurve, SmoothedGain, WindowReport
from gravac_controller.live.recent import SLACK, Budget, Recent, decision_bytes, window_bytes
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.models import DecisionView, WindowView
from tests.support.direct import run
from tests.support.in_process import InProcess, register
from tools.harness.builders import Trainer, spec

LEVELS, GAINS, CANDIDATES = 16, 16, 24
TOLERANCE = 1.5
"""Ratio of counted to allocated bytes: objects differ between versions of Python."""


def fat(report: WindowReport) -> WindowReport:
    """Return a full window of two ranks, parsed as from a request, so that it shares no objects."""
    gains = tuple(SmoothedGain(cf=float(cf + 1), gain=0.5) for cf in range(GAINS))
    curve = GainCurve(steps=3, own=True, gains=tuple(1 / (1 + i) for i in range(61)))
    first = report.levels[0]
    few = {"steps": 3, "settled_steps": 3, "sums": first.sums.model_copy(update={"steps": 3})}
    levels = (first.model_copy(update=few),) * LEVELS
    full = report.model_copy(update={"levels": levels, "gains": gains, "curve": curve})
    return WindowReport.model_validate_json(full.model_dump_json())


def fat_decision(decision: Decision, window: int) -> Decision:
    candidate = Candidate(
        cf=10.0, gain=0.5, samples_per_second=1e3, useful_samples_per_second=5e2, window=1, verdict="passed"
    )
    full = decision.model_copy(update={"candidates": (candidate,) * CANDIDATES, "window": window})
    return Decision.model_validate_json(full.model_dump_json())


@pytest.mark.parametrize("make", [fat, lambda report: report], ids=["fat", "slim"])
def test_counted_bytes_match_allocated_ones(
    app: InProcess, make: Callable[[WindowReport], WindowReport]
) -> None:
    decision, trainer = register(app).decision, Trainer()
    reports = [make(trainer.report(decision)).model_dump_json() for _ in range(60)]
    decisions = [fat_decision(decision, window).model_dump_json() for window in range(60)]
    recent = Recent(ControllerSettings())
    gc.collect()
    tracemalloc.start()
    for number in range(60):
        report = WindowReport.model_validate_json(reports[number])
        recent.add_window(WindowView.of(1.0, report, spec("job")))
        recent.add_decision(
            DecisionView.of(1.0, Decision.model_validate_json(decisions[number]), None, "topk")
        )
    gc.collect()
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert recent.bytes == sum(map(window_bytes, recent.windows)) + sum(map(decision_bytes, recent.decisions))
    assert allocated / TOLERANCE < recent.bytes < allocated * TOLERANCE


def test_many_large_jobs_stay_within_the_bound(open_app: Callable[..., InProcess]) -> None:
    """With any number of jobs; each list is complete all the same."""
    most = 1 << 20
    app = open_app(history_bytes=most, max_changes_per_second=1e6)
    names = [f"job-{number}" for number in range(6)]
    for name in names:
        trainer, decision = Trainer(name), register(app, job=name).decision
        report = trainer.report
        trainer.report = lambda decision, report=report, **changes: fat(report(decision, **changes))  # type: ignore[method-assign]
        run(app, trainer, decision, 30)
    kept = {name: app.services.store.jobs[name].live.recent for name in names}
    assert sum(recent.bytes for recent in kept.values()) <= most
    assert len(kept[names[-1]].windows) > 5, "the job that reports keeps most"
    assert len(kept[names[0]].windows) == 0, "the one that was quiet for longest keeps its newest only"
    for name in names:
        found = app.client.get(f"/v1/jobs/{name}/windows?limit=1000").json()["items"]
        assert [one["report"]["window"] for one in found] == list(range(30))
        found = app.client.get(f"/v1/jobs/{name}/decisions?limit=1000").json()["items"]
        assert [one["decision"]["window"] for one in found] == list(range(-1, 30))
    app.close()
    again = open_app(history_bytes=most)
    held = [job.live.recent.bytes for job in again.services.store.jobs.values()]
    assert sum(held) <= most, "a restart keeps no more"
    assert held == sorted(held), "and holds the latest"


def test_streams_notice_dropped_history(app: InProcess) -> None:
    run(app, Trainer(), register(app).decision, 20)
    live = app.services.store.jobs["job"].live
    line = 15  # of the sixth window's decision or so
    assert live.changes_after(line) is not None
    live.recent.drop(1 << 30)
    assert live.changes_after(line) is None, "so a reader who knows that line gets a snapshot"
    assert live.changes_after(live.line) == []
    assert len(live.recent.decisions) == 1
    assert app.client.get("/v1/jobs/job").status_code == 200


def test_the_job_that_was_silent_longest_drops_first(app: InProcess) -> None:
    run(app, Trainer(), register(app).decision, 40)
    views, settings = list(app.services.store.jobs["job"].live.recent.windows), ControllerSettings()
    size = window_bytes(views[0])
    budget = Budget(2 * sum(map(window_bytes, views[:10])))
    one, two = Recent(settings), Recent(settings)
    for recent, name in ((one, "one"), (two, "two")):
        for view in views[:10]:
            recent.add_window(view)
            budget.changed(name, recent)
    assert (len(one.windows), len(two.windows)) == (10, 10)
    budget.changed("one", one)  # it reports again, so the other one has been silent longest
    one.add_window(views[10])
    budget.changed("one", one)
    assert len(one.windows) == 11
    assert len(two.windows) < 10
    assert budget.bytes == one.bytes + two.bytes <= budget.most
    assert budget.bytes >= SLACK * budget.most - 2 * size
