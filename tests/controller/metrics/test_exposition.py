"""The text of /metrics: promtool finds no fault, and large jobs are rendered soon."""

import shutil
import subprocess
import time

import pytest

from gravac.protocol import WindowAnswer
from tests.controller.metrics.test_table import scrape
from tests.support.in_process import InProcess, post, register, run
from tools.harness.builders import Trainer


def test_large_jobs_have_no_series_per_rank(app: InProcess) -> None:
    decision = register(app, world_size=257).decision
    run(app, Trainer(world_size=3), decision, 1)
    seen = scrape(app)
    assert "gravac_rank_relative_speed_ratio" not in seen
    assert seen["gravac_own_work_seconds"][("maximum",)] == pytest.approx(8.75 / 50)


def test_a_job_of_4096_ranks_is_rendered_soon(app: InProcess) -> None:
    """In CPU seconds, so that a busy machine does not matter; it takes a few milliseconds."""
    decision = register(app, world_size=4096).decision
    run(app, Trainer(world_size=1024), decision, 1)  # as many rows as a report holds
    began = time.process_time()
    for _ in range(5):
        text = app.client.get("/v1/jobs/job/metrics").text
    assert (time.process_time() - began) / 5 < 0.1
    assert 40 < sum(not line.startswith("#") for line in text.splitlines()) < 100


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.distributed
def test_promtool_finds_no_fault(app: InProcess) -> None:
    register(app, job="begun")
    trainer = Trainer()
    report = trainer.report(register(app).decision)
    sums = report.levels[0].sums.model_copy(
        update={"mean_steps": 50, "mean_sq": 0.75, "mean_gradient_sq": 2.0}
    )
    level = report.levels[0].model_copy(update={"sums": sums})
    answer = post(app, "/v1/jobs/job/windows", report.model_copy(update={"levels": (level,)}))
    run(app, trainer, WindowAnswer.model_validate_json(answer).decision, 11)
    text = app.client.get("/metrics").text
    found = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
