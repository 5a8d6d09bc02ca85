"""How long to wait after an attempt that got no valid answer, and what to log about it."""

import logging
import random

log = logging.getLogger("gravac.agent")

FIRST_SECONDS = 1.0
"""After the first failure; doubled each time. An attempt is three requests at the most until the first invalid answer
(proof, registration, record), so that nobody can make an agent send more than 5 requests a second."""
MAX_SECONDS = 5.0
MAX_START_SECONDS = 60.0
"""Between attempts to start a controller, each of which takes a second of CPU from the training."""
MAX_REASONS = 8
"""Logged in one outage: a server that gives ever new reasons must not fill the log."""


class Backoff:
    """Pauses that grow with each failure in a row. Logs each reason once an outage."""

    def __init__(self) -> None:
        self._seconds = FIRST_SECONDS
        self._reasons: set[str] = set()

    def failed(self, reason: str, retry_after: float = 0.0, starting: bool = False) -> float:
        """Note a failure and return the seconds to wait.

        Args:
            reason: for the log, after "no valid answer from the controller".
            retry_after: least number of seconds that the controller asked for.
            starting: whether it was a controller of the agent's own that did not start.
        """
        if reason not in self._reasons and len(self._reasons) < MAX_REASONS:
            self._reasons.add(reason)
            log.warning("no valid answer from the controller%s; training goes on, reports are kept", reason)
        seconds = max(self._seconds * random.uniform(1.0, 1.5), retry_after)
        self._seconds = min(2 * self._seconds, MAX_START_SECONDS if starting else MAX_SECONDS)
        return seconds

    def succeeded(self, delivered: bool) -> None:
        """Note an attempt without a failure. ``delivered``: a record went out; a registration alone proves little."""
        self._reasons.clear()
        if delivered:
            self._seconds = FIRST_SECONDS
