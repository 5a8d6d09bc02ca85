"""How late the machine itself was, measured by a process that sleeps and reports when it wakes up too late."""

import contextlib
import multiprocessing
import time
from multiprocessing.connection import Connection

NAP_SECONDS = 0.02
LATE_SECONDS = 0.05


def watch(out: Connection) -> None:
    """Report delays until the other end closes."""
    before = time.time()
    try:
        while True:
            time.sleep(NAP_SECONDS)
            now = time.time()
            if now - before > NAP_SECONDS + LATE_SECONDS:
                out.send((before, now))
            before = now
    except OSError:
        return


class Witness:
    """Measures from its creation to ``close``."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self._receiver, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=watch, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._spans: list[tuple[float, float]] = []

    def late(self, began: float, ended: float) -> float:
        """Return for how many seconds between two Unix times the machine was late."""
        with contextlib.suppress(EOFError, OSError):  # it may have been ended before us
            while self._receiver.poll(0):
                self._spans.append(self._receiver.recv())
        return sum(max(0.0, min(end, ended) - max(begin, began)) for begin, end in self._spans)

    def close(self) -> None:
        self._process.kill()
        self._process.join()
