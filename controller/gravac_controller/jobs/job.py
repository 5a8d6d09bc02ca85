"""One job: its fold (what is decided), its journal (the truth) and its live projection (what people see).

Order of every change: fold, journal with fsync, projection, answer. What was answered is therefore on disk. If
the disk refuses, the sender is asked to try again and all is rebuilt from the journal.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio.to_thread

from gravac.fold import JobFold
from gravac.protocol import End, Event, JobAnswer, JobSpec, Order, Override, WindowAnswer, WindowReport
from gravac.traces import Line, TraceRecord
from gravac.traces.follow import Difference, Follower
from gravac_controller.api.problems import ApiError
from gravac_controller.jobs import refusals
from gravac_controller.jobs import registration as takeover
from gravac_controller.jobs.checks import check_report, pin_limit
from gravac_controller.jobs.journal import Journal
from gravac_controller.jobs.noted import gap, registered
from gravac_controller.jobs.writers import Writers
from gravac_controller.live.budget import Budget
from gravac_controller.live.projection import LiveJob
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.models import EventView

logger = logging.getLogger("gravac.controller")


class Job:
    """One job of the store. Requests that change it run one after the other (``_turn``)."""

    def __init__(
        self,
        folder: Path,
        settings: ControllerSettings,
        now: Callable[[], float],
        writers: Writers,
        budget: Budget,
    ) -> None:
        self.journal = Journal(folder, settings, now)
        self.live = LiveJob(settings)
        self._name, self._settings, self._writers, self._budget = folder.name, settings, writers, budget
        self._lock = asyncio.Lock()
        self._fold: JobFold | None = None
        self._tidying: set[asyncio.Task[None]] = set()  # the loop itself keeps no task alive
        self._out_of_step = False  # a write failed: the journal has to be read again before anything else

    # -- opening ----------------------------------------------------------------------------------------------

    def load(self) -> bool:
        """Fold the journal that is there, finishing a window, or the head of a part, that was cut off.

        False for an empty journal (the controller died before its first line). Raises OSError, TraceError, ValueError.
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
                raise ValueError(f"the journal is of job {fold.spec.job!r}, the folder is another's")
            cut_off = follower.missing_head if follower.missing is None else (follower.missing,)
            if cut_off:
                for line in self.journal.append(*cut_off):
                    live.apply(line.number, line.time, line.record)
        except BaseException:
            self.close()
            raise
        self._out_of_step = False
        if fold is None and self.begun:
            logger.warning("%s: the journal is gone, and the job with it", self.journal.path)
            self._fold = None  # readers see what was known until the job begins anew
            self.close()
            return False
        self._fold = fold
        live.in_force(None if fold is None else fold.override)
        previous, self.live = self.live, live
        previous.notify()
        if fold is None or live.ended:
            self.close()
        self.journal.tidy()
        return fold is not None

    @property
    def begun(self) -> bool:
        """Whether the first registration is in the journal."""
        return self._fold is not None

    def note_memory(self) -> None:
        """Count what is kept of the job; call it on the event loop."""
        self._budget.changed(self._name, self.live.recent)

    def close(self) -> None:
        """Close the journal; the next write opens it again."""
        self.journal.close()

    # -- what agents ask --------------------------------------------------------------------------------------

    async def register(self, spec: JobSpec) -> JobAnswer:
        """Begin the job, resume it under a new incarnation, or repeat the answer. Raises ApiError 409, 422, 503."""
        async with self._turn():
            if self._fold is None:
                await self._begin(spec)
            else:
                await self._resume(self._fold, spec)
            try:
                return self._known().job_answer()
            except ValueError as error:
                raise refusals.undecidable(spec.policy.name, error) from error

    async def window(self, report: WindowReport) -> WindowAnswer:
        """Decide on a window, or repeat the newest answer for one that is known. Raises ApiError 409, 422, 503."""
        async with self._turn():
            fold = self._known()
            check_report(report, fold.spec)
            judgement = fold.judge(report)
            if judgement == "duplicate":
                return fold.answer()
            if judgement == "wrong_incarnation":
                raise self._not_registered(report.incarnation)
            if judgement == "conflict":
                raise ApiError(
                    409,
                    f"window {report.window} was reported before with other content, or was skipped; the next "
                    f"window is {fold.next_window}",
                    reason="conflict",
                )
            if self.live.ended:
                raise refusals.has_ended(report.incarnation)
            records: list[TraceRecord] = []
            if judgement == "gap":
                records.append(gap(fold.next_window, report.window))
            try:
                decision = fold.decide(report)
            except (ValueError, ArithmeticError) as error:
                raise refusals.undecidable(fold.spec.policy.name, error) from error
            await self._write(*records, report, decision)
            if self.journal.full:
                await self._turn_page(fold)
            return fold.answer()

    async def event(self, event: Event) -> EventView:
        """Journal an event; the same one again (a retry) changes nothing. Raises ApiError 503."""
        async with self._turn():
            self._known()
            if event.window is not None:
                for known in self.live.events:
                    if known.event == event:
                        return known
            await self._write(event)
            return self.live.events[-1]

    async def end(self, end: End) -> None:
        """Journal the end of the incarnation; again (a retry) changes nothing. Raises ApiError 409, 503."""
        async with self._turn():
            if end.incarnation != self._known().spec.incarnation:
                raise self._not_registered(end.incarnation)
            if self.live.ended:
                return
            await self._write(end.with_totals(self._known().next_window, self.live.totals.steps))
            self.close()

    # -- what operators ask -----------------------------------------------------------------------------------

    @property
    def override_tag(self) -> str:
        """What an operator must have seen to give an order: the epoch, and how many orders wait for the next window."""
        fold = self._known()
        return (
            f"{fold.decision.epoch}+{fold.orders_waiting}"
            if fold.orders_waiting
            else f"{fold.decision.epoch}"
        )

    async def order(self, order: Order, seen: str) -> None:
        """Journal an order, which the decision on the next window obeys. ``seen``: the tag that the operator saw.

        Raises ApiError 409 when the job has ended, 412 when things have moved on, 503. To resume where nothing is
        overridden changes nothing.
        """
        async with self._turn():
            fold = self._known()
            if seen != self.override_tag:
                raise refusals.stale(self.override_tag, seen)
            if self.live.ended:
                raise ApiError(409, "the job has ended: no window follows that could obey", reason="ended")
            if order.action == "resume" and fold.override is None and fold.ordered is None:
                return
            limit = pin_limit(fold)
            if order.cf is not None and limit is not None and order.cf > limit:
                raise refusals.pin_too_strong(order.cf, limit)
            override = Override(**order.model_dump(), epoch=fold.decision.epoch)
            fold.order(override)
            await self._write(override)
            logger.warning(
                "job %s, epoch %d: %s", fold.spec.job, override.epoch, self.live.events[-1].event.message
            )

    # -- steps of these ---------------------------------------------------------------------------------------

    async def _begin(self, spec: JobSpec) -> None:
        try:
            fold = JobFold(spec)
        except ValueError as error:
            raise ApiError(422, str(error)) from None
        self._fold = fold
        anew = self.live if self.live.spec is None else LiveJob(self._settings)
        await self._write(spec, fold.decision, registered(spec), live=anew)

    async def _resume(self, fold: JobFold, spec: JobSpec) -> None:
        same = spec.incarnation == fold.spec.incarnation
        if same and self.live.ended:
            raise refusals.has_ended(spec.incarnation)
        if not same and self._settings.job is None:  # a controller of its own is held by its agent alone
            holder, silent = fold.spec.incarnation, self.live.silent_seconds()
            if (wait := takeover.wait_seconds(self.live)) > 0:
                raise refusals.job_is_live(spec.incarnation, spec.job, holder, silent, wait)
        if records := takeover.resume(fold, spec):
            await self._write(*records)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One change at a time, each on a fold that agrees with the journal."""
        async with self._lock:
            if self._out_of_step:
                try:
                    await anyio.to_thread.run_sync(self.load)
                except (OSError, ValueError) as error:
                    raise refusals.unwritable(error) from error
                self.note_memory()
            yield

    async def _write(self, *records: TraceRecord, live: LiveJob | None = None) -> None:
        """Journal the records, then show them (``live``: in place of what is shown).

        On failure the journal is read again before the next change.
        """
        self._out_of_step = True
        try:
            lines = await self._writers.run(lambda: self.journal.append(*records))
        except (OSError, ValueError) as error:
            raise refusals.unwritable(error) from error
        self._out_of_step = False
        if live is not None:
            previous, self.live = self.live, live
            previous.notify()
        for line in lines:
            self.live.apply(line.number, line.time, line.record)
        self.live.in_force(self._known().override)
        self.note_memory()
        self.live.notify()

    async def _turn_page(self, fold: JobFold) -> None:
        """Go on in a new part of the journal; the full one is compressed in another thread, while windows come in."""
        spec, summary = fold.spec_now(), self.live.carried()
        for line in await anyio.to_thread.run_sync(self.journal.turn, spec, fold.decision, summary):
            self.live.apply(line.number, line.time, line.record)
        task = asyncio.create_task(anyio.to_thread.run_sync(self.journal.tidy))
        self._tidying.add(task)
        task.add_done_callback(self._tidying.discard)

    def _not_registered(self, incarnation: str) -> ApiError:
        spec = self._known().spec
        if incarnation in self.live.earlier_incarnations:
            return refusals.superseded(incarnation, spec.job, spec.incarnation)
        return refusals.wrong_incarnation(incarnation, spec.job)

    def _known(self) -> JobFold:
        if self._fold is None:
            raise ApiError(404, "no such job; register it with POST /v1/jobs", reason="unknown_job")
        return self._fold
