"""A disk that can be full: a small tmpfs for root, else a limit on the size of the controller's files."""

import contextlib
import os
import resource
import subprocess
from pathlib import Path

SIZE = 32 << 20


class Disk:
    """A folder on a small file system of its own, where mounting is allowed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
        self.mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
        self._limited: list[int] = []

    def fill(self, pid: int | None) -> None:
        """Leave no room, for all processes; without a mount, for process ``pid``."""
        if not self.mounted:
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
                    self._limited.append(pid)
            return
        with (self.folder / ".full").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        with (self.folder / ".full").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"0")

    def free(self) -> None:
        """Make room again."""
        (self.folder / ".full").unlink(missing_ok=True)
        for pid in self._limited:
            with contextlib.suppress(ProcessLookupError):
                hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        self._limited.clear()

    def unmount(self) -> None:
        """Unmount the file system, which drops its files."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)
