"""``gravac status --watch``: jobs on a terminal screen, or as plain lines."""

import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from gravac.wording import printable
from gravac_controller.cli.screen import line, screen
from gravac_controller.cli.source import (
    FromTrace,
    Source,
    SourceError,
    choose,
)
from gravac_controller.cli.wording import printer
from gravac_controller.client import ControllerError
from gravac_controller.views.models import DecisionView, JobView, WindowView

DECISIONS = 8
SECONDS = 1.0
"""Time between updates."""
RECENT_WINDOWS = 900
"""How many windows back the screen searches for decisions: what a controller has in memory."""


def watch(source: Source, wanted: str | None, as_json: bool) -> None:
    """Show a job, or all, until Ctrl-C, the end of the training, or of a trace.

    In a terminal this is a screen. Elsewhere, and with ``as_json``, it prints each window, and each decision that
    changes something.

    Args:
        source: Where the jobs are read.
        wanted: The job that is shown in detail; None: the only one that runs.
        as_json: Print one JSON object per window.

    Raises:
        ControllerError: The controller does not answer at first. Later it is asked again.
        TraceError: The trace cannot be read.
    """
    console, watched = printer(), JobWatch(source, wanted)
    watched.update()
    once = isinstance(source, FromTrace)
    try:
        if console.is_terminal and not as_json:
            _screen(watched, console, once)
        else:
            _lines(watched, once, as_json)
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


def _screen(watched: JobWatch, console: Console, once: bool) -> None:
    def content() -> Any:
        return screen(watched.jobs, watched.shown, watched.decisions, watched.note)

    if once:
        console.print(content())
        return
    with Live(content(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(SECONDS)
            watched.try_update()
            live.update(content(), refresh=True)


def _lines(watched: JobWatch, once: bool, as_json: bool) -> None:
    noted = ""
    while True:
        try:
            for job, view, after in watched.new_windows():
                click.echo(_json(job, view, after) if as_json else line(job, view, after))
        except ControllerError as error:
            watched.note = str(error)
        if watched.note != noted:
            noted = watched.note
            click.echo(printable(noted) if noted else "the controller answers again", err=True)
        all_ended = bool(watched.jobs) and all(job.state == "ended" for job in watched.jobs)
        if once or all_ended:
            return
        time.sleep(SECONDS)
        watched.try_update()


def _json(job: JobView, view: WindowView, after: DecisionView | None) -> str:
    facts = {"job": job.job, "window": view.model_dump(mode="json")}
    return json.dumps({**facts, "decision": None if after is None else after.model_dump(mode="json")})
