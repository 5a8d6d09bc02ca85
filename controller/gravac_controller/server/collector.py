"""Python's search for garbage cycles, kept out of the answers.

Nearly all that a window leaves in memory is history: kept for long, and without cycles. The search as Python does it
would go through all of that again and again: 60 ms at a time after some minutes, seconds with a hundred full
histories, and all windows wait. Here each object is looked at once, soon after it was made, and set aside if it is
still in use. What is set aside and becomes a cycle later (a few objects of some closed connections) waits until all is
looked through, which happens whenever there is twice as much as the last time: so it is bounded, and seldom.
"""

import asyncio
import gc

LOOK_SECONDS = 0.1
"""Between two looks at what is new."""
WEIGH_SECONDS = 60.0
"""Between two counts of what was set aside; a count of a million objects takes some milliseconds."""


class Collector:
    """Stands in for the automatic search, from ``start`` to ``stop``, on the running event loop."""

    def __init__(self) -> None:
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._most = 0

    def start(self) -> None:
        """Set all that is there aside and begin."""
        gc.disable()
        self.look_through()
        self._look()
        self._weigh()

    def stop(self) -> None:
        """Let Python search by itself again; what was set aside stays so: it would hold up the end of the process."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        gc.enable()

    def look_through(self) -> None:
        """Search everything, which takes long, and set aside what is in use."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._most = 2 * gc.get_freeze_count()

    def _look(self) -> None:
        gc.collect(0)
        gc.freeze()
        self._timers["look"] = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _weigh(self) -> None:
        if gc.get_freeze_count() > self._most:
            self.look_through()
        self._timers["weigh"] = asyncio.get_running_loop().call_later(WEIGH_SECONDS, self._weigh)
