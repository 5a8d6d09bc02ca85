"""Posts windows of many jobs, evenly spread over time, and measures the latency of each answer.

Each window is sent as the agent sends it, on a new connection. It is due at a fixed time, whether or not other windows
were answered, so every window that waits for a pause of the controller counts. Its latency runs from just before the
connection is made to the last byte of the answer. Delays of the sender itself are reported separately. One thread does
all of it with plain sockets, and prepares each window in advance.
"""

import gc
import heapq
import os
import re
import selectors
import socket
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from load_parts.jobs import SimulatedJob
from load_parts.service import Service


@dataclass
class Posted:
    """Seconds of each window: from its sending until it was answered, and how late it was sent."""

    took: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)


class _Sender:
    """Sends the windows of a job, one at a time."""

    def __init__(self, service: Service, job: SimulatedJob) -> None:
        self._address, self._job = (service.host, service.port), job
        self._host = f"{service.host}:{service.port}"
        self._make_ready()

    def _make_ready(self) -> None:
        body = self._job.body()
        head = (
            f"POST {self._job.path} HTTP/1.1\r\nHost: {self._host}\r\nAccept-Encoding: identity\r\n"
            f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n\r\n"
        )
        self._request, self._answer = head.encode() + body, b""

    def send(self) -> socket.socket:
        self._socket = socket.create_connection(self._address)
        self._socket.sendall(self._request)
        return self._socket

    def answered(self) -> bool:
        """Read more; return whether the answer is complete. Raises RuntimeError for anything but 200."""
        piece = self._socket.recv(1 << 16)
        self._answer += piece
        head, _, body = self._answer.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *([0-9]+)", head)
        whole = length is not None and len(body) >= int(length[1])
        if not head.startswith(b"HTTP/1.1 200 ") or not (whole or piece):
            raise RuntimeError(f"{self._job.path} was answered {self._answer[:500]!r}")
        return whole

    def follow(self) -> None:
        """Apply the decision, and prepare the next window."""
        self._socket.close()
        self._job.answered(self._answer.partition(b"\r\n\r\n")[2])
        self._make_ready()


def post(service: Service, jobs: list[SimulatedJob], *, seconds: float, per_second: float) -> Posted:
    """Send ``per_second`` windows of each job for this long."""
    senders = [_Sender(service, job) for job in jobs]
    found = Posted()
    gc.collect()
    gc.disable()  # our own pauses are not what is measured
    began = time.monotonic() + 0.1
    waiting = [(began + number / (len(jobs) * per_second), number) for number in range(len(jobs))]
    due: dict[int, tuple[float, float]] = {}
    with selectors.DefaultSelector() as selector:
        while waiting or due:
            now = time.monotonic()
            if waiting and waiting[0][0] <= now:
                moment, number = heapq.heappop(waiting)
                selector.register(senders[number].send(), selectors.EVENT_READ, number)
                due[number] = (moment, now)
                found.late.append(now - moment)
                continue
            for key, _ in selector.select(waiting[0][0] - now if waiting else None):
                sender = senders[key.data]
                if sender.answered():
                    moment, sent = due.pop(key.data)
                    found.took.append(time.monotonic() - sent)
                    selector.unregister(key.fileobj)
                    sender.follow()
                    if moment + 1 / per_second < began + seconds:
                        heapq.heappush(waiting, (moment + 1 / per_second, key.data))
    gc.enable()
    return found


def sync_alone(folder: Path, *, files: int, each_bytes: int, count: int, per_second: float) -> list[float]:
    """Seconds that the disk alone takes for what a window costs it: ``each_bytes`` more in one of ``files``, synced.

    ``count`` times, ``per_second`` in all: what no controller that promises not to lose a window can fall below.
    """
    took, piece = [], b"x" * each_bytes
    with ExitStack() as stack:
        there = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        opened = [
            stack.enter_context((there / str(number)).open("ab", buffering=0)) for number in range(files)
        ]
        due = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, due - time.monotonic()))
            began, file = time.monotonic(), opened[number % files]
            file.write(piece)
            os.fsync(file.fileno())
            took.append(time.monotonic() - began)
            due += 1 / per_second
    return took
