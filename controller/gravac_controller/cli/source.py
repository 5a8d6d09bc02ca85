"""What a command reads: running controllers, a trace file, or the job of a name."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import click
from click.core import ParameterSource

from gravac.protocol import Decision, JobSpec, WindowReport
from gravac.replays.follow import Follower
from gravac.traces import TraceError, read_trace
from gravac.traces.parts import ACTIVE, Part
from gravac.wording import did_you_mean, printable
from gravac_controller.client import Client, running_controllers
from gravac_controller.client.connection import base_url
from gravac_controller.live.job_views import job_view
from gravac_controller.live.projection import LiveJob
from gravac_controller.lock import being_written
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.models import DecisionView, JobSummary, JobView, WindowView

ADDRESS = "GRAVAC_CONTROLLER"
"""The variable with the address of a controller, as trainings read it."""
DEFAULT_FOLDER, FOLDER = Path("gravac-runs"), "GRAVAC_DATA_DIR"
"""Folder of the journals, and the variable that names another one, also for trainings."""
NEWEST = 5
"""How many ended jobs of a controller are shown, or journals where none runs."""


_ADDRESS = re.compile(r"[^/\\]*:[0-9]+(/.*)?|.*://.*")
MOST_NAMED = 20
"""Jobs that a message names."""


class SourceError(click.ClickException):
    """There is nothing to show, or it is out of reach. The message says what to do."""


class CannotUse(click.ClickException):
    """A trace, file, folder, port or setting cannot be used. The message says why."""

    exit_code = 2


def journals_folder() -> Path:
    """Return the folder of the journals where no option names one."""
    return Path(os.environ.get(FOLDER) or DEFAULT_FOLDER)


@contextlib.contextmanager
def needing_torch(what: str) -> Iterator[None]:
    """Say what needs torch where an import does not find it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise click.ClickException(f"{what} torch, which is not installed") from None


T = TypeVar("T")


def by_ending(path: Path, known: Mapping[str, T], option: str) -> T:
    """Return what ``known`` has for the ending of a file. Raises click.BadParameter for another ending."""
    try:
        return known[path.suffix.lower()]
    except KeyError:
        raise click.BadParameter(
            f"{str(path)!r} does not end in {' or '.join(known)}", param_hint=option
        ) from None


def active_part(trace: Path) -> Path:
    """Return the file of a trace that is given by its folder."""
    return trace / ACTIVE if trace.is_dir() else trace


class Source(Protocol):
    """Jobs with their windows and decisions. The methods raise ControllerError or TraceError."""

    left_out: int
    """Jobs that ended long ago, which the last call of ``jobs`` left out."""

    @property
    def where(self) -> str:
        """Address or path, for messages."""
        ...

    def jobs(self, wanted: str | None = None) -> list[JobView]:
        """The job of the name ``wanted``, if there is one; else all jobs that have not ended, and the newest others."""
        ...

    def unreadable(self) -> dict[str, str]:
        """Journals that cannot be read, and why."""
        ...

    def windows(self, job: str, after: int | None = None, epoch: int | None = None) -> Iterator[WindowView]:
        """Windows after number ``after``, of that epoch."""
        ...

    def decisions(
        self, job: str, after: int | None = None, epoch: int | None = None, changed: bool | None = None
    ) -> Iterator[DecisionView]:
        """Decisions on windows after number ``after``, of that epoch; ``changed``: that began an epoch, or did not."""
        ...


@dataclass
class FromController:
    """A running controller."""

    client: Client
    left_out: int = 0

    @property
    def where(self) -> str:
        return self.client.url

    def jobs(self, wanted: str | None = None) -> list[JobView]:
        listed = list(self.client.jobs())
        if wanted in {job.job for job in listed}:
            return [self.client.job(wanted or "")]
        ended = sorted((job for job in listed if job.state == "ended"), key=_last_heard, reverse=True)
        older = {job.job for job in ended[NEWEST:]}
        self.left_out = len(older)
        return [self.client.job(job.job) for job in listed if job.job not in older]

    def unreadable(self) -> dict[str, str]:
        return {job.job: job.reason for job in self.client.unreadable()}

    def windows(self, job: str, after: int | None = None, epoch: int | None = None) -> Iterator[WindowView]:
        return self.client.windows(job, after=after, epoch=epoch)

    def decisions(
        self, job: str, after: int | None = None, epoch: int | None = None, changed: bool | None = None
    ) -> Iterator[DecisionView]:
        return self.client.decisions(job, after=after, epoch=epoch, changed=changed)


