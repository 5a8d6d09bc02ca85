"""Where the commands that look take what they show from: controllers, or a trace file."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import click

from gravac.protocol import Decision, JobSpec, WindowReport
from gravac.traces.follow import Follower
from gravac.traces.parts import ACTIVE, Part
from gravac.traces.trace import TraceError, read
from gravac_controller.cli.wording import printable
from gravac_controller.client import Client, ControllerError, running_controllers
from gravac_controller.live.present import job_view
from gravac_controller.live.projection import LiveJob
from gravac_controller.lock import being_written
from gravac_controller.settings import DEFAULT_PORT, ControllerSettings
from gravac_controller.views.models import DecisionView, JobView, WindowView
from gravac_controller.views.records import decision_view, window_view

DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
DEFAULT_FOLDER = Path("gravac-runs")
NEWEST = 5
"""How many journals are looked at where no controller runs."""


class Nothing(click.ClickException):
    """There is nothing to show, or it cannot be had; the message says what to do."""


class Source(Protocol):
    """What a command shows. Its methods raise ControllerError or TraceError."""

    @property
    def where(self) -> str:
        """Address or path, for people."""
        ...

    def jobs(self) -> list[JobView]:
        """All jobs, by name."""
        ...

    def unreadable(self) -> dict[str, str]:
        """Journals that cannot be read, and why."""
        ...

    def windows(self, job: str, after: int | None = None, epoch: int | None = None) -> Iterator[WindowView]:
        """Windows above ``after``, of that epoch."""
        ...

    def decisions(
        self, job: str, after: int | None = None, epoch: int | None = None, changed: bool | None = None
    ) -> Iterator[DecisionView]:
        """Decisions on windows above ``after``, of that epoch, that began an epoch (or did not)."""
        ...


@dataclass
class FromController:
    """A running controller."""

    client: Client

    @property
    def where(self) -> str:
        return self.client.url

    def jobs(self) -> list[JobView]:
        return [self.client.job(job.job) for job in self.client.jobs()]

    def unreadable(self) -> dict[str, str]:
        return {job.job: job.reason for job in self.client.unreadable()}

    def windows(self, job: str, after: int | None = None, epoch: int | None = None) -> Iterator[WindowView]:
        return self.client.windows(job, after=after, epoch=epoch)

    def decisions(
        self, job: str, after: int | None = None, epoch: int | None = None, changed: bool | None = None
    ) -> Iterator[DecisionView]:
        return self.client.decisions(job, after=after, epoch=epoch, changed=changed)


class FromTrace:
    """A trace file, read once. Raises TraceError."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._live = LiveJob(ControllerSettings.model_construct())
        self._windows: list[WindowView] = []
        self._decisions: list[DecisionView] = []
        follower, before = Follower(adopt=True), None
        repeats = False  # a part begins with what the part before it holds already
        for line in read(path):
            follower.push(line)
            self._live.apply(line.number, line.time, line.record)
            if isinstance(line.record, WindowReport):
                self._windows.append(window_view(line.time, line.record, self._live.known()[0].world_size))
            elif isinstance(line.record, Decision) and not repeats:
                view = decision_view(line.time, line.record, before)
                self._decisions.append(view)
                before = view.decision
            repeats = isinstance(line.record, Part) or (repeats and isinstance(line.record, JobSpec))
        if follower.fold is None or before is None:
            raise TraceError(str(path), None, "holds no job")
        self._live.in_force(follower.fold.override)
        self._written = being_written(path)

    def jobs(self) -> list[JobView]:
        view = job_view(self._live)
        if view.state != "ended" and not self._written:
            view = view.model_copy(update={"state": "interrupted"})
        return [view]

    def unreadable(self) -> dict[str, str]:
        return {}

    def windows(self, job: str, after: int | None = None, epoch: int | None = None) -> Iterator[WindowView]:
        for view in self._windows:
            if (after is None or view.report.window > after) and epoch in (None, view.report.epoch):
                yield view

    def decisions(
        self, job: str, after: int | None = None, epoch: int | None = None, changed: bool | None = None
    ) -> Iterator[DecisionView]:
        for view in self._decisions:
            later = after is None or view.decision.window > after
            if later and epoch in (None, view.decision.epoch) and changed in (None, view.changed):
                yield view


