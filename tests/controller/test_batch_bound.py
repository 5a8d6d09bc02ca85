"""Gradient diversity and the batch bound: the last known values, computed for the ranks that measured them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gravac.protocol import Decision, WindowAnswer, WindowReport
from gravac.replays.replay import check
from gravac.traces.line import seal, split
from gravac_controller.jobs.job import Job
from gravac_controller.views.models import WindowView
from tests.support.in_process import InProcess, post, register, run
from tools.harness.builders import Trainer

NAMES = ("gradient_diversity", "batch_bound_samples")
NEW_FIELDS = b',"mean_steps":0,"mean_sq":0.0,"mean_gradient_sq":0.0'


def dense(
    report: WindowReport, mean_sq: float, mean_gradient_sq: float, steps: int | None = None
) -> WindowReport:
    """Return ``report`` with ``steps`` of its first level (None: all) dense."""
    level, *others = report.levels
    steps = level.steps if steps is None else steps
    sums = level.sums.model_copy(
        update={"mean_steps": steps, "mean_sq": mean_sq, "mean_gradient_sq": mean_gradient_sq}
    )
    return report.model_copy(update={"levels": (level.model_copy(update={"sums": sums}), *others)})


def send(app: InProcess, report: WindowReport) -> Decision:
    return WindowAnswer.model_validate_json(post(app, "/v1/jobs/job/windows", report)).decision


def view(app: InProcess) -> dict[str, Any]:
    found: dict[str, Any] = app.client.get("/v1/jobs/job").json()
    return found


def test_the_last_known_value_stays_with_its_window(open_app: Callable[..., InProcess]) -> None:
    app, trainer = open_app(), Trainer()
    decision = register(app).decision
    assert [view(app)[name] for name in NAMES] == [None, None]
    decision = run(app, trainer, decision, 1)
    assert [view(app)[name] for name in NAMES] == [None, None], "no plainly dense step yet"
    # 2 ranks of 32 samples: mean of ||g||² 1, ||mean||² 0.75, so |G|² = 0.5 and S = 0.25 · 32 · 2 = 16 samples.
    decision = send(app, dense(trainer.report(decision), 0.75, 2.0))
    expected = [{"value": 2.0 / (4 * 0.75), "window": 1}, {"value": 1 + 16 / 0.5, "window": 1}]
    assert [view(app)[name] for name in NAMES] == expected
    # Opposed gradients: as diverse as can be, and too noisy for a bound. The bound known before stays.
    decision = send(app, dense(trainer.report(decision), 0.25, 2.0))
    expected[0] = {"value": 2.0, "window": 2}
    assert view(app)["latest"]["batch_bound_samples"] is None
    # The last dense steps before a change are too few to replace what a whole window showed.
    decision = send(app, dense(trainer.report(decision), 1.0, 2.0, steps=2))
    assert view(app)["latest"]["batch_bound_samples"] == 1.0
    assert [view(app)[name] for name in NAMES] == expected
    run(app, trainer, decision, 5)
    job = view(app)
    assert [job[name] for name in NAMES] == expected
    assert [job["latest"][name] for name in NAMES] == [None, None]
    assert job["latest"]["global_batch_samples"] == 64.0
    app.close()
    assert view(open_app()) == job, "a restarted controller knows it, too"


def test_a_bound_in_samples_needs_samples(app: InProcess) -> None:
    report = Trainer().report(register(app).decision, samples=0)
    send(app, dense(report, 0.75, 2.0))
    job = view(app)
    assert job["batch_bound_samples"] is None
    assert job["latest"]["global_batch_samples"] is None
    assert job["gradient_diversity"]["value"] == pytest.approx(2 / 3)


def on_disk(job: Job, after: int) -> list[WindowView]:
    return [view for _, view in job.journal.reader.windows(after, job.journal.end) if view is not None]


def test_a_window_is_read_with_the_ranks_of_its_time(open_app: Callable[..., InProcess]) -> None:
    """The trainer starts again with more ranks. From disk, from the first line and from the index."""
    app, trainer = open_app(), Trainer()
    decision = register(app).decision
    for _ in range(3):
        decision = send(app, dense(trainer.report(decision), 0.75, 2.0))
    register(app, incarnation="second", world_size=4)
    trainer.incarnation, trainer.world_size = "second", 4
    for _ in range(230):
        decision = send(app, dense(trainer.report(decision), 0.75, 2.0))
    job = app.services.store.jobs["job"]
    found = [view.gradient_diversity for view in on_disk(job, -1)]
    assert found == [2.0 / (2 * 2 * 0.75)] * 3 + [2.0 / (4 * 4 * 0.75)] * 230
    late = [view.model_dump(mode="json") for view in on_disk(job, 220)]
    assert late == app.client.get("/v1/jobs/job/windows?after=220").json()["items"]


def without_the_new_fields(path: Path) -> None:
    """Rewrite a journal as an older controller wrote it, with its digests."""
    digest, lines = "", []
    for raw in path.read_bytes().splitlines():
        parts = split(raw)
        assert parts is not None
        sealed = parts[0].replace(NEW_FIELDS, b"")
        digest = seal(digest, sealed)
        lines.append(sealed + f',"digest":"{digest}"}}\n'.encode())
    path.write_bytes(b"".join(lines))


def test_an_older_journal_still_reads(open_app: Callable[..., InProcess]) -> None:
    app, trainer = open_app(), Trainer()
    decision = run(app, trainer, register(app).decision, 4)
    before, windows = view(app), app.client.get("/v1/jobs/job/windows").json()
    app.close()
    path = app.services.settings.data_dir / "job" / "journal.jsonl"
    assert path.read_bytes().count(NEW_FIELDS) == 4
    without_the_new_fields(path)
    assert b'"mean_s' not in path.read_bytes()
    assert check(path).ok
    again = open_app()
    assert view(again) == before
    assert again.client.get("/v1/jobs/job/windows").json() == windows
    run(again, trainer, decision, 1)
    assert view(again)["windows"] == 5


def test_a_report_without_the_new_fields_is_accepted(app: InProcess) -> None:
    """An older agent reports to this controller, and sends the same window again."""
    body = Trainer().report(register(app).decision).model_dump_json()
    old = json.dumps(json.loads(body.replace(NEW_FIELDS.decode(), "")))
    assert '"mean_s' not in old
    for _ in range(2):
        answer = app.client.post(
            "/v1/jobs/job/windows", content=old, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 200, answer.text
    assert view(app)["windows"] == 1