class FromTrace:
    """A trace file. Windows and decisions are read again from the file each time, so memory is bounded.

    Raises TraceError.
    """

    def __init__(self, path: Path) -> None:
        self._where, self._path, self.left_out = str(path), path, 0
        self._live = LiveJob(ControllerSettings.model_construct().with_limits(history_windows=1))
        follower = Follower(adopt=True)
        for line in read_trace(path):
            follower.push(line)
            self._live.apply(line.number, line.time, line.record)
        if follower.fold is None or self._live.decision is None:
            raise TraceError(str(path), None, "holds no job")
        ended = self._live.presence.ended
        self._live.orders.in_force = None if ended else follower.fold.override
        self._written = being_written(path)

    @property
    def where(self) -> str:
        return self._where

    def jobs(self, wanted: str | None = None) -> list[JobView]:
        view = job_view(self._live)
        if view.state != "ended" and not self._written:
            view = view.model_copy(update={"state": "interrupted"})
        return [view]

    def unreadable(self) -> dict[str, str]:
        return {}

    def windows(self, job: str, after: int | None = None, epoch: int | None = None) -> Iterator[WindowView]:
        spec: JobSpec | None = None
        for line in read_trace(self._path):
            record = line.record
            if isinstance(record, JobSpec):
                spec = record
            elif isinstance(record, WindowReport):
                later = after is None or record.window > after
                if later and epoch in (None, record.epoch) and spec is not None:
                    yield WindowView.of(line.time, record, spec)

    def decisions(
        self, job: str, after: int | None = None, epoch: int | None = None, changed: bool | None = None
    ) -> Iterator[DecisionView]:
        before: Decision | None = None
        compressor = self._live.spec_and_decision()[0].compressor
        repeats = False  # a part begins by repeating the end of the part before it
        for line in read_trace(self._path):
            record = line.record
            if isinstance(record, JobSpec):
                compressor = record.compressor
            if isinstance(record, Decision) and not repeats:
                view = DecisionView.of(line.time, record, before, compressor)
                before = record
                later = after is None or record.window > after
                if later and epoch in (None, record.epoch) and changed in (None, view.changed):
                    yield view
            repeats = isinstance(record, Part) or (repeats and isinstance(record, JobSpec))


def sources(text: str | None, data_dir: Path, token: str | None, most: int = NEWEST) -> list[Source]:
    """Return the sources that ``text`` names: a trace, the folder of one, or an address.

    None: the controller that GRAVAC_CONTROLLER names, else all that serve ``data_dir``, else the ``most`` newest
    journals in ``data_dir``. Raises SourceError.
    """
    if text is None:
        return _running(data_dir, token) or _newest(data_dir, most)
    path = active_part(Path(text))
    if path.is_file():
        try:
            return [FromTrace(path)]
        except (TraceError, ValueError) as error:
            raise SourceError(printable(str(error))) from None
    try:
        return [_closing(Client(text, token))]
    except ValueError as error:
        raise click.UsageError(
            f"{error}, or give the path of a trace ({printable(text)} does not exist)"
        ) from None


def address_in_environment() -> str | None:
    """Return the address in GRAVAC_CONTROLLER; None where it has none, or ``--data-dir`` says where to look."""
    given = click.get_current_context().get_parameter_source("data_dir")
    text = os.environ.get(ADDRESS, "")
    if given is ParameterSource.COMMANDLINE or text in ("", "auto", "none"):
        return None
    try:
        return base_url(text)
    except ValueError as error:
        raise click.UsageError(f"{ADDRESS}: {error}") from None


class TraceFile(click.ParamType[Path]):
    """A path that exists. A word that is none is a job in ``journals_folder``."""

    name = "TRACE"

    def convert(
        self, value: str | Path, parameter: click.Parameter | None, context: click.Context | None
    ) -> Path:
        """Return the path."""
        path, folder = Path(value), journals_folder()
        is_trace, job = path.is_file() or (path / ACTIVE).is_file(), folder / path
        if len(path.parts) == 1 and not is_trace and (job / ACTIVE).is_file():
            return job
        if not path.exists():
            jobs = sorted(found.parent.name for found in folder.glob(f"*/{ACTIVE}"))
            here = f"jobs in {folder}: {', '.join(jobs)}" if jobs else f"no jobs in {folder}"
            text = f"no file and no job {str(value)!r}{did_you_mean(str(value), jobs)}; {here}"
            self.fail(printable(text), parameter, context)
        return path


@dataclass(frozen=True)
class AskedJob:
    """What the words of a command name."""

    job: str | None = None
    source: str | None = None
    epoch: int | None = None


def asked(words: tuple[str, ...], epochs: bool = False) -> AskedJob:
    """Read JOB and SOURCE, with ``epochs`` also EPOCH, in any order.

    A word that is no number, address or file is a job. Raises click.UsageError where one of them is given twice.
    """
    found: dict[str, str] = {}
    for word in words:
        kind = "source" if _is_source(word) else "job"
        if epochs and word.isascii() and word.isdigit():
            kind = "epoch"
        if kind in found:
            raise click.UsageError(
                f"give at most one {kind.upper()}, got {printable(found[kind])} and {printable(word)}"
            )
        found[kind] = word
    epoch = found.get("epoch")
    return AskedJob(found.get("job"), found.get("source"), None if epoch is None else int(epoch))


