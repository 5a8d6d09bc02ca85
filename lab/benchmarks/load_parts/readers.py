"""Readers: scrapes and GETs at a rate, and event streams, from threads of this process."""

import http.client
import selectors
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from load_parts.service import Service


class Readers:
    """``scrapes`` and ``gets`` a second, and ``streams`` open event streams of ``job``, while entered."""

    def __init__(self, service: Service, job: str, *, scrapes: float, gets: float, streams: int) -> None:
        self.counts = {"scrapes": 0, "gets": 0, "stream bytes": 0, "failed": 0}
        self._service, self._job, self._streams = service, job, streams
        self._stop = threading.Event()
        of_job = f"/v1/jobs/{job}"
        paths = [of_job, "/v1/jobs", f"{of_job}/windows?limit=50", f"{of_job}/decisions?limit=50"]
        self._threads = [
            threading.Thread(target=self._ask, args=("scrapes", scrapes, lambda _: "/metrics")),
            threading.Thread(
                target=self._ask, args=("gets", gets, lambda number: paths[number % len(paths)])
            ),
            threading.Thread(target=self._listen),
        ]

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.seconds = time.monotonic() - self._began

    def _ask(self, kind: str, per_second: float, path: Callable[[int], str]) -> None:
        connection, number, due = self._service.connection(), 0, time.monotonic()
        while not self._stop.is_set() and per_second > 0:
            due += 1 / per_second
            try:
                connection.request("GET", path(number))
                answer = connection.getresponse()
                answer.read()
                self.counts[kind if answer.status == 200 else "failed"] += 1
            except (OSError, http.client.HTTPException):
                self.counts["failed"] += 1
                connection.close()
            number += 1
            self._stop.wait(max(0.0, due - time.monotonic()))
        connection.close()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            sockets = []
            for _ in range(self._streams):
                sock = socket.create_connection((self._service.host, self._service.port))
                sock.sendall(f"GET /v1/jobs/{self._job}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                selector.register(sock, selectors.EVENT_READ)
                sockets.append(sock)
            while not self._stop.is_set():
                for key, _ in selector.select(0.1):
                    assert isinstance(key.fileobj, socket.socket)
                    self.counts["stream bytes"] += len(key.fileobj.recv(1 << 16))
            for sock in sockets:
                sock.close()
