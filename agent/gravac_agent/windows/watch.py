"""Notices a step that hangs on a device while the training thread waits for the device by itself.

The host does not wait for an exchange on a device. Where a rank is lost, the trainer's next look at a result, such as
``loss.item()``, waits for the device, and no code of ours sees it until NCCL's watchdog ends the process. So a thread
looks once in a while, and the journal has the reason before.
"""

import logging
import threading
import time
from collections.abc import Callable

from gravac_agent.devices import Device

log = logging.getLogger("gravac.agent")

_LONGEST_PAUSE = 1.0


class Watch:
    """Watches one step after another, from the end of its backward to when it is finished.

    Args:
        device: What a step runs on; its patience is that for a step.
        hangs: Returns whether the device has not done the step. It is asked when that was to be expected long ago, as
            nothing may ask a device while it captures a graph.
        lose: Takes the number of a step that hangs, and why it is lost.
    """

    def __init__(self, device: Device, hangs: Callable[[], bool], lose: Callable[[int, str], object]) -> None:
        self._device, self._hangs, self._lose = device, hangs, lose
        self._watched: tuple[int, float] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gravac-watch", daemon=True)
        self._thread.start()

    def begin(self, step: int) -> None:
        """Watch a step, whose backward has ended."""
        self._watched = step, time.monotonic()

    def end(self) -> None:
        """Watch no step: the one that was watched is finished."""
        self._watched = None

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        said, patience = None, self._device.patience
        while not self._closed.wait(min(_LONGEST_PAUSE, patience / 8)):
            watched = self._watched
            if watched is None or watched == said or time.monotonic() - watched[1] <= patience:
                continue
            try:
                if self._hangs() and watched == self._watched:
                    said = watched
                    self._lose(watched[0], f"the exchange {self._device.late}")
            except Exception:  # only a message is lost
                log.exception("step %d hangs, and could not be looked at", watched[0])
                said = watched
