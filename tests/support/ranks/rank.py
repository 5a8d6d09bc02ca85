"""One rank of a distributed test, in its own process."""

import ctypes
import faulthandler
import json
import logging
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.support.ranks import scenarios

NETWORK = 0x40000000
"""CLONE_NEWNET of Linux: a network namespace."""


def join(namespace: str) -> None:
    """Let this thread, and those that it starts, use a host's network."""
    with Path("/run/netns", namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot join network namespace {namespace}")


def main(scenario: str, arguments: dict[str, Any], result: str) -> None:
    """Run a function of ``scenarios`` and write what it returns to the JSON file ``result``."""
    code = 1
    try:
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
        logging.basicConfig(level=logging.INFO)
        faulthandler.register(signal.SIGUSR1)
        torch.set_num_threads(1)
        if namespace := os.environ.get("TEST_NAMESPACE"):
            join(namespace)
        dist.init_process_group("gloo")
        found = getattr(scenarios, scenario)(dist.get_rank(), dist.get_world_size(), **arguments)
        Path(result).write_text(json.dumps(found))
        dist.destroy_process_group()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # gloo's threads outlive the group and may abort the interpreter's shutdown
