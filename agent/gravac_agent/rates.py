"""What is owed was computed under a learning rate and a loss scale; it must be applied as it was meant.

With the learning rate outside the memory (e is in gradient units), equality with the textbook form, rate inside, needs
e ← e · η/η' when the rate goes from η to η'. Gradients seen by DDP's hook carry the loss scale S, so e ← e · S'/S
when a GradScaler moves it.
"""

import logging
import math
from typing import Any, Protocol

import torch

log = logging.getLogger("gravac.agent")


class Scaler(Protocol):
    """What we need of ``torch.amp.GradScaler``."""

    def get_scale(self) -> float: ...


class Rates:
    """Watches one optimiser and, if given, its scaler. All ranks see the same values, so they scale alike."""

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: Scaler | None) -> None:
        self._optimizer, self._scaler = optimizer, scaler
        self._rates = self._read()
        self._scale = self._read_scale()
        self._warned = False

    def factor(self) -> float:
        """What to multiply the memory by since the last call; 1 when nothing changed or no factor is right."""
        before, self._rates = self._rates, self._read()
        scale_before, self._scale = self._scale, self._read_scale()
        factor = self._rate_factor(before) * (self._scale / scale_before)
        return factor if math.isfinite(factor) and factor > 0 else 1.0

    def state(self) -> list[float]:
        """The loss scale, then the rates, as of the last call of ``factor``: for a checkpoint."""
        return [self._scale, *self._rates]

    def restore(self, state: list[float]) -> None:
        """Measure the next factor from where a checkpoint was taken."""
        self._scale, *self._rates = state

    def _rate_factor(self, before: list[float]) -> float:
        ratios = [old / new for old, new in zip(before, self._rates, strict=False) if old > 0 and new > 0]
        if len(before) != len(self._rates) or not ratios:
            return 1.0
        if max(ratios) - min(ratios) > 1e-9 * max(ratios):
            if not self._warned:
                log.warning(
                    "parameter groups change their learning rates differently: the memory is not rescaled"
                )
                self._warned = True
            return 1.0
        return ratios[0]

    def _read(self) -> list[float]:
        groups: list[dict[str, Any]] = self._optimizer.param_groups
        return [float(group["lr"]) for group in groups if "lr" in group]

    def _read_scale(self) -> float:
        scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        return scale if scale > 0 else 1.0
