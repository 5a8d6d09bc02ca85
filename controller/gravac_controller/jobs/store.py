"""All jobs of one data folder: ``<data_dir>/<job>/journal.jsonl`` each, and its full parts beside it."""

import asyncio
import logging
import os
import time
from fnmatch import fnmatch
from pathlib import Path

from gravac.protocol import JobAnswer, JobSpec
from gravac.wording import printable
from gravac_controller.api.problems import ApiError
from gravac_controller.jobs.checks import NAME_RULE, check_counters, check_name, is_job_name
from gravac_controller.jobs.job import Job
from gravac_controller.jobs.writers import Writers
from gravac_controller.live.budget import Budget
from gravac_controller.lock import DataDirLock
from gravac_controller.settings import ControllerSettings

MOST_REASON = 1000
"""Characters of the reason why a journal cannot be served."""

logger = logging.getLogger("gravac.controller")


class Store:
    """The jobs, by name. ``unreadable``: folders whose journals cannot be served, by name as text, with the reason."""

    def __init__(self, settings: ControllerSettings) -> None:
        self.settings = settings
        folder = settings.data_dir if settings.job is None else settings.data_dir / settings.job
        self._folder_lock = DataDirLock(folder)
        self.jobs: dict[str, Job] = {}
        self.unreadable: dict[str, str] = {}
        self._creating, self._writers = asyncio.Lock(), Writers()
        self._budget = Budget(settings.history_bytes)

    def open(self) -> None:
        """Lock the folder and fold every journal in it. Raises DataDirError when another controller has it."""
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
        for job in sorted(self.jobs.values(), key=lambda job: job.live.decided_time):
            job.note_memory()  # again, in the order in which they were heard of

    def announce(self, url: str, instance: str) -> None:
        """Leave word in the folder of where this controller answers, for the command line to find."""
        if self.settings.owner_may_steer and self.settings.control_token is not None:
            self._folder_lock.leave_token(self.settings.control_token.get_secret_value())
        self._folder_lock.note(url=url, instance=instance)

    def close(self) -> None:
        """Close every journal and free the folder."""
        self._writers.close()
        for job in self.jobs.values():
            job.close()
        self._folder_lock.release()

    def get(self, name: str) -> Job:
        """The job of that name. Raises ApiError 404, or 409 when its journal is unreadable."""
        job = self.jobs.get(name)
        if job is not None:
            return job
        if name in self.unreadable:
            raise ApiError(
                409,
                f"the journal of this job cannot be read: {self.unreadable[name]}; move it away and restart the "
                "controller, or use another job name",
                reason="unreadable",
            )
        raise ApiError(
            404,
            "no such job; GET /v1/jobs lists the jobs, agents register with POST /v1/jobs",
            reason="unknown_job",
        )

    async def register(self, spec: JobSpec) -> JobAnswer:
        """Begin or resume a job. Raises ApiError: 403 not served here, 409, 422, 429 too many jobs, 503."""
        check_name(spec.job)
        check_counters(spec)
        if self.settings.job not in (None, spec.job):
            raise ApiError(
                403, f"this controller serves job {self.settings.job!r} only", reason="unknown_job"
            )
        async with self._creating:
            if spec.job not in self.jobs:
                return await self._create(spec)
        return await self.jobs[spec.job].register(spec)

    async def _create(self, spec: JobSpec) -> JobAnswer:
        if spec.job in self.unreadable:
            self.get(spec.job)
        if len(self.jobs) >= self.settings.max_jobs:
            raise ApiError(
                429,
                f"this controller already holds {len(self.jobs)} jobs; raise GRAVAC_CONTROLLER_MAX_JOBS or use "
                "another data folder",
                reason="too_many_jobs",
            )
        job = self._new(self.settings.data_dir / spec.job)
        try:
            answer = await job.register(spec)
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
            if job.load():
                self.jobs[name] = job
                job.note_memory()
        except (OSError, ValueError) as error:
            self._refuse(name, str(error))

    def _refuse(self, name: str, why: str) -> None:
        """Note that a folder is not served. Both texts may hold bytes that are not text."""
        shown, reason = printable(name, 300), printable(why, MOST_REASON)
        twin = 2
        while shown in self.unreadable:  # names that differ in what cannot be shown
            shown, twin = f"{printable(name, 300)} ({twin})", twin + 1
        self.unreadable[shown] = reason
        logger.error("job %s is not served: %s", shown, reason)

    def _new(self, folder: Path) -> Job:
        return Job(folder, self.settings, _now, self._writers, self._budget)


def _holds_journal(folder: Path) -> bool:
    """Raises OSError where the folder cannot be listed, which ``glob`` keeps to itself."""
    return any(fnmatch(name, "journal*.jsonl*") for name in os.listdir(folder))


def _now() -> float:
    """Unix seconds as a journal line holds them, so that a restart shows the very same times."""
    return round(time.time(), 6)
