"""A controller takes the windows of jobs with thousands of ranks, and nothing of it grows faster than the ranks."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gravac.fold import JobFold
from gravac.protocol import JobAnswer, PhaseSeconds, Spread, WindowAnswer, quantiles
from gravac.replays.replay import check
from tests.support.sse import Reader
from tools.harness.builders import Trainer, spec
from tools.harness.controller import Controller

pytestmark = pytest.mark.distributed
WINDOWS = 12
FEW, MANY = 64, 1024
RANKS, LISTED = 10_000, 1024
"""``LISTED``: as many as an agent lists by default, with the controller's limits as they are by default."""
PAGE = "", "/ranks", "/ranks/history", "/windows?limit=50&ranks=false", "/decisions?limit=50"
"""What the live page asks for, after ``/v1/jobs/{job}``."""


class Found(NamedTuple):
    """What a job took."""

    seconds: float
    """Median of a window's answer."""
    report: int
    """Bytes of a report."""
    journal: int
    """Bytes of a window in the journal."""
    metrics: int
    """Bytes of ``/metrics``."""
    page: int
    """Bytes of what the page asks for."""
    event: int
    """Bytes that an open page receives for a window."""
    memory: int
    """By which the controller grew."""


def resident(controller: Controller) -> int:
    return 1024 * int(
        next(
            line.split()[1]
            for line in Path(f"/proc/{controller.process.pid}/status").read_text().splitlines()
            if line.startswith("VmRSS")
        )
    )


def measured(controller: Controller, ranks: int) -> Found:
    name, trainer = f"of-{ranks}", Trainer(f"of-{ranks}", world_size=ranks)
    answer = controller.ask("POST", "/v1/jobs", spec(name, world_size=ranks))
    assert answer.status == 200, answer.body
    decision, took, before, size = (
        JobAnswer.model_validate_json(answer.body).decision,
        [],
        resident(controller),
        0,
    )
    for _ in range(WINDOWS):
        report = trainer.report(decision).model_dump_json().encode()
        began = time.monotonic()
        answer = controller.ask(
            "POST", f"/v1/jobs/{name}/windows", report, {"Content-Type": "application/json"}
        )
        took.append(time.monotonic() - began)
        assert answer.status == 200, answer.body[:500]
        decision, size = WindowAnswer.model_validate_json(answer.body).decision, len(report)
    rows = controller.ask("GET", f"/v1/jobs/{name}/ranks").json["ranks"]
    assert [row["row"]["rank"] for row in rows] == list(range(ranks))
    pages = [controller.ask("GET", f"/v1/jobs/{name}{path}") for path in PAGE]
    assert {page.status for page in pages} == {200}, [page.body[:300] for page in pages]
    with Reader(controller, name) as reader:
        assert reader.next() is not None  # what an open page begins with
        report = trainer.report(decision)
        controller.ask("POST", f"/v1/jobs/{name}/windows", report)
        event = reader.next()
    assert event is not None
    assert event.name == "window"
    journal = b"".join(path.read_bytes() for path in controller.data_dir.glob(f"{name}/journal*.jsonl"))
    return Found(
        seconds=sorted(took)[WINDOWS // 2],
        report=size,
        journal=len(journal) // (WINDOWS + 1),
        metrics=len(controller.ask("GET", "/metrics").body),
        page=sum(len(page.body) for page in pages),
        event=len(json.dumps(event.data, separators=(",", ":"))),
        memory=resident(controller) - before,
    )


def test_a_thousand_ranks_cost_no_more_each_than_few(
    start: Callable[..., Controller], tmp_path: Path
) -> None:
    few, many = (measured(start(data_dir=tmp_path / str(ranks)), ranks) for ranks in (FEW, MANY))
    print(f"\n{FEW} ranks: {few}\n{MANY} ranks: {many}")
    more = MANY / FEW
    for name in Found._fields:
        if name != "memory":
            assert getattr(many, name) <= 1.3 * more * getattr(few, name), name
    assert many.seconds < 1.0
    assert many.event < 1.2 * many.report, "the rows of the ranks are sent once"


def test_a_job_of_ten_thousand_ranks_lists_a_thousand(
    start: Callable[..., Controller], tmp_path: Path
) -> None:
    """The last rank computes longest: it is not listed, but seen in the spread."""
    controller, trainer = start(data_dir=tmp_path), Trainer("wide", world_size=RANKS)
    job = spec("wide", world_size=RANKS)
    here = JobFold(job)
    answer = controller.ask("POST", "/v1/jobs", job)
    decision = JobAnswer.model_validate_json(answer.body).decision
    for _ in range(4):
        report = trainer.report(decision)
        times = {"step_seconds": [row.step_seconds for row in report.ranks]}
        times |= {
            name: [getattr(row.phases, name) for row in report.ranks] for name in PhaseSeconds.model_fields
        }
        spread = Spread(**{name: quantiles(values) for name, values in times.items()})
        report = report.model_copy(update={"ranks": report.ranks[:LISTED], "spread": spread})
        answer = controller.ask("POST", "/v1/jobs/wide/windows", report)
        assert answer.status == 200, answer.body[:300]
        decision = WindowAnswer.model_validate_json(answer.body).decision
        assert decision == here.decide(report)
    assert len(controller.ask("GET", "/v1/jobs/wide/ranks").json["ranks"]) == LISTED
    assert report.spread is not None
    assert report.spread.compute[-1] == 5.0 + RANKS - 1
    controller.stop()
    (journal,) = tmp_path.rglob("journal.jsonl")
    assert check(journal).ok
