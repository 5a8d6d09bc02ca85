"""What rank 0 logs about a job: one line at the start, and one at the end with what else is worth knowing.

A library leaves logging to the program. Where the program configures none, these lines would be lost, so they are
written to stderr while the agent runs.
"""

import json
import logging
import shlex
import sys
import threading
from pathlib import Path

from gravac import kernels
from gravac.policies import ObservePolicy, observe
from gravac.predict.advice import other_optimizers
from gravac.wording import display_path, format_fewer, format_plan, format_rate, printable
from gravac_agent.reporting.reporter import Reporter
from gravac_agent.settings import AgentSettings
from gravac_agent.setup.build import Parts

log = logging.getLogger("gravac.agent")
READY_SECONDS = 0.2
"""How often the waiting thread asks whether the controller has answered."""
_warned_of_kernels = False


class Printable(logging.Filter):
    """Removes control characters from every line, so that a controller's answer cannot send escapes to a terminal."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = printable(record.getMessage()), None
        if record.exc_info:
            lines = logging.Formatter().formatException(record.exc_info).splitlines()
            record.exc_text = "\n".join(map(printable, lines))
        return True


log.addFilter(Printable())


def enable_loggers() -> None:
    """Enable gravac's loggers again. ``logging.config`` disables those of all imported modules unless it is asked not
    to, and hydra's configuration and others call it after the imports; levels and handlers stay the program's."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.startswith("gravac.") and isinstance(logger, logging.Logger):
            logger.disabled = False


