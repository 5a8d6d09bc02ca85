"""Scales the residual when the learning rate or the loss scale changes.

The residual e is in gradient units, computed under a learning rate η. To have the effect it would have had, it becomes
e · η/η' when the rate changes to η'. An optimizer that steps by age hears of it, as what waits is of another size then.
Gradients seen by DDP's hook carry the loss scale S, so e becomes e · S'/S when a
GradScaler changes the scale to S'.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from gravac import optim
from gravac.memories import Memory
from gravac_agent.setup.describe import groups_of, innermost, number
from gravac_agent.setup.usage import Scaler

RateValues = tuple[float, list[float]]
"""A loss scale, and the rate of each parameter group."""


class LearningRates:
    """Follows the optimizers' learning rates and the loss scale, which are the same on all ranks.

    Args:
        optimizers: Their parameter groups may have different rates.
        scaler: The GradScaler in use; None: the loss scale is 1.
        names: Names of the parameters by their ``id``.
        pieces: What the error memory calls the parts of a parameter; None: it holds parameters whole.

    Attributes:
        followed: What the residual follows already: the loss scale, and the last rate above 0 of each group.
        pending: What it will follow from the next step on; None: nothing changed.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: Scaler | None,
        names: Mapping[int, str],
        pieces: Callable[[str], Iterable[str]] | None = None,
    ) -> None:
        self._optimizers, self._scaler, self._names = optimizers, scaler, names
        self._pieces = pieces
        self.followed = self.now()
        self.pending: RateValues | None = None

    def now(self) -> RateValues:
        """Return the loss scale and the rates. With a GradScaler on a GPU the host waits for it."""
        scale = 1.0 if self._scaler is None else self.loss_scale()
        rates = [group.get("lr") for one in self._optimizers for group in one.param_groups]
        # Every step reads them, so a usual rate costs no call. Adafactor may choose rates of its own, and has None.
        return scale, [
            rate if type(rate) is float and 0.0 < rate < 1.0 else number(rate) or 0.0 for rate in rates
        ]

    def follow(self, *memories: Memory, at: RateValues | None = None) -> None:
        """Scale residuals and their ages by the changes since the last call. Called between steps.

        A rate of 0 is ignored: the last one above 0 counts.

        Args:
            *memories: They must have taken in the step before: what waits in a draft is not scaled.
            at: What ``now`` returned earlier; None: the scale and the rates now.
        """
        scale_before, rates = self.followed
        scale, now = self.now() if at is None else at
        factors = [old / new if old > 0 and new > 0 else 1.0 for old, new in zip(rates, now, strict=False)]
        groups = groups_of(self._optimizers)
        alike = len(set(factors)) == 1 and len(factors) == len(now)
        for memory in memories:
            if scale != scale_before:
                memory.rescale(scale / scale_before)
            if alike and factors[0] != 1.0:
                memory.change_rate(factors[0])
            for group, factor in () if alike else zip(groups, factors, strict=False):
                if factor != 1.0:
                    memory.change_rate(factor, self._named(group))
        steppers = [innermost(one) for one in self._optimizers for _ in one.param_groups]
        for stepper, group, factor in zip(steppers, groups, factors, strict=False):
            if factor != 1.0 and isinstance(stepper, optim.Adam | optim.AdamW):
                stepper.scaled(factor, group["params"])
        known = [*rates, *now[len(rates) :]]
        self.followed = scale, [new if new > 0 else old for old, new in zip(known, now, strict=False)]

    def state(self) -> list[float]:
        """Return the loss scale and the rates at the last ``follow``, for a checkpoint."""
        return [self.followed[0], *self.followed[1]]

    def restore(self, state: list[float]) -> None:
        """Take the next change relative to a checkpoint's values."""
        self.followed = state[0], state[1:]

    def _named(self, group: dict[str, Any]) -> set[str]:
        names = {self._names[id(param)] for param in group["params"] if id(param) in self._names}
        return names if self._pieces is None else {piece for name in names for piece in self._pieces(name)}

    def loss_scale(self) -> float:
        """Return the loss scale now; 1 without a GradScaler."""
        scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        return scale if scale > 0 else 1.0
