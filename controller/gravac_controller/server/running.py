"""Runs a program as if nothing stood before it: its signals reach it, and it ends with a code of its own."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

GROUP_SECONDS = 0.3
"""Time in which a signal to all processes of a group has come to each."""
PASSED = signal.valid_signals() - {
    *(signal.SIGKILL, signal.SIGSTOP),  # nobody catches them
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),  # after a fault there is no way back
    *(
        signal.SIGCHLD,
        signal.SIGPIPE,
        signal.SIGXFSZ,
        signal.SIGTTIN,
        signal.SIGTTOU,
    ),  # of what this process does
}
"""Signals that are passed on."""
ENDING = {signal.SIGTERM, signal.SIGHUP}
"""Signals of who ends a job, and soon kills what is left of it."""
IMPATIENT = ENDING | {signal.SIGINT, signal.SIGQUIT}


class Running:
    """A program, and who passes signals on to it.

    A terminal, ``timeout`` or systemd sends a signal to all processes of a group, so to the program, too. A witness in
    the same group tells whether it was so.

    Args:
        command: The program, with its arguments.
        environment: Its variables.

    Attributes:
        came: Numbers of the signals that came while it ran.

    Raises:
        OSError: It cannot be run.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.came: list[int] = []
        self._after: list[int] = []
        self._waiting: list[int] = []  # the first is being passed on
        self._seen: Counter[int] = Counter()  # signals that the witness saw, too
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED)
        try:
            self._witness, self._witnessed, self._life = _witness(before)
            self._program = subprocess.Popen(
                command,
                env=environment,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
            )
            for number in PASSED:
                signal.signal(number, self._pass_on)
        except OSError:
            self.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def ended(self, seconds: float) -> int | None:
        """Return the code that it ended with, within that time; None: it goes on."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._program.wait(seconds)
        return None

    def close(self) -> None:
        """End the witness. No signal changes the code of this process any more, though Python gives up its handlers."""
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED)
        os.close(self._life)
        os.waitpid(self._witness, 0)

    @property
    def hurry(self) -> int | None:
        """A signal after which nothing more should be begun; None: there is time."""
        ending = [number for number in self.came if number in ENDING]
        return next(iter([*(each for each in self._after if each in IMPATIENT), *ending]), None)

    def _pass_on(self, number: int, _: object) -> None:
        if self._program.returncode is not None:
            self._after.append(number)
            return
        if number in self._waiting:  # two of a signal become one, as where a process does not run
            return
        interrupts = bool(self._waiting)  # asked before the next line, which another signal may follow
        self._waiting.append(number)
        if interrupts:  # the call that this one interrupts takes it
            return
        while self._waiting:
            number = self._waiting[0]
            self.came.append(number)
            if not self._came_to_all(number):
                self._program.send_signal(number)
            self._waiting.remove(number)
            if number == signal.SIGTSTP:  # the shell waits for this process to stop
                os.kill(os.getpid(), signal.SIGSTOP)

    def _came_to_all(self, number: int) -> bool:
        until = time.monotonic() + GROUP_SECONDS
        while not self._seen[number] and (left := until - time.monotonic()) > 0.0:
            if select.select([self._witnessed], [], [], left)[0]:
                self._seen.update(os.read(self._witnessed, 100))
        self._seen[number] -= (found := self._seen[number] > 0)
        return found


def _witness(mask: set[signal.Signals] | set[int]) -> tuple[int, int, int]:
    """Start a process that notes each signal that comes to it, and that ends with this one.

    Args:
        mask: Mask of the signals that it blocks.

    Returns:
        Its number, where it writes those of the signals, as bytes, and what keeps it alive while it is open.
    """
    noted, note = os.pipe()
    alive, life = os.pipe()
    if witness := os.fork():
        os.close(note)
        os.close(alive)
        return witness, noted, life
    try:
        os.close(life)
        os.set_blocking(note, False)
        nothing: Callable[[int, Any], None] = lambda *_: None  # noqa: E731
        for number in PASSED:
            signal.signal(number, nothing)
        signal.set_wakeup_fd(note)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.read(alive, 1)
    finally:
        os._exit(0)
