"""What the training thread measures: where a step's time goes, how many samples it has, and the loss."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gravac_agent.exchange.step import StepResult


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Wall time of one step; the five phases add up to ``seconds``."""

    seconds: float
    data_wait: float
    compute: float
    compress: float
    communicate: float
    decompress: float


class StepClock:
    """Times steps from one end of exchange to the next: optimizer, data, forward, backward, exchange."""

    def __init__(self) -> None:
        self._began_at = time.monotonic()
        self._optimizer_ended_at: float | None = None
        self._data_wait = 0.0

    def forward_began(self) -> None:
        """End the wait for data, at the first forward after the optimizer. Later micro-batches count as compute."""
        if self._optimizer_ended_at is not None:
            self._data_wait = time.monotonic() - self._optimizer_ended_at
            self._optimizer_ended_at = None

    def optimizer_ended(self) -> None:
        """Begin the wait for data."""
        self._optimizer_ended_at = time.monotonic()

    def end_step(self, result: StepResult) -> StepTimes:
        """Return the times of the step that ends now.

        What the exchange thread did before backward ended is hidden behind backward and does not count.
        """
        now = time.monotonic()
        exposed = {"compress": 0.0, "communicate": 0.0, "decompress": 0.0}
        for activity, begin, end in result.activity:
            exposed[activity] += max(0.0, min(end, now) - max(begin, result.last_submit_at))
        seconds = now - self._began_at
        data_wait = min(self._data_wait, seconds)
        compute = max(0.0, seconds - data_wait - sum(exposed.values()))
        self._began_at, self._data_wait = now, 0.0
        return StepTimes(seconds=seconds, data_wait=data_wait, compute=compute, **exposed)


@dataclass(slots=True)
class TrainerInput:
    """What the trainer passes to the agent: samples of the running window, and the loss that was logged last."""

    samples_per_step: int | None = None
    """Samples of a step of this rank, where the trainer logs them; else they are counted."""
    _step: int = field(default=0, init=False)
    _forward_ran: bool = field(default=False, init=False)
    _window: int = field(default=0, init=False)
    _loss: float | Tensor | None = field(default=None, init=False)
    _arrived: torch.cuda.Event | None = field(default=None, init=False)
    """Reached when a loss on a GPU is in the host's memory."""

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the first dimension of the first tensor given to ``forward``; micro-batches add up."""
        self._forward_ran = True
        first = _first_tensor((*args, *kwargs.values()))
        if first is not None and first.dim():
            self._step += first.shape[0]

    def end_step(self) -> None:
        """Add the step's samples to the window."""
        # Without a forward this rank's inputs have ended, and it shadows the others in a Join context.
        if self._forward_ran:
            self._window += self._step if self.samples_per_step is None else self.samples_per_step
        self._step, self._forward_ran = 0, False

    def pop_samples(self) -> int:
        """Return the samples since the last call."""
        samples, self._window = self._window, 0
        return samples

    def log_loss(self, loss: float | Tensor) -> float | None:
        """Store ``loss`` and return the one before it, so that a tensor is read one step later and no step waits."""
        before = self.pop_loss()
        self._loss = loss.detach() if isinstance(loss, Tensor) else loss
        if isinstance(self._loss, Tensor) and self._loss.is_cuda:
            self._loss = self._loss.to("cpu", non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        return before

    def pop_loss(self) -> float | None:
        """Return the stored loss, once. None when there is none or it is not finite, which is a bad step already."""
        loss, self._loss = self._loss, None
        arrived, self._arrived = self._arrived, None
        if arrived is not None:
            arrived.synchronize()
        if loss is None or not math.isfinite(value := float(loss)):
            return None
        return value


def _first_tensor(values: Iterable[Any], depth: int = 3) -> Tensor | None:
    """Return the first tensor among values and those in lists and mappings: trainers pass a whole batch as one."""
    for value in values:
        if isinstance(value, Tensor):
            return value
        if depth and isinstance(value, list | tuple | Mapping):
            inside = value.values() if isinstance(value, Mapping) else value
            if (found := _first_tensor(inside, depth - 1)) is not None:
                return found
    return None
