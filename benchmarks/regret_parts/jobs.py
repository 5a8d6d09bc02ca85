"""Simulated jobs of adaptive policies, one JSON row each, resumed where a file already has them."""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from gravac.tournament.curves import curve_of
from gravac.tournament.regret import Job
from gravac.version import __version__
from gravac_agent.bench.process import end_with_parent
from gravac_agent.simulate.clock import ModelClock, Phase
from gravac_agent.simulate.job import Setting, SimulatedJob
from gravac_agent.tasks import elements_of, make
from regret_parts.links import LINKS

POINTS = 40
"""How often the held-out loss is measured, as in a tournament."""


@dataclass(frozen=True, slots=True)
class JobCell:
    """One job. ``link`` is a name of ``LINKS``."""

    task: str
    policy: str
    ranks: int
    seed: int
    steps: int
    link: str
    compute_seconds: float


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job that was run, and its row. ``fewer``: bytes of dense gradients / bytes handed to collectives."""

    cell: JobCell
    job: Job
    plans: list[list[Any]]
    fewer: float


def read_jobs(path: Path) -> list[JobRow]:
    """Read a file of jobs. A last line that was cut off is left out; of a job that is there twice the last one counts.

    Raises:
        SystemExit: a line is no row of a job.
    """
    if not path.exists():
        return []
    text = path.read_text()
    found = {}
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        try:
            row = json.loads(line)
            cell = JobCell(**{name: row[name] for name in JobCell.__slots__})
            plans = row["plans"]
            job = Job(
                policy=cell.policy,
                seed=cell.seed,
                by_step=curve_of(row["curve"], 0, 2),
                by_seconds=curve_of(row["curve"], 1, 2),
                held=label(plans[-1][1], plans[-1][2]),
            )
            fewer = 4.0 * row["elements"] / max(1.0, row["payload_bytes"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise SystemExit(f"{path}, line {number}: is no row of `regret run`: {error!r}") from None
        found[cell] = JobRow(cell, job, plans, fewer)
    return list(found.values())


def label(codec: str, cf: float) -> str:
    """Return the name of a plan as rows of a tournament have it."""
    return "dense" if codec == "dense" else f"{codec}@{cf:g}"


def run_jobs(wanted: Sequence[JobCell], path: Path, workers: int) -> Iterator[str]:
    """Run the jobs that ``path`` lacks and append a row for each, in the order in which they end.

    Yields:
        A line of progress at the start and after each job.
    """
    known = {row.cell for row in read_jobs(path)}
    left = [cell for cell in wanted if cell not in known]
    yield f"{len(left)} of {len(wanted)} jobs to do"
    if not left:
        return
    if path.exists():  # without a last line that was cut off
        text = path.read_text()
        path.write_text(text[: text.rfind("\n") + 1])
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin_worker) as pool, path.open("a") as out:
        for number, ended in enumerate(as_completed([pool.submit(simulate, cell) for cell in left]), 1):
            row = ended.result()
            out.write(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")
            out.flush()
            yield (
                f"{number} of {len(left)}: {row['task']}, {row['policy']}, {row['link']}, {row['ranks']} ranks, seed "
                f"{row['seed']}: held-out loss {row['curve'][-1][2]:.4f} in {row['curve'][-1][1]:.1f} simulated s, "
                f"{row['cpu_seconds']:.0f} s"
            )


def simulate(cell: JobCell) -> dict[str, Any]:
    """Run one job. Returns its row: plain numbers, with curve and plans as ``SimulatedJob`` has them."""
    began, link, recipe = time.process_time(), LINKS[cell.link], make(cell.task)
    elements = elements_of(recipe.build_model(cell.seed))
    clock = ModelClock(elements, cell.ranks, cell.compute_seconds, (Phase(0, link.network),))
    with tempfile.TemporaryDirectory(prefix="gravac-regret-") as folder:
        setting = Setting(
            recipe=recipe,
            policy=cell.policy,
            ranks=cell.ranks,
            seed=cell.seed,
            steps=cell.steps,
            clock=clock,
            points=POINTS,
        )
        result = SimulatedJob(setting, Path(folder)).run()
    return {
        **asdict(cell),
        "bits_per_second": link.bits_per_second,
        "latency_seconds": link.latency_seconds,
        "gravac": __version__,
        **{name: result[name] for name in ("optimizer", "elements", "payload_bytes", "curve", "plans")},
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def _begin_worker() -> None:
    end_with_parent()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
