"""Where the wall time of a step goes, on the critical path."""

import time
from dataclasses import dataclass

from gravac_agent.exchange.step import Outcome


@dataclass(frozen=True, slots=True)
class Lap:
    """One step: the five phases add up to ``seconds``."""

    seconds: float
    data_wait: float
    compute: float
    compress: float
    communicate: float
    decompress: float


class StepClock:
    """A lap goes from one end of exchange to the next: optimiser, data, forward, backward, exchange."""

    def __init__(self) -> None:
        self._began_at = time.monotonic()
        self._optimizer_ended_at: float | None = None
        self._data_wait = 0.0

    def forward_began(self) -> None:
        """First forward after the optimiser ends the wait for data (later micro-batches count as compute)."""
        if self._optimizer_ended_at is not None:
            self._data_wait = time.monotonic() - self._optimizer_ended_at
            self._optimizer_ended_at = None

    def optimizer_ended(self) -> None:
        self._optimizer_ended_at = time.monotonic()

    def lap(self, outcome: Outcome) -> Lap:
        """End the step. What the exchange thread did before backward ended is hidden behind backward: not counted."""
        now = time.monotonic()
        exposed = {"compress": 0.0, "communicate": 0.0, "decompress": 0.0}
        for activity, begun, ended in outcome.activity:
            exposed[activity] += max(0.0, min(ended, now) - max(begun, outcome.last_submit_at))
        seconds = now - self._began_at
        data_wait = min(self._data_wait, seconds)
        compute = max(0.0, seconds - data_wait - sum(exposed.values()))
        self._began_at, self._data_wait = now, 0.0
        return Lap(seconds=seconds, data_wait=data_wait, compute=compute, **exposed)
