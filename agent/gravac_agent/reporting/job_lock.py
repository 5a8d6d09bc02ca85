"""A file lock that allows one run at a time under a job's name. The kernel drops it when its holder dies."""

import contextlib
import logging
import socket
import time
from itertools import islice
from pathlib import Path

from gravac.fold import differs
from gravac.protocol import JobSpec
from gravac.protocol.job import ANOTHER, UNREADABLE
from gravac.traces.file_lock import FileLock, LockHeld
from gravac.traces.parts import ACTIVE
from gravac.traces.reader import last_job
from gravac.wording import numbered
from gravac_agent.errors import SetupError

log = logging.getLogger("gravac.agent")

LOCK_NAME = ".agent.lock"


class JobLock(FileLock):
    """Lock on ``<data_dir>/<job>/.agent.lock``, held from the start of an agent on rank 0 to its end."""

    @classmethod
    def acquire(cls, data_dir: Path, job: str) -> "JobLock | None":
        """Take the lock.

        Returns:
            None where the folder cannot be written or has no locks, which is logged.

        Raises:
            SetupError: Another run has this job's name; the message names it.
        """
        try:
            lock = cls.take(data_dir / job / LOCK_NAME)
        except LockHeld as error:
            if error.ours:
                raise SetupError(
                    f"job={job!r} has an open Agent in this process already: give this one another job name"
                ) from None
            raise SetupError(
                f"job={job!r} is already running ({_holder(error.note)}): give this run another job name, "
                "or stop the other run first"
            ) from None
        except OSError as error:
            log.warning(
                "job %s: nothing keeps another run off its name, because its lock cannot be taken: %s",
                job,
                error,
            )
            return None
        with contextlib.suppress(OSError):
            lock.write_note(host=socket.gethostname(), since=time.strftime("%Y-%m-%d %H:%M:%S"))
        return lock

    @classmethod
    def named(cls, data_dir: Path, spec: JobSpec, unreadable: str = "") -> tuple[JobSpec, "JobLock | None"]:
        """Take the lock of the job, or of a name of its own where that job is another training, and log that.

        Args:
            data_dir: Folder of the journals.
            spec: The job.
            unreadable: What is wrong with its journal, so that it needs another name.

        Returns:
            The job with its name, and as ``acquire``.

        Raises:
            SetupError: See ``acquire``.
        """
        why = UNREADABLE.format(unreadable) if unreadable else ""
        for name in islice(numbered(spec.job), 1 if unreadable else 0, None):
            try:
                lock = cls.acquire(data_dir, name)
            except SetupError:
                if not unreadable:
                    raise
                continue
            if not (found := is_other(data_dir, name, spec)):
                if why:
                    log.warning("%s", spec.named(name, why))
                return spec.model_copy(update={"job": name}), lock
            why = why or ANOTHER.format(found)
            if lock is not None:
                lock.release()
        raise AssertionError


class HeldJob:
    """A job under a name that no other run has.

    Args:
        spec: The job.
        lock: Lock on its name, until ``release``.
        asked: The name that the user gave it; None: as in ``spec``.
        left: Name that it had until a checkpoint was loaded, and whose end was not reported yet.
    """

    def __init__(
        self, spec: JobSpec, lock: JobLock | None, asked: str | None = None, left: str | None = None
    ) -> None:
        self.spec, self._lock = spec, lock
        self._asked, self.left = asked or spec.job, left

    @property
    def name(self) -> str:
        return self.spec.job

    def change(self, **changes: object) -> None:
        """Change fields of the spec."""
        self.spec = self.spec.model_copy(update=changes)

    def rename(self, data_dir: Path, unreadable: str) -> None:
        """Take a name of its own, because the journal of this one cannot be read. ``unreadable`` says why."""
        before = self._lock
        self.spec, self._lock = JobLock.named(data_dir, self.spec, unreadable)
        if before is not None:
            before.release()

    def resumed(self, policy_state: str, window: int, data_dir: Path | None) -> "HeldJob":
        """Return the job as a checkpoint continues it, under the name that the user gave it where that is free.

        Args:
            policy_state: The policy's state as JSON.
            window: Number of the next window.
            data_dir: Folder of the journals; None: the controller names the job when it is registered again.

        Raises:
            SetupError: Another run has that name.
        """
        spec = self.spec.model_copy(update={"policy_state": policy_state, "first_window": window})
        if self.name == self._asked or (data_dir is not None and is_other(data_dir, self._asked, spec)):
            return HeldJob(spec, self._lock, self._asked, self.left)
        lock = None if data_dir is None else JobLock.acquire(data_dir, self._asked)
        return HeldJob(spec.model_copy(update={"job": self._asked}), lock, self._asked, self.name)

    def release(self) -> None:
        """Give the name back; safe to repeat."""
        if self._lock is not None:
            self._lock.release()


def is_other(data_dir: Path, name: str, spec: JobSpec) -> str:
    """Return why the journal of that name is of another training than ``spec``; empty where nothing shows it."""
    known = last_job(data_dir / name / ACTIVE)
    return "" if known is None else differs(spec, known)


def _holder(note: dict[str, object]) -> str:
    try:
        pid = int(str(note["pid"]))
    except (KeyError, ValueError):
        return "another process"
    return f"process {pid} on {str(note.get('host'))[:64]!r}, since {str(note.get('since'))[:32]}"
