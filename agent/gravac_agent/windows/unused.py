"""Exchanged gradients that leave nothing in the parameters: dropped ones, and those of a way that is gone back.

SAM, extragradient and first-order MAML move the parameters by one gradient, compute another one there, put the
parameters back, and step by the second. What the error memory keeps of the first gradient would come out in the second.
"""

from collections.abc import Hashable

import torch

from gravac_agent.fsdp.model import DataParallel

BACK = 0.01
"""Parameters are back where they are this near, as a share of how far they went: (w + e) - e is w to rounding only."""
DROPPED = (
    "Gradients were exchanged and then dropped (zero_grad without an optimizer step). They leave no residual. Freeze "
    "the module with requires_grad_(False), or use no_sync(), to save their exchange."
)
PUT_BACK = (
    "Gradients were exchanged, and before the optimizer stepped by later ones the parameters were put back to where "
    "they had been, as SAM does. From now on such gradients leave no residual. no_sync() around their backward saves "
    "their exchange."
)


class UnusedGradients:
    """Tells by sums of the parameters which exchanges the parameters keep nothing of.

    Whether a way is gone back is known at the optimizer's step, after the exchange that followed. So it is remembered
    by what ended the first exchange: a forward with gradients that were set to zero, or the step of an optimizer. Such
    an exchange is dropped from then on, until the parameters keep what it did to them.

    Args:
        module: Its parameters are added up, once ``on``.

    Attributes:
        on: Whether parameters are added up: after each backward, and where the sums are needed.
        ended: What ended the exchanges that were followed by zero gradients, since the optimizer's last step.
        put_back: What ends exchanges whose way is gone back.
    """

    def __init__(self, module: DataParallel) -> None:
        self._module = module
        self.on = False
        self.ended: set[Hashable] = set()
        self.put_back: set[Hashable] = set()
        self._first: list[float] | None = None  # sums at the end of the first backward since the last step
        self._last: list[float] = []  # and of the last one
        self._way = 0.0

    def backward_ended(self) -> None:
        """Add up the parameters that a gradient was computed at. Call it while ``on``."""
        if not self.ended:
            self._first, self._way = None, 0.0
        self._last = self._sums()
        if self._first is None:
            self._first = self._last

    def moved(self) -> bool:
        """Return whether anything has moved the parameters since the last backward. Call it while ``on``."""
        return self._first is None or self._sums() != self._last

    def before_step(self, end: Hashable) -> bool:
        """Compare the parameters with those of the first backward, as the optimizer is about to step by the last.

        Args:
            end: What ends the last exchange, which this step uses.

        Returns:
            Whether exchanges were found whose way is gone back, and which were not dropped.
        """
        earlier = self.ended - {end}
        if not earlier or self._first is None:
            return False
        off, way = _distance(self._first, self._sums()), self._way
        if off > BACK * way:
            self.put_back -= earlier
        elif way > 0.0 and not earlier <= self.put_back:
            self.put_back |= earlier
            return True
        return False

    @torch.no_grad()
    def _sums(self) -> list[float]:
        """Return a sum of each parameter's elements on this rank."""
        local = (getattr(param, "_local_tensor", param).detach() for param in self._module.parameters())
        sums = [
            float((torch.view_as_real(one) if one.is_complex() else one).sum(dtype=torch.float64))
            for one in local
        ]
        if self._first is not None:
            self._way = max(self._way, _distance(self._first, sums))
        return sums


def _distance(one: list[float], two: list[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, two, strict=True))