class _Stderr(logging.Handler):
    """Writes the log to stderr while agents need it and the program has no handler. For the training thread only."""

    def __init__(self) -> None:
        super().__init__()
        self._level, self._agents = logging.NOTSET, 0

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return  # the program configured logging meanwhile
        level = "" if record.levelno == logging.INFO else f" {record.levelname}"
        try:
            sys.stderr.write(f"gravac{level}: {self.format(record)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            self.handleError(record)

    def enter(self) -> bool:
        """Add this handler, if the program has none. Return whether ``leave`` has to be called."""
        if not self._agents:
            if log.hasHandlers():
                return False
            self._level = log.level
            log.addHandler(self)
            if log.level == logging.getLogger("gravac").level == logging.NOTSET:
                log.setLevel(logging.INFO)
        self._agents += 1
        return True

    def leave(self) -> None:
        """Remove it with the last agent that needs it."""
        self._agents -= 1
        if not self._agents:
            log.removeHandler(self)
            log.setLevel(self._level)


_stderr = _Stderr()


class RunLog:
    """The log of one agent from its start to ``end``. Silent on all ranks but 0."""

    def __init__(self, parts: Parts, settings: AgentSettings) -> None:
        self._parts: Parts | None = None if parts.reporter is None else parts
        self._began, self._over = threading.Lock(), threading.Event()
        self._on_stderr = False
        self._thread: threading.Thread | None = None
        if self._parts is None:
            return
        self._on_stderr = _stderr.enter()
        _warn_of_kernels()
        if settings.controller == "none":
            self._begin(parts)
        else:  # the address is known when the controller answers; no step may wait for that
            self._thread = threading.Thread(
                target=self._wait, args=(parts.reporter,), name="gravac-run-log", daemon=True
            )
            self._thread.start()

    def end(self, failed: bool) -> None:
        """Log the summary, after the reporter was closed, and drop the reference to the agent's parts."""
        parts, self._parts = self._parts, None
        enable_loggers()  # the program may have configured logging meanwhile
        if parts is None or parts.reporter is None:
            return
        if parts.reporter.wait_ready(0):
            self._begin(parts)
        self._over.set()
        # It may hold the process groups, whose end lets other threads run: never while the interpreter ends.
        if self._thread is not None:
            self._thread.join()
        how = "ended by an error in the training" if failed else "ended"
        log.info(
            "%s",
            f"job {parts.reporter.job} {how} after {parts.loop.step} steps{_sent(parts)}{_replay(parts.reporter)}",
        )
        state = parts.reporter.policy_state
        if parts.spec.policy.name == ObservePolicy.name and state is not None and parts.loop.totals.steps_at:
            for line in observe.lines(json.loads(state)["decision"]["reason"]):
                log.info("%s", line)
        if not failed and (others := _other_optimizers(parts)):
            log.info("%s", f"job {parts.reporter.job}: {others}")
        if self._on_stderr:
            _stderr.leave()

    def _wait(self, reporter: Reporter) -> None:
        while not self._over.wait(READY_SECONDS):
            if reporter.wait_ready(0) and (parts := self._parts) is not None:
                self._begin(parts)
                return

    def _begin(self, parts: Parts) -> None:
        reporter = parts.reporter
        if reporter is None or self._over.is_set() or not self._began.acquire(blocking=False):
            return  # logged already, or too late
        page = "decided in process, without a page" if reporter.url is None else f"page {reporter.url}"
        journal = "" if reporter.trace_path is None else f", journal {display_path(reporter.trace_path)}"
        sends = reporter.directive
        codec, cf = parts.channels.codecs[sends.codec], sends.cf_candidate
        wire_cf = parts.spec.wire_cf(codec, cf)
        fewer = f", {format_fewer(wire_cf)}" if wire_cf is not None and cf > 1.0 else ""
        plan = f"{format_plan(codec, cf)}{fewer}"
        link = parts.spec.link
        on = "" if link is None else f" on an emulated link of {format_rate(link.bits_per_second)}"
        what = f"{parts.world_size} ranks{on}, sending {plan}"
        log.info("%s", f"job {reporter.job}: {page}{journal} ({what})")


def _sent(parts: Parts) -> str:
    """Describe the plan of most steps, and how many bytes were saved; after dense steps alone, what shows the rest."""
    totals = parts.loop.totals
    if not totals.steps_at:
        return ": no gradient was exchanged"
    (codec, cf), steps = totals.steps_at.most_common(1)[0]
    sent = "stayed dense" if cf == 1.0 else f"held {format_plan(parts.channels.codecs[codec], cf)}"
    times = totals.dense_bytes / totals.payload_bytes if totals.payload_bytes else 1.0
    fewer = f", {format_fewer(times)}" if times >= 1.05 else ""
    text = f": {sent} for {100 * steps / totals.steps_at.total():.0f} % of steps{fewer}"
    path = None if parts.reporter is None or not parts.reporter.wait_ready(0) else parts.reporter.trace_path
    if path is not None and path.is_file() and all(each == 1.0 for _, each in totals.steps_at):
        text += f", see what other plans would do with: gravac whatif {_quoted(path.parent)}"
    return text


def _other_optimizers(parts: Parts) -> str:
    """Return what another optimizer would bring, by this run's windows; empty: nothing, or not known."""
    recording = parts.loop.reports.recording
    try:
        return "" if recording is None else other_optimizers(recording)
    except Exception:  # a prediction that fails must not hide how the training ended
        log.debug("what another optimizer would bring could not be predicted", exc_info=True)
        return ""


def _replay(reporter: Reporter) -> str:
    path = reporter.trace_path
    if not reporter.wait_ready(0):  # a journal that is there is one of earlier runs
        return ", without a journal: no controller accepted this run"
    if path is None:
        return "" if reporter.url is None else f", journal at {reporter.url}"
    if not path.is_file():
        return f", without a journal: {display_path(path)} was not written"
    return f", replay with: gravac replay {_quoted(path.parent)} --check"


def _quoted(path: Path) -> str:
    return shlex.quote(display_path(path))


def _warn_of_kernels() -> None:
    """Warn once a process where compiled kernels are missing and plain torch was not asked for."""
    global _warned_of_kernels
    if _warned_of_kernels or kernels.active() != "reference" or not kernels.lacking():
        return
    _warned_of_kernels = True
    log.warning(
        "compressing with plain torch, several times slower than with compiled kernels (%s): pip install 'gravac[cpu]'",
        kernels.lacking(),
    )
