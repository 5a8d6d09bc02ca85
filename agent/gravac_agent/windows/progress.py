"""The progress of the training next to a dense reference, counted by level of each window. Nothing here raises."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from gravac_agent.exchange.plan import StepPlan
from gravac_agent.exchange.sample import Coordinates
from gravac_agent.windows.reference import DenseReference
from gravac_agent.windows.second_optimizer import steps_elements_alone
from gravac_agent.windows.totals import WindowTotals, level_of

log = logging.getLogger("gravac.agent")


class Progress:
    """Calls the dense reference around each step of the optimizer, and hands its sums to the window.

    All methods run on the training thread. A failure turns it off; the training does not notice.

    Args:
        optimizer: The training's optimizer, without wrappers.
        parameters: The module's parameters by name.
        coordinates: The sample, which the ticks exchange.
        note: Puts a sentence into log and journal.
    """

    def __init__(
        self,
        optimizer: Any,
        parameters: Mapping[str, nn.Parameter],
        coordinates: Coordinates,
        note: Callable[[str], None],
    ) -> None:
        self._note = note
        self._reference: DenseReference | None = None
        self._plan: StepPlan | None = None
        if not coordinates.size:
            return
        # Nothing of an unknown optimizer runs on made-up parameters, not even its constructor.
        if not steps_elements_alone(optimizer):
            kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
            self._turn_off(f"{kind} is not known to step each element of a parameter for itself")
            return
        try:
            self._reference = DenseReference(optimizer, parameters, coordinates)
        except Exception as error:
            log.debug("no dense reference", exc_info=True)
            self._turn_off(f"a second {type(optimizer).__name__} cannot be made ({type(error).__name__})")

    @property
    def on(self) -> bool:
        """Whether it is measured."""
        return self._reference is not None

    def exchanged(self, plan: StepPlan, raw: Tensor, sent: Tensor, window: WindowTotals) -> None:
        """Take in a finite step's exchange.

        Args:
            plan: The step's plan.
            raw: The sample of the mean raw gradient.
            sent: The sample of the mean that was exchanged.
            window: The running window.
        """

        def take_in(reference: DenseReference) -> None:
            # What a plan did in the steps before may not count for the next one.
            if self._plan is not None and level_of(self._plan) != level_of(plan):
                window.add_progress(self._plan, reference.change_plan())
            self._plan = plan
            reference.exchanged(raw, sent)

        self._try(take_in)

    def before_step(self, loss_scale: float, clipped_as_dense: bool) -> None:
        """Call it right before the optimizer steps; see ``DenseReference.before_step``."""
        self._try(lambda reference: reference.before_step(loss_scale, clipped_as_dense))

    def after_step(self, evaluated: bool) -> None:
        """Call it right after the optimizer stepped. ``evaluated``: it computed the gradients itself, by a closure."""
        if evaluated and self.on:
            self._turn_off("the optimizer is stepped with a closure")
        self._try(DenseReference.after_step)

    def close_window(self, window: WindowTotals) -> None:
        """Hand the sums over at the end of a window."""

        def hand_over(reference: DenseReference) -> None:
            if self._plan is not None:
                reference.forget_exchange()
                window.add_progress(self._plan, reference.pop())

        self._try(hand_over)

    def _try(self, work: Callable[[DenseReference], None]) -> None:
        """Do what needs the reference, where there is one. A failure turns it off."""
        if self._reference is None:
            return
        try:
            work(self._reference)
        except Exception:
            log.debug("the dense reference failed", exc_info=True)
            self._turn_off("the optimizer cannot be followed any more")

    def _turn_off(self, why: str) -> None:
        self._reference = None
        self._note(f"The progress next to dense training is not measured: {why}.")
