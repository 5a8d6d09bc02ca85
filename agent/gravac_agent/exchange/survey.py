"""Now and then, the whole curve of gain against CF: what Top-k would keep of what there was to send.

A step or a few in a window are enough: the curve moves slowly, and counting costs a pass over the gradient where
nothing else would have counted it.
"""

import logging
from dataclasses import dataclass

from gravac.kernels import Tally
from gravac.signals.spectrum import Curve, Spectrum

log = logging.getLogger("gravac.agent")

STEPS = 3
"""Steps of a window that are surveyed."""


@dataclass(slots=True)
class Survey:
    """The curve of one step on one rank, summed over its buckets."""

    wanted: bool = False
    curve: Curve | None = None

    def take(self, counted: Tally | None) -> None:
        """Add a bucket's histogram, finite throughout. Never raises: a curve is worth less than the training."""
        if not self.wanted or counted is None:
            return
        try:
            found = Spectrum.of(counted).curve()
            self.curve = found if self.curve is None else self.curve + found
        except Exception:
            log.exception("the curve of this step is left out")
            self.wanted, self.curve = False, None


NOTHING = Survey()


def surveyed(step_of_window: int, window_steps: int) -> bool:
    """Whether this step, 0 to ``window_steps - 1``, is among the ``STEPS`` evenly spread ones; the last always is."""
    every = max(1, window_steps // STEPS)
    return (window_steps - 1 - step_of_window) % every == 0 and step_of_window >= window_steps - every * STEPS
