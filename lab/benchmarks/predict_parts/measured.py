"""Measures real steps on the testbed: every CF is a separate job; the jobs take turns on every network."""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from gravac.protocol import JobSpec, WindowReport
from gravac.traces import read_trace
from gravac_lab.bench.network import parse_rate
from gravac_lab.bench.ranks import Places, Ranks, on_hosts

UNSHAPED = "none"
SCHEDULE = "schedule.json"
START_SECONDS, STEP_SECONDS = 180.0, 60.0


@dataclass(frozen=True, kw_only=True)
class MeasuredPlan:
    """What to run: ``warmup`` windows on links as fast as the machine, so that residuals fill; then ``passes`` times
    every link, on each a window of ``block`` steps of every CF, and now and then on ``fit_link``."""

    codec: str
    fit_link: str
    links: Sequence[str]
    cfs: Sequence[float]
    passes: int
    warmup: int
    block: int
    width: int
    hosts: int


@dataclass
class Measured:
    """``windows[link, cf]``: the reports of the windows there, in order."""

    spec: JobSpec
    windows: dict[tuple[str, float], list[WindowReport]] = field(default_factory=dict)

    def step_seconds(self, link: str, cf: float) -> float:
        """Median over windows of the median step."""
        return median(self._medians(link, cf))

    def spread(self, link: str, cf: float) -> float:
        """How far windows lie apart: half of the distance of the extremes, relative."""
        found = self._medians(link, cf)
        return (max(found) - min(found)) / 2 / median(found)

    def gain(self, cf: float, links: Sequence[str]) -> float:
        """Median over the windows on these links of sent / to be sent."""
        return median(
            sum(level.sums.sent_sq for level in report.levels)
            / sum(level.sums.compensated_sq for level in report.levels)
            for link in links
            for report in self.windows[link, cf]
        )

    def _medians(self, link: str, cf: float) -> list[float]:
        found = [level.step_seconds_median for one in self.windows[link, cf] for level in one.levels]
        return [seconds for seconds in found if seconds is not None]


def run(plan: MeasuredPlan, scratch: Path, report: Callable[[str], None]) -> Measured:
    """Run the plan. Raises SystemExit where this machine cannot create networks."""
    schedule: list[str] = []
    with on_hosts(plan.hosts, parse_rate(plan.fit_link), report) as places, ExitStack() as stack:
        if places.shape is None:
            raise SystemExit(f"cannot create network links: {places.no_network}")
        jobs: dict[float, Ranks] = {}
        for number, cf in enumerate(plan.cfs):
            jobs[cf] = Ranks(
                _words(plan, cf, places, scratch), places.ranks, places.port(number), _home(scratch, cf)
            )
            stack.callback(jobs[cf].close)
            jobs[cf].ready(START_SECONDS)
        for link in _order(plan):
            places.shape(parse_rate(link))
            schedule.append(link)
            report(f"window {len(schedule)}: {link}")
            for cf in plan.cfs if len(schedule) % 2 else plan.cfs[::-1]:
                jobs[cf].ask(START_SECONDS + plan.block * STEP_SECONDS, do="train", steps=plan.block)
    (scratch / SCHEDULE).write_text(json.dumps({"links": schedule, "cfs": list(plan.cfs)}))
    return read_again(scratch)


def _order(plan: MeasuredPlan) -> list[str]:
    """There and back; the link that is fitted on comes at the beginning, in the middle and at the end of each pass."""
    order = [UNSHAPED] * plan.warmup
    middle = len(plan.links) // 2
    for turn in range(plan.passes):
        links = list(plan.links) if turn % 2 == 0 else list(plan.links)[::-1]
        order += [plan.fit_link, *links[:middle], plan.fit_link, *links[middle:], plan.fit_link]
    return order


def read_again(folder: Path) -> Measured:
    """The journals of a run: the n-th window of each job ran on the n-th link."""
    held = json.loads((folder / SCHEDULE).read_text())
    found: Measured | None = None
    for cf in held["cfs"]:
        (journal,) = _home(folder, cf).rglob("journal.jsonl")
        for line in read_trace(journal):
            if isinstance(line.record, JobSpec) and found is None:
                found = Measured(line.record)
            elif isinstance(line.record, WindowReport) and line.record.window < len(held["links"]):
                assert found is not None
                link = held["links"][line.record.window]
                found.windows.setdefault((link, cf), []).append(line.record)
    assert found is not None
    return found


def _words(plan: MeasuredPlan, cf: float, places: Places, scratch: Path) -> list[str]:
    words = [
        sys.executable,
        "-m",
        "gravac_lab.programs.train",
        "--method",
        f"agent/{plan.codec}//static:cf={cf:g}",
    ]
    words += ["--scratch", str(_home(scratch, cf) / "agent"), "--width", str(plan.width), "--heldout", "1"]
    words += ["--window", str(plan.block)]
    return words if places.interface is None else [*words, "--interface", places.interface]


def _home(scratch: Path, cf: float) -> Path:
    return scratch / f"cf{cf:g}"
