"""A file lock that allows one run at a time under a job's name. The kernel drops it when its holder dies."""

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import ClassVar

from gravac.protocol import JobSpec
from gravac.traces.own_files import make_folder, open_own
from gravac.traces.parts import ACTIVE
from gravac.traces.reader import last_job
from gravac.wording import numbered
from gravac_agent.errors import SetupError

log = logging.getLogger("gravac.agent")

LOCK_NAME = ".agent.lock"


class JobLock:
    """Lock on ``<data_dir>/<job>/.agent.lock``, held from the start of an agent on rank 0 to its end.

    It is a record lock, not flock: a data loader's worker, forked from the trainer, must not hold it after the trainer
    died.
    """

    _held: ClassVar[set[Path]] = set()
    """Locks of this process, since record locks do not exclude threads of one process."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd = path, fd

    @classmethod
    def acquire(cls, data_dir: Path, job: str) -> "JobLock | None":
        """Take the lock.

        Returns:
            None where the folder cannot be written or has no locks, which is logged.

        Raises:
            SetupError: Another run has this job's name; the message names it.
        """
        path = data_dir / job / LOCK_NAME
        if path in cls._held:
            raise SetupError(
                f"job={job!r} has an open Agent in this process already: give this one another job name"
            )
        fd = -1
        try:
            make_folder(path.parent)
            fd = open_own(path, os.O_RDWR)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = _read(fd) if fd >= 0 and isinstance(error, BlockingIOError) else None
            if fd >= 0:
                os.close(fd)
            if holder is None:
                return cls._without(job, error)
            raise SetupError(
                f"job={job!r} is already running ({holder}): give this run another job name, "
                "or stop the other run first"
            ) from None
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            return cls._without(job, error)
        with contextlib.suppress(OSError):
            holder_note = {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            }
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(holder_note).encode(), 0)
        cls._held.add(path)
        return cls(path, fd)

    @staticmethod
    def _without(job: str, error: OSError) -> None:
        log.warning(
            "job %s: nothing keeps another run off its name, because its lock cannot be taken: %s", job, error
        )

    @classmethod
    def named(cls, data_dir: Path, spec: JobSpec) -> tuple[str, "JobLock | None"]:
        """Take the lock of the job, or of a name of its own where that job is another training, and log that.

        Returns:
            The name, and as ``acquire``.

        Raises:
            SetupError: As ``acquire``.
        """
        why = ""
        for name in numbered(spec.job):
            lock = cls.acquire(data_dir, name)
            known = last_job(data_dir / name / ACTIVE)
            if known is None or not (found := spec.differs(known)):
                if why:
                    log.warning("%s", spec.named(name, why))
                return name, lock
            why = why or found
            if lock is not None:
                lock.release()
        raise AssertionError

    def release(self) -> None:
        """Release the lock; safe to repeat. The file stays, since removing it would race with the next run."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._held.discard(self._path)


def _read(fd: int) -> str:
    try:
        note = json.loads(os.pread(fd, 4096, 0))
        return f"process {int(note['pid'])} on {str(note['host'])[:64]!r}, since {str(note['since'])[:32]}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
