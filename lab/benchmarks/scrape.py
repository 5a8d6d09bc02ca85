"""Cost of a scrape for the controller: ``python lab/benchmarks/scrape.py`` prints the table of docs/metrics.md.

It measures the CPU time of one /metrics, the best of ten, and the part of it on the event loop, where requests wait.
"""

import time
from dataclasses import dataclass

from gravac.fold import JobFold
from gravac.traces import TraceRecord
from gravac_controller.live.projection import LiveJob
from gravac_controller.metrics.exposition import job_values, render
from gravac_controller.settings import ControllerSettings
from tools.harness.builders import Trainer, spec

MOST_ROWS = 1024
"""Rank rows of a report at most."""
REPEATS = 10


@dataclass(frozen=True)
class Cost:
    """One scrape: its samples, its size, and the CPU time in all and on the event loop."""

    series: int
    size_bytes: int
    seconds: float
    loop_seconds: float


def job(number: int, ranks: int, settings: ControllerSettings) -> LiveJob:
    """Return a job after its first window."""
    name, now = f"job-{number}", time.time()
    described = spec(name, world_size=ranks)
    fold, live = JobFold(described), LiveJob(settings)
    report = Trainer(name, world_size=min(ranks, MOST_ROWS)).report(fold.decision)
    records: tuple[TraceRecord, ...] = (described, fold.decision, report, fold.decide(report))
    for line, record in enumerate(records, 1):
        live.apply(line, now, record)
    return live


def cost(jobs: int, ranks: int) -> Cost:
    """Measure a scrape of this many jobs with this many ranks each."""
    settings = ControllerSettings()
    held = [job(number, ranks, settings) for number in range(jobs)]
    found = []
    for _ in range(REPEATS):
        began = time.process_time()
        values = job_values(held, settings)
        taken = time.process_time()
        text = render(values, None)
        found.append((time.process_time() - began, taken - began))
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    return Cost(series, len(text), min(found)[0], min(loop for _, loop in found))


def main() -> None:
    print(
        "| jobs | ranks each | series | size | CPU time | of which on the event loop |\n|---|---|---|---|---|---|"
    )
    for jobs, ranks in ((1, 2), (1, 256), (1, 4096), (16, 256), (1000, 2)):
        each = cost(jobs, ranks)
        print(
            f"| {jobs:,} | {ranks:,} | {each.series:,} | {each.size_bytes / 1000:,.0f} kB "
            f"| {each.seconds * 1000:.1f} ms | {each.loop_seconds * 1000:.1f} ms |"
        )


if __name__ == "__main__":
    main()
