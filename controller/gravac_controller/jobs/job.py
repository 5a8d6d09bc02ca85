"""One job: its fold (decisions), its journal (the source of truth) and its projection (what readers see).

Every change runs in this order: fold, journal with fsync, projection, answer. So everything that was answered is on
disk. If the disk refuses, the sender is asked to retry, and the state is rebuilt from the journal.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from pathlib import Path

import anyio.to_thread

from gravac.fold import JobFold, differs
from gravac.policies import steering
from gravac.protocol import End, Event, JobAnswer, JobSpec, Order, Override, WindowAnswer, WindowReport
from gravac.replays.follow import Difference, Follower
from gravac.traces import Line, TraceRecord
from gravac.wording import shortened
from gravac_controller.errors import Conflict, Invalid
from gravac_controller.jobs import refusals, registration
from gravac_controller.jobs.checks import check_report, pin_limit
from gravac_controller.jobs.glance import glance, last_line
from gravac_controller.jobs.journal import Journal, OpenJournals
from gravac_controller.live import job_views
from gravac_controller.live.projection import LiveJob
from gravac_controller.live.recent import Budget
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.models import EventView, JobSummary, State

logger = logging.getLogger("gravac.controller")


class Job:
    """One job of the store. Requests that change it run one at a time (``_exclusive``)."""

    def __init__(
        self,
        folder: Path,
        settings: ControllerSettings,
        now: Callable[[], float],
        threads: Executor,
        tidier: Executor,
        budget: Budget,
        open_journals: OpenJournals,
    ) -> None:
        self.journal = Journal(folder, settings, now)
        self.live = LiveJob(settings)
        self._name, self._settings = folder.name, settings
        self._budget, self._open_journals = budget, open_journals
        self._threads, self._tidier = threads, tidier
        self._lock = asyncio.Lock()
        self._fold: JobFold | None = None
        self._stale = False  # a write failed: read the journal again before the next change
        self._asleep: Line | None = None  # the last line of a journal that was not read
        self._glance: JobSummary | None = None

    # -- opening ----------------------------------------------------------------------------------------------

    def doze(self, silent_since: float) -> bool:
        """Leave the journal unread until somebody asks for the job, if it has ended or reported no later than this.

        Returns:
            False where it has to be read now, to go on or because something in it is unfinished.

        Raises:
            OSError: The folder cannot be read.
        """
        last = last_line(self.journal.path.parent)
        if last is not None and (last.kind == "end" or last.time <= silent_since):
            self._asleep = last
        return self.asleep

    @property
    def asleep(self) -> bool:
        """Return whether the journal was not read. ``live`` is empty then."""
        return self._asleep is not None

    async def wake(self) -> None:
        """Read the journal of a job that is asleep. Raises what ``load`` raises."""
        if self.asleep:
            async with self._lock:
                if self.asleep:
                    await anyio.to_thread.run_sync(self.load)
                    self.update_budget()

    def state(self) -> State:
        """Return the state of the job, awake or asleep."""
        if self._asleep is None:
            return self.live.state()
        return "ended" if self._asleep.kind == "end" else "stale"

    def summary(self) -> JobSummary:
        """Return the job's line of the job list, by a glance where it is asleep. Raises OSError, TraceError."""
        if not self.asleep:
            return job_views.summary(self.live)
        if self._glance is None:
            seen = job_views.summary(glance(self.journal.path, self._settings))
            self._glance = seen.model_copy(update={"state": self.state()})
        return self._glance

    def load(self) -> bool:
        """Fold the journal on disk, and complete a window or the head of a part that was cut off.

        Returns:
            False for an empty journal: the controller died before its first line.

        Raises:
            OSError, TraceError, ValueError: The journal cannot be read or continued.
        """
        live = LiveJob(self._settings)
        follower = Follower(adopt=True)

        def visit(line: Line) -> None:
            for found in follower.push(line):
                if isinstance(found, Difference):
                    raise ValueError(found.message)
            live.apply(line.number, line.time, line.record)

        self.journal.load(visit)
        fold = follower.fold
        try:
            if fold is not None and fold.spec.job != self._name:
                raise ValueError(
                    f"the journal is of job {fold.spec.job!r}, the folder belongs to another job"
                )
            cut_off = follower.missing_head if follower.missing is None else (follower.missing,)
            if cut_off:
                for line in self.journal.append(*cut_off):
                    live.apply(line.number, line.time, line.record)
        except BaseException:
            self.close()
            raise
        self._stale = False
        self._asleep = self._glance = None
        if fold is None and self.begun:
            logger.warning("%s: the journal is gone, and so is its job", self.journal.path)
            self._fold = None  # readers see the last known state until the job registers again
            self.close()
            return False
        self._fold = fold
        ended = live.presence.ended
        live.orders.in_force = None if fold is None or ended else fold.override
        previous, self.live = self.live, live
        previous.recent.notify()
        if fold is None or ended:
            self.close()
        self.journal.tidy()
        return fold is not None

    @property
    def begun(self) -> bool:
        """Return whether the first registration is in the journal."""
        return self._fold is not None

    def update_budget(self) -> None:
        """Report the memory and the file that the job takes. Call it on the event loop."""
        self._budget.changed(self._name, self.live.recent)
        if self.is_open:
            self._open_journals.used(self)

    @property
    def is_open(self) -> bool:
        """Whether the journal is open."""
        return self.journal.is_open

    @property
    def busy(self) -> bool:
        """Whether the job is being changed."""
        return self._lock.locked()

    def close(self) -> None:
        """Close the journal; the next write opens it again."""
        self.journal.close()

    # -- requests of agents --------------------------------------------------------------------------------------

    def differs(self, spec: JobSpec) -> str:
        """Return why the job is another training than that of ``spec``; empty where nothing shows it."""
        return "" if self._fold is None else differs(spec, self._fold.spec)

    async def register(self, spec: JobSpec, note: str = "") -> JobAnswer:
        """Begin the job, resume it under a new incarnation, or repeat the answer.

        Args:
            spec: The job.
            note: What the trainer's log should say.

        Raises:
            Conflict: Another run holds the job, or its state does not allow this.
            Invalid: The policy does not accept its settings.
            Unavailable: The journal cannot be written.
        """
        async with self._exclusive():
            if self._fold is None:
                await self._begin(spec, note)
            elif over := await self._resume(self._fold, spec):
                note = f"{note}. {over}" if note else over
            try:
                return self._known().job_answer(shortened(note, 999))
            except ValueError as error:
                raise refusals.undecidable(spec.policy.name, error) from error

    async def window(self, report: WindowReport) -> WindowAnswer:
        """Decide on a window, or repeat the latest answer for one that is known.

        Raises:
            Conflict: The window contradicts the journal, or its run does not hold the job.
            Invalid: The report contradicts itself or its job.
            Unavailable: The journal cannot be written.
        """
        async with self._exclusive():
            fold = self._known()
            check_report(report, fold.spec)
            judgement = fold.judge(report)
            if judgement == "duplicate":
                return fold.answer()
            if judgement == "wrong_incarnation":
                raise self._not_registered(report.incarnation)
            if judgement == "conflict":
                raise refusals.conflicting_window(report.window, fold.next_window)
            if self.live.presence.ended:
                raise refusals.has_ended(report.incarnation)
            records: list[TraceRecord] = []
            if judgement == "gap":
                records.append(registration.gap_event(fold.next_window, report.window))
            try:
                decision = fold.decide(report)
            except (ValueError, ArithmeticError) as error:
                raise refusals.undecidable(fold.spec.policy.name, error) from error
            await self._write(*records, report, decision)
            if self.journal.full:
                await self._begin_part(fold)
            return fold.answer()

    async def event(self, event: Event) -> EventView:
        """Journal an event. A repeated one (a retry) changes nothing. Raises Unavailable."""
        async with self._exclusive():
            self._known()
            if event.window is not None:
                for known in self.live.recent.events:
                    if known.event == event:
                        return known
            await self._write(event)
            return self.live.recent.events[-1]

    async def end(self, end: End) -> None:
        """Journal the end of the incarnation. A retry changes nothing. Raises Conflict, Unavailable."""
        async with self._exclusive():
            if end.incarnation != self._known().spec.incarnation:
                raise self._not_registered(end.incarnation)
            if self.live.presence.ended:
                return
            await self._write(end.with_totals(self._known().next_window, self.live.counts.steps))

    # -- requests of operators -----------------------------------------------------------------------------------

    @property
    def override_tag(self) -> str:
        """The state that an order must refer to: the epoch, and how many orders wait for the next window."""
        fold = self._known()
        return (
            f"{fold.decision.epoch}+{fold.orders_waiting}"
            if fold.orders_waiting
            else f"{fold.decision.epoch}"
        )

    async def order(self, order: Order, seen: str) -> None:
        """Journal an order, which the decision on the next window applies.

        To resume where nothing is overridden changes nothing.

        Args:
            order: What to do from the next window on.
            seen: The ``override_tag`` that the operator saw.

        Raises:
            Outdated: The tag has changed since.
            Conflict: The job has ended.
            Invalid: The agents would not accept the pinned CF or codec.
            Unavailable: The journal cannot be written.
        """
        async with self._exclusive():
            fold, orders = self._known(), self.live.orders
            if seen != self.override_tag:
                raise refusals.stale_order(self.override_tag, seen)
            if order.action == "resume" and orders.in_force is None and orders.pending is None:
                return
            if self.live.presence.ended:
                raise refusals.job_has_ended()
            limit = pin_limit(fold)
            if order.cf is not None and order.cf > limit:
                raise refusals.pin_too_strong(order.cf, limit)
            if order.codec is not None and order.codec not in fold.codecs:
                raise refusals.codec_not_built(order.codec, fold.codecs)
            if order.action == "pin":
                order = _with_plan(fold, order)
            override = Override(**order.model_dump(), epoch=fold.decision.epoch)
            fold.order(override)
            await self._write(override)
            logger.warning(
                "job %s, epoch %d: %s",
                fold.spec.job,
                override.epoch,
                self.live.recent.events[-1].event.message,
            )

    # -- internals ---------------------------------------------------------------------------------------

    async def _begin(self, spec: JobSpec, note: str) -> None:
        try:
            fold = JobFold(spec)
        except ValueError as error:
            raise Invalid(str(error)) from None
        self._fold = fold
        live = self.live if self.live.spec is None else LiveJob(self._settings)
        await self._write(spec, fold.decision, registration.registered_event(spec, note), live=live)

    async def _resume(self, fold: JobFold, spec: JobSpec) -> str:
        """Return what the trainer's log should say."""
        same = spec.incarnation == fold.spec.incarnation
        if same and self.live.presence.ended:
            raise refusals.has_ended(spec.incarnation)
        if not same and self._settings.job is None:  # with --job, only the agent that started us reports here
            holder, silent = fold.spec.incarnation, self.live.presence.silent_seconds()
            if (wait := registration.wait_seconds(self.live)) > 0:
                raise refusals.job_is_live(spec.incarnation, spec.job, holder, silent, wait)
        records, note = registration.resume(fold, spec)
        if records:
            await self._write(*records)
        return note

    @contextlib.asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Run one change at a time, each on a fold that agrees with the journal."""
        async with self._lock:
            if self._stale:
                try:
                    await anyio.to_thread.run_sync(self.load)
                except (OSError, ValueError) as error:
                    raise refusals.unwritable(error) from error
                self.update_budget()
            yield

    async def _write(self, *records: TraceRecord, live: LiveJob | None = None) -> None:
        """Journal the records, then update the projection. After a failure the journal is read again.

        ``live``: a new projection to use instead of the current one.
        """
        self._stale = True
        self._open_journals.used(self)
        try:
            loop = asyncio.get_running_loop()
            lines = await loop.run_in_executor(self._threads, self.journal.append, *records)
        except (OSError, ValueError) as error:
            raise refusals.unwritable(error) from error
        self._stale = False
        if live is not None:
            previous, self.live = self.live, live
            previous.recent.notify()
        for line in lines:
            self.live.apply(line.number, line.time, line.record)
        ended = self.live.presence.ended
        self.live.orders.in_force = None if ended else self._known().override
        if ended:  # also where a note comes after the end
            self.close()
        self.update_budget()
        self.live.recent.notify()

    async def _begin_part(self, fold: JobFold) -> None:
        """Continue in a new part of the journal. A thread compresses the full one while windows keep coming in."""
        spec, summary = fold.spec_now(), self.live.carried()
        for line in await anyio.to_thread.run_sync(self.journal.begin_part, spec, fold.decision, summary):
            self.live.apply(line.number, line.time, line.record)
        self._tidier.submit(self._tidy)

    def _tidy(self) -> None:
        try:
            self.journal.tidy()
        except Exception:  # in the background nobody else would see it
            logger.exception("%s: full parts cannot be compressed or deleted", self.journal.path)

    def _not_registered(self, incarnation: str) -> Conflict:
        spec = self._known().spec
        if incarnation in self.live.presence.earlier_incarnations:
            return refusals.superseded(incarnation, spec.job, spec.incarnation)
        return refusals.wrong_incarnation(incarnation, spec.job)

    def _known(self) -> JobFold:
        if self._fold is None:
            raise refusals.unknown_job()
        return self._fold


def _with_plan(fold: JobFold, pin: Order) -> Order:
    """Return a pin that names its codec where that is not the one in force. Raises Invalid."""
    try:
        plan = steering.pinned_plan(fold.policy, fold.spec, fold.decision, pin)
    except ValueError as error:
        raise Invalid.field("cf", str(error)) from None
    if pin.codec is not None or plan.codec == fold.decision.codec:
        return pin
    return pin.model_copy(update={"codec": plan.codec or fold.spec.compressor})
