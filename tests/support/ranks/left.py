"""What a scenario must leave as it found it, since others run in its process after it."""

import gc
import logging
import os
import random
import sys
import threading
import time
import warnings
from collections import Counter
from contextlib import suppress
from typing import Any

import torch

OURS = ("gravac", "gravac_agent", "gravac_controller")
SEED = torch.initial_seed()
ENDING_SECONDS = 15.0
"""Threads of an agent whose controller does not answer end a little after it."""


def reset() -> None:
    """Restore what belongs to the process: warnings, random numbers, the default dtype, gradients."""
    warnings.resetwarnings()  # torch's Join adds a filter
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    torch.manual_seed(SEED)
    random.seed()
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)


def look() -> dict[str, Counter[str]]:
    """What there is now, by kind: threads, open files, hooks on all modules and optimizers, globals of ours, …"""
    gc.collect()
    return {
        "threads": Counter(thread.name for thread in threading.enumerate()),
        "files": Counter(_files()),
        "hooks": Counter(_hooks()),
        "log handlers": Counter(_handlers()),
        "globals": Counter(_globals()),
        "settings": Counter([f"{name}={value}" for name, value in os.environ.items()] + [os.getcwd()]),
    }


def changed_since(before: dict[str, Counter[str]]) -> str:
    """What came and what went, in words; empty when all is as it was, now or soon."""
    until = time.monotonic() + ENDING_SECONDS
    while True:
        changed = "; ".join(
            f"{kind}: {sign}{name}"
            for kind, found in look().items()
            for sign, names in (("+", found - before[kind]), ("-", before[kind] - found))
            for name in sorted(names.elements())
        )
        if not changed or time.monotonic() > until:
            return changed
        time.sleep(0.1)


def _files() -> list[str]:
    names = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself
            names.append(os.readlink(f"/proc/self/fd/{number}").partition(":[")[0])
    return names


def _hooks() -> list[str]:
    places = (sys.modules[name] for name in ("torch.optim.optimizer", "torch.nn.modules.module"))
    return [
        f"{name} {hook}"
        for place in places
        for name, hooks in vars(place).items()
        if name.startswith("_global_") and isinstance(hooks, dict)
        for hook in hooks.values()
    ]


def _handlers() -> list[str]:
    loggers: list[Any] = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    return [f"{one.name} {handler}" for one in loggers for handler in getattr(one, "handlers", ())]


def _globals() -> list[str]:
    """Functions and classes where they were defined, and constants: each that a scenario replaces is missing then."""
    return [
        f"{module}.{name} {id(value) if name.isupper() else ''}"
        for module in list(sys.modules)
        if module.partition(".")[0] in OURS
        for name, value in vars(sys.modules[module]).items()
        if name.isupper()
        or (getattr(value, "__module__", ""), getattr(value, "__qualname__", "")) == (module, name)
    ]
