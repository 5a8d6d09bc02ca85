"""Records some steps of any training for ``gravac observe``, without a change to the training.

This room needs only the standard library and torch, and imports nothing of gravac: ``inject/sitecustomize.py`` loads it
by its path, also into an environment in which gravac is not installed. ``gravac_observe`` has the types of
what it is asked and what it writes, for type checkers.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .recorder import Recorder

if TYPE_CHECKING:
    from gravac_observe import RecordRequest

VARIABLE = "GRAVAC_OBSERVE"
"""What ``gravac observe`` asks of the processes of its command: folder, steps and warmup, as JSON."""
INJECTED = "gravac_recorder"
"""This module's name where ``inject/sitecustomize.py`` loaded it."""
_recorder: Recorder | None = None


def observe(steps: int = 5, warmup: int = 10, folder: str | Path | None = None) -> None:
    """Say in three lines whether this training waits for its network: ``gravac observe`` as a line in a script.

    Call it on each rank, before the training. Once ``warmup`` steps are over, torch's profiler records the next
    ``steps`` of them. Then nothing is left in the training, and a process of its own prints the verdict to the stderr
    of rank 0. Under ``gravac observe``, the command's options count instead.

    Args:
        steps: How many are recorded.
        warmup: How many steps of the optimizer go before: the first ones build buckets, compile, and allocate.
        folder: Folder in which rank 0 keeps the traces. Default: a new one in ``gravac-runs/observe``.

    Raises:
        ValueError: ``steps`` or ``warmup`` is no positive number.
    """
    for name, value in (("steps", steps), ("warmup", warmup)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name}={value!r:.100}: give a whole number from 1 on, such as {name}=5")
    if VARIABLE not in os.environ:
        _start(Recorder(steps, warmup, None if folder is None else Path(folder).absolute(), judges=True))
    elif INJECTED not in sys.modules:  # it did not reach this process, as under python -I
        observe_as_asked()


def observe_as_asked() -> None:
    """Record as ``gravac observe`` asks, in a process of its command."""
    asked: RecordRequest = json.loads(os.environ[VARIABLE])
    _start(Recorder(asked["steps"], asked["warmup"], Path(asked["folder"]), judges=False))


def _start(recorder: Recorder) -> None:
    global _recorder
    if _recorder is None:
        _recorder = recorder
        recorder.start()
