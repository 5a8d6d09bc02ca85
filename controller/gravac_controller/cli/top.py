"""``gravac top``: watch jobs, on a terminal screen or as plain lines."""

import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from gravac.traces import TraceError
from gravac.wording import printable
from gravac_controller.cli.screen import line, screen
from gravac_controller.cli.source import (
    FromTrace,
    Source,
    SourceError,
    asked,
    choose,
    one_source,
    source_options,
    token_of,
)
from gravac_controller.cli.wording import printer
from gravac_controller.client import ControllerError
from gravac_controller.views.models import DecisionView, JobView, WindowView

DECISIONS = 8
RECENT_WINDOWS = 900
"""How many windows back the screen searches for decisions: what a controller has in memory."""


@click.command()
@click.argument("words", nargs=-1, metavar="[JOB] [SOURCE]")
@click.option(
    "--every",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0.1, max=3600),
    metavar="SECONDS",
    help="Time between updates.",
)
@click.option("--once", is_flag=True, help="Print once and exit.")
@source_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per window instead.")
def top(
    words: tuple[str, ...],
    every: float,
    once: bool,
    data_dir: Path,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Watch jobs: CF and its reason, step time by phase, ranks, decisions.

    JOB is shown in detail [the only one that runs]. SOURCE is the address of a controller or a trace file. By default:
    the controller that serves the journals in ./gravac-runs, else the newest journal there. In a terminal this is a
    screen that updates until Ctrl-C. Elsewhere, and with --json, it prints a line for each window and for each decision
    that changes something.

    \b
    Examples:
      gravac top
      gravac top my-job
      gravac top my-job http://127.0.0.1:8756
      gravac top gravac-runs/my-job/journal.jsonl
    """
    console, given = printer(), asked(words)
    try:
        watch = JobWatch(one_source(given.source, data_dir, token_of(token_file), given.job), given.job)
        watch.update()
    except (ControllerError, TraceError) as error:
        raise SourceError(printable(str(error))) from None
    once = once or isinstance(watch.source, FromTrace)
    try:
        if console.is_terminal and not as_json:
            _screen(watch, console, every, once)
        else:
            _lines(watch, every, once, as_json)
    except KeyboardInterrupt:
        return


@dataclass
class JobWatch:
    """The state of a source, updated by ``update``. ``note``: why the last update failed, or empty."""

    source: Source
    wanted: str | None
    jobs: list[JobView] = field(default_factory=list)
    shown: JobView | None = None
    decisions: list[DecisionView] = field(default_factory=list)
    note: str = ""
    _printed: dict[str, int] = field(default_factory=dict)

    def update(self) -> None:
        """Read everything again. Raises ControllerError, TraceError."""
        self.jobs = self.source.jobs(self.wanted)
        try:
            self.shown = choose(self.jobs, self.wanted, self.source.where)
        except SourceError:
            if self.wanted is not None:
                raise
            self.shown = None
        if self.shown is not None:
            self.decisions = self._latest(self.shown)

    def try_update(self) -> None:
        """Read everything again; an unreachable controller is only noted."""
        try:
            self.update()
            self.note = ""
        except ControllerError as error:
            self.note = f"{error}; the data shown is old, retrying"

    def new_windows(self) -> Iterator[tuple[JobView, WindowView, DecisionView | None]]:
        """Windows that were not printed yet, each with the decision on it. Raises ControllerError."""
        for job in self.jobs if self.shown is None else [self.shown]:
            after = self._printed.get(job.job)
            if job.latest is None or job.latest.report.window == after:
                continue
            decisions = self.source.decisions(job.job, after)
            decided = next(decisions, None)
            for view in self.source.windows(job.job, after):
                window = view.report.window
                while decided is not None and decided.decision.window < window:
                    decided = next(
                        decisions, None
                    )  # also a repeated one: a new start of the trainer repeats the last
                yield (
                    job,
                    view,
                    decided if decided is not None and decided.decision.window == window else None,
                )
                self._printed[job.job] = window
            self._printed[job.job] = max(self._printed.get(job.job, 0), job.latest.report.window)

    def _latest(self, job: JobView) -> list[DecisionView]:
        """Return the last decisions that changed something, newest first."""
        since = job.decision.window - RECENT_WINDOWS
        changed = self.source.decisions(job.job, since if since > 0 else None, changed=True)
        return list(deque(changed, DECISIONS))[::-1]


def _screen(watch: JobWatch, console: Console, every: float, once: bool) -> None:
    def content() -> Any:
        return screen(watch.jobs, watch.shown, watch.decisions, watch.note)

    if once:
        console.print(content())
        return
    with Live(content(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            watch.try_update()
            live.update(content(), refresh=True)


def _lines(watch: JobWatch, every: float, once: bool, as_json: bool) -> None:
    noted = ""
    while True:
        try:
            for job, view, after in watch.new_windows():
                click.echo(_json(job, view, after) if as_json else line(job, view, after))
        except ControllerError as error:
            watch.note = str(error)
        if watch.note != noted:
            noted = watch.note
            click.echo(printable(noted) if noted else "the controller answers again", err=True)
        all_ended = bool(watch.jobs) and all(job.state == "ended" for job in watch.jobs)
        if once or all_ended:
            return
        time.sleep(every)
        watch.try_update()


def _json(job: JobView, view: WindowView, after: DecisionView | None) -> str:
    facts = {"job": job.job, "window": view.model_dump(mode="json")}
    return json.dumps({**facts, "decision": None if after is None else after.model_dump(mode="json")})