def sources(text: str | None, data_dir: Path, token: str | None, most: int = NEWEST) -> list[Source]:
    """What ``text`` names: a trace, a folder of one, or an address. Null: all controllers that run on ``data_dir``,
    else the one at the usual port, else the ``most`` newest journals in ``data_dir``. Raises Nothing."""
    if text is None:
        found: list[Source] = [_closing(client) for client in running_controllers(data_dir, token)]
        return found or _usual(token) or _newest(data_dir, most)
    path = Path(text)
    if path.is_dir():
        path = path / ACTIVE
    if path.is_file():
        try:
            return [FromTrace(path)]
        except (TraceError, ValueError) as error:
            raise Nothing(printable(str(error))) from None
    try:
        return [_closing(Client(text, token))]
    except ValueError as error:
        raise click.UsageError(f"{error}; or the path of a trace ({printable(text)} is none)") from None


def one_source(text: str | None, data_dir: Path, token: str | None, job: str | None = None) -> Source:
    """The same where only one will do: the one that has ``job``, else the newest journal. Raises Nothing when several
    controllers run, and ControllerError."""
    found = sources(text, data_dir, token, most=1 if job is None else NEWEST)
    if len(found) == 1:
        return found[0]
    having = [source for source in found if job is not None and job in {one.job for one in source.jobs()}]
    if having:
        return having[0]
    if isinstance(found[0], FromTrace):
        assert job is not None  # else there is one
        path = data_dir / job / ACTIVE
        if Path(job).name == job and path.is_file():  # older than those
            return sources(str(path), data_dir, token)[0]
        raise Nothing(f"there is no journal of job {printable(job)!r} in {data_dir}")
    several = ", ".join(source.where for source in found)
    raise Nothing(f"several controllers work on {data_dir}: name one of {several}")


def choose(jobs: list[JobView], name: str | None, where: str) -> JobView:
    """The job of that name; without a name the only one, or the only one that runs. Raises Nothing."""
    if name is None:
        going = [job for job in jobs if job.state == "running"] if len(jobs) > 1 else jobs
        if len(going) == 1:
            return going[0]
    for job in jobs:
        if job.job == name:
            return job
    names = ", ".join(job.job for job in jobs) or "none yet"
    wanted = "name a job with --job" if name is None else f"there is no job {printable(name)!r}"
    raise Nothing(f"{where}: {wanted}; its jobs: {names}")


def looking(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that every command which looks has: where to find controllers, and what to show them."""
    command = click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File with the controller's token, where looking needs it; GRAVAC_TOKEN does the same.",
    )(command)
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path),
        default=DEFAULT_FOLDER,
        show_default=True,
        help="Folder of the journals, to find the controllers that run on it when none is named.",
    )(command)


def token_of(file: Path | None) -> str | None:
    """The token in the file, else GRAVAC_TOKEN, else none. Raises Nothing when the file cannot be read."""
    if file is None:
        return os.environ.get("GRAVAC_TOKEN") or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Nothing(f"--token-file {file} cannot be read: {error}") from None


def _usual(token: str | None) -> list[Source]:
    """The controller at the usual port, if there is one."""
    client = Client(DEFAULT_URL, token)
    try:
        client.health()
    except ControllerError:
        return []
    return [_closing(client)]


def _newest(data_dir: Path, most: int) -> list[Source]:
    """The journals that were written last, the newest first. Raises Nothing when there is none that can be read."""
    journals = sorted(data_dir.glob(f"*/{ACTIVE}"), key=_written, reverse=True)
    found: list[Source] = []
    for path in journals:
        try:
            found.append(FromTrace(path))
        except (TraceError, ValueError) as error:
            click.echo(f"{printable(str(path))} is left out: {printable(str(error))}", err=True)
        if len(found) == most:
            break
    if not found:
        raise Nothing(
            f"no controller runs on the journals in {data_dir}, none answers at {DEFAULT_URL}, and there is no journal "
            "there. Name an address, as a training logs it when it starts, or a trace file; `gravac serve` starts a "
            "controller that stays"
        )
    more = len(journals) - len(found)
    older = f"; {more} older not shown" if more else ""
    click.echo(f"No controller runs on {data_dir}; the newest journals there{older}:", err=True)
    return found


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _closing(client: Client) -> Source:
    """The controller behind a client that is closed when the command is over."""
    click.get_current_context().call_on_close(client.close)
    return FromController(client)
