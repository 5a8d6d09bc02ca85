"""What is owed was computed under a learning rate and a loss scale; it must be applied as it was meant.

With the learning rate outside the memory (e is in gradient units), equality with the textbook form, rate inside, needs
e ← e · η/η' when the rate goes from η to η'. Gradients seen by DDP's hook carry the loss scale S, so e ← e · S'/S
when a GradScaler moves it.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from gravac.memories import Memory


class Scaler(Protocol):
    """What we need of ``torch.amp.GradScaler``."""

    def get_scale(self) -> float: ...


class Rates:
    """Watches one optimiser and, if given, its scaler. All ranks see the same values, so they scale alike.

    ``names``: the parameters' names by ``id``. Groups of parameters may change their rates differently.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, scaler: Scaler | None, names: Mapping[int, str]
    ) -> None:
        self._optimizer, self._scaler, self._names = optimizer, scaler, names
        self._rates = self._read()
        self._scale = self._read_scale()

    def follow(self, memory: Memory) -> None:
        """Scale what ``memory`` owes by what has changed since the last call, between steps.

        A rate of 0 is waited out: what counts is the last one above it.
        """
        scale_before, self._scale = self._scale, self._read_scale()
        if self._scale != scale_before:
            memory.rescale(self._scale / scale_before)
        now = self._read()
        factors = [
            old / new if old > 0 and new > 0 else 1.0 for old, new in zip(self._rates, now, strict=False)
        ]
        if len(set(factors)) == 1 and len(factors) == len(now):
            if factors[0] != 1.0:
                memory.change_rate(factors[0])
        else:
            for group, factor in zip(self._optimizer.param_groups, factors, strict=False):
                if factor != 1.0:
                    memory.change_rate(factor, self._named(group))
        known = [*self._rates, *now[len(self._rates) :]]
        self._rates = [new if new > 0 else old for old, new in zip(known, now, strict=False)]

    def state(self) -> list[float]:
        """The loss scale, then the rates, as of the last ``follow``: for a checkpoint."""
        return [self._scale, *self._rates]

    def restore(self, state: list[float]) -> None:
        """Measure the next change from where a checkpoint was taken."""
        self._scale, *self._rates = state

    def _named(self, group: dict[str, Any]) -> set[str]:
        return {self._names[id(one)] for one in group["params"] if id(one) in self._names}

    def _read(self) -> list[float]:
        groups: list[dict[str, Any]] = self._optimizer.param_groups
        return [float(group.get("lr", 0.0)) for group in groups]

    def _read_scale(self) -> float:
        scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        return scale if scale > 0 else 1.0
