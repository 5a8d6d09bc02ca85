"""What the trainer's own calls tell: how many samples a step has, and the loss."""

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(slots=True)
class Intake:
    """Samples of the running window and the loss logged last."""

    told: int | None = None
    """Samples a step of this rank has, if the trainer said so."""
    _counted: int = field(default=0, init=False)
    _ran: bool = field(default=False, init=False)
    _window: int = field(default=0, init=False)
    _loss: float | Tensor | None = field(default=None, init=False)

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the first dimension of the first tensor given to ``forward``; micro-batches add up."""
        self._ran = True
        first = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        if first is not None and first.dim():
            self._counted += first.shape[0]

    def step_done(self) -> None:
        if self._ran:  # else this rank's inputs have ended, and it shadows the others in a Join context
            self._window += self._counted if self.told is None else self.told
        self._counted, self._ran = 0, False

    def take_samples(self) -> int:
        """Samples since the last call."""
        taken, self._window = self._window, 0
        return taken

    def log_loss(self, loss: float | Tensor) -> float | None:
        """Keep ``loss`` and return the one before it. A tensor on a GPU is thus read a step later, when it is there."""
        before = self.take_loss()
        self._loss = loss.detach() if isinstance(loss, Tensor) else loss
        return before

    def take_loss(self) -> float | None:
        """The loss kept, once; None when there is none or it is not finite (that is counted as a bad step already)."""
        loss, self._loss = self._loss, None
        if loss is None or not math.isfinite(value := float(loss)):
            return None
        return value
