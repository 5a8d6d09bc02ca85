"""The processes of a demo training: starts, follows and always ends them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from gravac.wording import printable

POLL_SECONDS = 0.1
END_SECONDS = 15.0
"""How long torchrun may take to end its ranks before it is killed (the ranks then end by themselves)."""
TAIL_LINES = 25


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """One training to run. ``plain``: DDP alone, without the agent."""

    task: str
    ranks: int
    steps: int
    link: str
    policy: str
    job: str
    data_dir: Path
    plain: bool = False

    @property
    def window(self) -> int:
        """Steps between decisions: so few that a short training has some."""
        return max(5, min(20, self.steps // 4))

    def command(self, progress: Path) -> list[str]:
        """The command line: torchrun on this machine, over the loopback interface."""
        launcher = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        trainer = ["gravac_lab.demo", "--task", self.task, "--steps", str(self.steps), "--link", self.link]
        trainer += ["--policy", self.policy, "--window", str(self.window)]
        trainer += ["--job", self.job, "--data-dir", str(self.data_dir), "--progress", str(progress)]
        plain = ["--plain"] if self.plain else []
        return [
            *(sys.executable, "-m", *launcher, "--nproc-per-node", str(self.ranks)),
            *("-m", *trainer, *plain),
        ]


class TrainingFailed(Exception):
    """A training ended with an error; the message ends with its last lines."""


class Training:
    """``with Training(plan, scratch) as training: for event in training.events(): …``; leaving ends its processes."""

    def __init__(self, plan: DemoPlan, scratch: Path) -> None:
        self._plan = plan
        self._progress = scratch / f"{plan.job}.progress"
        self._log = scratch / f"{plan.job}.log"

    def __enter__(self) -> Self:
        self._progress.touch()
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback, **os.environ}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._plan.command(self._progress),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches only this process, which ends the training in order
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C: do not wait
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of rank 0 as they arrive, until the training ends. Raises TrainingFailed."""
        with self._progress.open(encoding="utf-8") as stream:
            while True:
                ended = self._process.poll() is not None
                yield from _whole_lines(stream)
                if ended:
                    break
                time.sleep(POLL_SECONDS)
        if self._process.returncode:
            raise TrainingFailed(
                f"The training ended with code {self._process.returncode}. Its last lines:\n{self.tail()}"
            )

    def tail(self) -> str:
        """The last lines of the ranks' output, without torchrun's summary."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        own = next((n for n, line in enumerate(lines) if "failed (exitcode" in line), len(lines))
        return "\n".join(map(printable, lines[:own][-TAIL_LINES:]))


def _whole_lines(stream: IO[str]) -> Iterator[dict[str, Any]]:
    while True:
        place = stream.tell()
        line = stream.readline()
        if not line.endswith("\n"):
            stream.seek(place)
            return
        yield json.loads(line)