def _is_source(word: str) -> bool:
    path = Path(word)
    return bool(_ADDRESS.fullmatch(word)) or "/" in word or path.is_file() or (path / ACTIVE).is_file()


def one_source(text: str | None, data_dir: Path, token: str | None, job: str | None = None) -> Source:
    """Return the single source that ``text`` names: the one that has ``job``, else the newest journal.

    Raises:
        SourceError: Several controllers run, there is nothing to show, or nowhere a job of that name.
        ControllerError: The controller does not answer.
    """
    if text is None and job is not None:
        return _having(job, data_dir, token)
    found = sources(text, data_dir, token, most=1)
    if len(found) == 1:
        return found[0]
    several = ", ".join(source.where for source in found)
    raise SourceError(f"several controllers serve {data_dir}; choose one, or name a job: {several}")


def _having(job: str, data_dir: Path, token: str | None) -> Source:
    """Return the running controller that has the job, else its journal in ``data_dir``."""
    names: dict[str, None] = {}
    where = []
    for source in _running(data_dir, token):
        known = [view.job for view in source.jobs(job)]
        if job in known:
            return source
        names |= dict.fromkeys(known)
        where.append(source.where)
    journals = [path.parent.name for path in _journals(data_dir)]
    if job in journals:
        return sources(str(data_dir / job / ACTIVE), data_dir, token)[0]
    raise no_job(job, [*names, *journals], ", ".join([*where, str(data_dir)]))


def no_job(name: str, known: list[str], where: str) -> SourceError:
    """Return the error for a job that does not exist."""
    named = list(dict.fromkeys(known))
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    listed = f"jobs here: {', '.join(named[:MOST_NAMED])}{more}" if named else "there are no jobs here"
    return SourceError(printable(f"no job {name!r}{did_you_mean(name, named)} at {where}; {listed}"))


def choose(jobs: list[JobView], name: str | None, where: str) -> JobView:
    """Return the job of that name; without a name the only one, or the only one that runs. Raises SourceError."""
    names = [job.job for job in jobs]
    if name is not None:
        if name not in names:
            raise no_job(name, names, where)
        return jobs[names.index(name)]
    going = [job for job in jobs if job.state == "running"] if len(jobs) > 1 else jobs
    if len(going) == 1:
        return going[0]
    raise SourceError(f"{where}: name a job: {', '.join(names)}" if names else f"{where} has no jobs yet")


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    envvar=FOLDER,
    help=f"Folder of the journals; used to find the controllers that serve it [{FOLDER}].",
)


def reading_token() -> str | None:
    """Return the token of readers in GRAVAC_TOKEN; None where it has none."""
    return os.environ.get("GRAVAC_TOKEN") or None


def _running(data_dir: Path, token: str | None) -> list[Source]:
    """Return the controller that GRAVAC_CONTROLLER names, else all that serve ``data_dir``."""
    if (address := address_in_environment()) is not None:
        return [_closing(Client(address, token))]
    return [_closing(client) for client in running_controllers(data_dir, token)]


def _newest(data_dir: Path, most: int) -> list[Source]:
    """Return the most recently written journals, newest first. Raises SourceError where none can be read."""
    journals, found = _journals(data_dir), list[Source]()
    for path in journals:
        try:
            found.append(FromTrace(path))
        except (TraceError, ValueError) as error:
            click.echo(f"{printable(str(path))} is skipped: {printable(str(error))}", err=True)
        if len(found) == most:
            break
    if not found:
        raise SourceError(
            f"no controller serves {data_dir}, and {data_dir} has no journal. Give the address that the training logs "
            f"at its start, here or in {ADDRESS}, the folder of its journals with --data-dir, or a trace file; "
            "`gravac serve` starts a permanent controller"
        )
    more = len(journals) - len(found)
    older = f" ({more} older ones are not shown)" if more else ""
    click.echo(f"No controller serves {data_dir}. Its newest journals{older}:", err=True)
    return found


def _journals(data_dir: Path) -> list[Path]:
    """Return all journals, the most recently written one first."""
    return sorted(data_dir.glob(f"*/{ACTIVE}"), key=_written, reverse=True)


def _last_heard(job: JobSummary) -> float:
    return job.started_time if job.last_report_time is None else job.last_report_time


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _closing(client: Client) -> Source:
    """Return the controller behind a client, which is closed at the end of the command."""
    click.get_current_context().call_on_close(client.close)
    return FromController(client)
