"""All jobs of one data folder. Each has ``<data_dir>/<job>/journal.jsonl``, with the full parts next to it."""

import asyncio
import contextlib
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

from gravac.protocol import NAME_RULE, JobAnswer, JobSpec
from gravac.protocol.job import ANOTHER, UNREADABLE
from gravac.wording import numbered, printable
from gravac_controller.errors import Conflict, LimitReached, NotServed, RequestError
from gravac_controller.jobs import refusals
from gravac_controller.jobs.checks import check_counters, is_job_name
from gravac_controller.jobs.job import Job
from gravac_controller.jobs.journal import OpenJournals
from gravac_controller.live.recent import Budget
from gravac_controller.lock import DataDirLock
from gravac_controller.settings import ControllerSettings

MOST_WRITERS = 16
"""Threads that write journals. A slow disk holds up the jobs that wait for it, not the event loop."""
OLD_SECONDS = 600.0
"""Silence of a job that has not ended, after which its trainer hardly waits for the controller to start."""
CHECK_SECONDS = 1.0
"""Time in which the disk is not checked twice, as anyone may ask."""
MOST_REASON = 1000
"""Length of the reason why a journal cannot be served, in characters."""

logger = logging.getLogger("gravac.controller")


class Store:
    """The jobs by name. ``unreadable``: reason by name of each folder whose journal cannot be served."""

    def __init__(self, settings: ControllerSettings) -> None:
        self.settings = settings
        folder = settings.data_dir if settings.job is None else settings.data_dir / settings.job
        self._folder_lock = DataDirLock(folder)
        self.jobs: dict[str, Job] = {}
        self.unreadable: dict[str, str] = {}
        self._creating, self._checking = asyncio.Lock(), asyncio.Lock()
        self._checked_at = -CHECK_SECONDS
        self._refused: OSError | None = None  # by the disk, when it was last checked
        self._threads = ThreadPoolExecutor(MOST_WRITERS, thread_name_prefix="gravac-writer")
        self._tidier = ThreadPoolExecutor(1, thread_name_prefix="gravac-tidier")  # compresses full parts
        self._budget = Budget(settings.limits.history_bytes)
        self._open_journals = OpenJournals(settings.max_connections)

    def open(self) -> None:
        """Lock the folder and fold the journals of jobs that go on. Those of others are read when they are needed.

        Raises DataDirError when another controller holds it.
        """
        self._folder_lock.acquire()
        for folder in sorted(self.settings.data_dir.iterdir()):
            name = folder.name
            if name.startswith(".") or self.settings.job not in (None, name):
                continue
            try:
                if folder.is_dir() and _holds_journal(folder):
                    self._load(name, folder)
            except OSError as error:
                self._refuse(name, f"the folder cannot be listed: {error.strerror}")
        awake = [job for job in self.jobs.values() if not job.asleep]
        for job in sorted(awake, key=lambda job: job.live.presence.decided_time):
            job.update_budget()  # again, in the order of their last reports

    async def wake_silent(self) -> None:
        """Fold the journals of jobs that went silent without an end, one after another."""
        for name, job in list(self.jobs.items()):
            if job.asleep and job.state() != "ended":
                with contextlib.suppress(RequestError):
                    await self.awake(name)

    async def check_writable(self) -> None:
        """Write to the disk, at most once in ``CHECK_SECONDS``. Raises Unavailable where it refuses."""
        async with self._checking:
            if time.monotonic() >= self._checked_at + CHECK_SECONDS:
                self._refused = None
                try:
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(self._threads, self._folder_lock.check_writable)
                except OSError as error:
                    self._refused = error
                self._checked_at = time.monotonic()
        if self._refused is not None:
            raise refusals.not_ready(self._refused)

    def announce(self, url: str, instance: str) -> None:
        """Write this controller's address into the folder, where the command line finds it."""
        if self.settings.owner_may_steer and self.settings.control_token is not None:
            self._folder_lock.leave_token(self.settings.control_token.get_secret_value())
        self._folder_lock.note(url=url, instance=instance)

    def close(self) -> None:
        """Close every journal and free the folder."""
        # Both wait for what is in progress: writes, before their journals close, and compression, before another
        # controller may have the folder.
        self._threads.shutdown(cancel_futures=True)
        self._tidier.shutdown(cancel_futures=True)
        for job in self.jobs.values():
            job.close()
        self._folder_lock.release()

    def get(self, name: str) -> Job:
        """Return the job of that name. Raises Unknown, or Conflict when its journal is unreadable."""
        job = self.jobs.get(name)
        if job is not None:
            return job
        if name in self.unreadable:
            raise refusals.unreadable(self.unreadable[name])
        raise refusals.unknown_job()

    async def awake(self, name: str) -> Job:
        """Return the job of that name, with its journal read. Raises what ``get`` raises, and Unavailable."""
        job = self.get(name)
        try:
            await job.wake()
        except OSError as error:
            raise refusals.journal_unreadable(error) from error
        except ValueError as error:
            if self.jobs.pop(name, None) is not None:
                self._refuse(name, str(error))
            raise refusals.unreadable(str(error)) from error
        return job

    async def register(self, spec: JobSpec) -> JobAnswer:
        """Begin or resume a job. Raises NotServed, LimitReached (too many jobs), and what ``Job.register`` raises."""
        check_counters(spec)
        if self.settings.job not in (None, spec.job):
            raise NotServed(
                f"send it to a controller without --job: this one serves job {self.settings.job!r} only",
                reason="unknown_job",
            )
        async with self._creating:
            spec, note = await self._named(spec)
            if spec.job not in self.jobs:
                return await self._create(spec, note)
        return await (await self.awake(spec.job)).register(spec, note)

    async def _named(self, spec: JobSpec) -> tuple[JobSpec, str]:
        """Return a spec with a name of its own where its job is another training, and what to say of that."""
        why = ""
        for name in numbered(spec.job) if self.settings.job is None else ():
            if not (found := await self._other(name, spec)):
                return spec.model_copy(update={"job": name}), why and spec.named(name, why)
            why = why or found
        return spec, ""

    async def _other(self, name: str, spec: JobSpec) -> str:
        """Return why a name stands for something else than a training; empty: it does not."""
        with contextlib.suppress(Conflict):  # it has just been found to be unreadable
            if name in self.jobs:
                found = (await self.awake(name)).differs(spec)
                return found and ANOTHER.format(found)
        return UNREADABLE.format(self.unreadable[name]) if name in self.unreadable else ""

    async def _create(self, spec: JobSpec, note: str) -> JobAnswer:
        if spec.job in self.unreadable:
            self.get(spec.job)
        if len(self.jobs) >= self.settings.limits.max_jobs:
            raise LimitReached(
                f"this controller already holds {len(self.jobs)} jobs; use another data folder",
                reason="too_many_jobs",
            )
        job = self._new(self.settings.data_dir / spec.job)
        try:
            answer = await job.register(spec, note)
        except BaseException:
            job.close()
            raise
        self.jobs[spec.job] = job
        return answer

    def _load(self, name: str, folder: Path) -> None:
        if not is_job_name(name):
            self._refuse(
                name, f"the folder's name is not a job's: {NAME_RULE}; rename the folder to serve its journal"
            )
            return
        job = self._new(folder)
        try:
            if self.settings.job is None and job.doze(_now() - OLD_SECONDS):
                self.jobs[name] = job
            elif job.load():
                self.jobs[name] = job
                job.update_budget()
        except (OSError, ValueError) as error:
            self._refuse(name, str(error))

    def _refuse(self, name: str, why: str) -> None:
        """Record that a folder is not served. Either text may hold bytes that are not text."""
        shown, reason = printable(name, 300), printable(why, MOST_REASON)
        twin = 2
        while shown in self.unreadable:  # names that differ only in unprintable characters
            shown, twin = f"{printable(name, 300)} ({twin})", twin + 1
        self.unreadable[shown] = reason
        logger.error("job %s is not served: %s", shown, reason)

    def _new(self, folder: Path) -> Job:
        return Job(
            folder, self.settings, _now, self._threads, self._tidier, self._budget, self._open_journals
        )


def _holds_journal(folder: Path) -> bool:
    """Return whether the folder holds a journal. Raises OSError where it cannot be listed, which ``glob`` hides."""
    return any(fnmatch(name, "journal*.jsonl*") for name in os.listdir(folder))


def _now() -> float:
    """Return Unix seconds as precise as a journal line holds them, so that times stay equal after a restart."""
    return round(time.time(), 6)
