"""Simulated jobs of adaptive policies, one JSON row each, resumed where a file already has them."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gravac.version import __version__
from gravac_lab.simulate import pool
from gravac_lab.simulate.clock import ModelClock, Phase
from gravac_lab.simulate.job import SimulatedJob, SimulationSettings
from gravac_lab.tasks import elements_of, make
from gravac_lab.tournament.curves import curve_of
from gravac_lab.tournament.regret import RegretJob
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
    job: RegretJob
    plans: list[list[Any]]
    fewer: float
    optimizer: str

    def shares(self) -> dict[str, float]:
        """Return the share of the steps under each plan, by its name."""
        found: dict[str, float] = {}
        ends = [start for start, *_ in self.plans[1:]] + [self.cell.steps]
        for (start, codec, cf, *_), end in zip(self.plans, ends, strict=True):
            name = label(codec, cf)
            found[name] = found.get(name, 0.0) + (end - start) / self.cell.steps
        return found


def read_jobs(path: Path) -> list[JobRow]:
    """Read a file of jobs. A last line that was cut off is left out; of a job that is there twice the last one counts.

    Raises:
        SystemExit: a line is no row of a job.
    """
    found: dict[JobCell, JobRow] = {}
    for number, line in enumerate(pool.read_lines(path), 1):
        try:
            row = _row(line)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise SystemExit(f"{path}, line {number}: is no row of `regret run`: {error!r}") from None
        found[row.cell] = row
    return list(found.values())


def _row(row: dict[str, Any]) -> JobRow:
    cell, plans = JobCell(**{name: row[name] for name in JobCell.__slots__}), row["plans"]
    job = RegretJob(
        policy=cell.policy,
        seed=cell.seed,
        by_step=curve_of(row["curve"], 0, 2),
        by_seconds=curve_of(row["curve"], 1, 2),
        held=label(plans[-1][1], plans[-1][2]),
    )
    fewer = 4.0 * row["elements"] / max(1.0, row["payload_bytes"])
    return JobRow(cell, job, plans, fewer, row["optimizer"])


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
    for number, row in enumerate(pool.append_rows(simulate, left, path, workers), 1):
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
        setting = SimulationSettings(
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
