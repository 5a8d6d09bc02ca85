"""Records the requests to a server, to find request storms and leaked tokens."""

import threading
import time
from dataclasses import dataclass, field

MOST_A_SECOND = 5
"""Requests that an agent may send within a second to a peer that does not answer properly."""
JITTER_SECONDS = 0.1
"""Requests a fifth of a second apart may arrive this much closer on a busy machine."""


@dataclass
class Watch:
    """The requests to one server while it gave invalid answers.

    Attributes:
        name: Of the server.
        strict: The limit on requests holds, because all answers are invalid.
    """

    name: str
    strict: bool = True
    connects: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    seen: bytearray = field(default_factory=bytearray)
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def connected(self) -> None:
        with self._lock:
            self.connects.append(time.monotonic())

    def asked(self, path: str) -> None:
        with self._lock:
            self.requests.append(time.monotonic())
            self.paths.append(path)

    def saw(self, piece: bytes) -> None:
        with self._lock:
            if len(self.seen) < 1 << 24:
                self.seen += piece

    def end(self) -> None:
        if self.ended is None:
            self.ended = time.monotonic()

    def storms(self) -> list[str]:
        """Return sentences about what exceeds the limit."""
        if not self.strict:
            return []
        found = []
        for what, times in (("requests", self.requests), ("connections", self.connects)):
            most = most_within(times, 1.0 - JITTER_SECONDS)
            if most > MOST_A_SECOND:
                counted = ", ".join(f"{self.paths.count(path)} {path}" for path in sorted(set(self.paths)))
                found.append(
                    f"storm: {most} {what} within {1.0 - JITTER_SECONDS:g} s to {self.name}, "
                    f"{len(times)} in all over {(self.ended or time.monotonic()) - self.began:.1f} s ({counted})"
                )
        return found

    def leaks(self, tokens: frozenset[str]) -> list[str]:
        """Return sentences about what the server must not see."""
        seen = bytes(self.seen)
        found = []
        if any(token.encode() in seen for token in tokens):
            found.append("the token")
        if b"authorization:" in seen.lower():
            found.append("an Authorization header")
        if b'"last_step"' in seen:
            found.append("a window")
        if b"\nPOST /" in seen or seen.startswith(b"POST /"):
            found.append("a POST before any proof")
        return [f"leak: {self.name} saw {', '.join(found)}"] if found else []


def most_within(times: list[float], seconds: float) -> int:
    """Return the largest number of times within any span of ``seconds``."""
    most, first = 0, 0
    for last, time_ in enumerate(times):
        while time_ - times[first] >= seconds:
            first += 1
        most = max(most, last - first + 1)
    return most
