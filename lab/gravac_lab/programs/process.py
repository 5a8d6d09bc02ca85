"""How a benchmark's process talks with ``gravac bench``, which started it: JSON lines on standard output.

A program on one core (``run_program``) prints rows as it measures them. A rank (``serve_requests``) answers requests
from standard input, so that ``gravac bench`` can let several groups of ranks take turns, each in processes of its own:
then drift of the machine hits all of them alike. The end of the input ends a rank.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

PR_SET_PDEATHSIG = 1
Row = dict[str, Any]
Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""Function from a request to its answer."""
Setup = Callable[[int, int], AbstractContextManager[tuple[dict[str, Any], Answer]]]
"""Function from rank and world size to what the rank reports when it is ready, and what answers requests."""


def add_sizes(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options that all programs on one core have, and return the parser."""
    parser.add_argument("--n", type=int, nargs="+", required=True, help="elements")
    parser.add_argument("--pairs", type=int, required=True, help="pairs of the two sides that count")
    return parser


def run_program(
    measure: Callable[[argparse.Namespace], Iterable[dict[str, Any]]], chosen: argparse.Namespace
) -> None:
    """Print ``{"kernels": …}``, then each ``{"limit": …}``, ``{"row": …}`` or ``{"progress": …}`` that it yields."""
    answers = _begin()
    from gravac import kernels

    answers.write(json.dumps({"kernels": kernels.active()}) + "\n")
    for answer in measure(chosen):
        answers.write(json.dumps(answer, allow_nan=False) + "\n")


def serve_requests(setup: Setup, expected: tuple[type[Exception], ...] = ()) -> None:
    """Run one rank, whose place is in RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Never returns.

    Args:
        setup: Makes what the rank needs.
        expected: Errors that end the process with exit code 1 and the message alone.
    """
    if "RANK" not in os.environ:
        sys.exit("`gravac bench` runs this program and sets RANK")
    answers = _begin()
    try:
        dist.init_process_group("gloo", timeout=timedelta(minutes=30))
        with setup(dist.get_rank(), dist.get_world_size()) as (ready, answer):
            answers.write(json.dumps(ready) + "\n")
            for line in sys.stdin:
                answers.write(json.dumps(answer(json.loads(line))) + "\n")
        dist.destroy_process_group()
    except expected as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    # Skip the interpreter's shutdown: gloo's threads outlive the group and may abort it.
    sys.stderr.flush()
    os._exit(0)


def counters(interface: str) -> dict[str, int]:
    """Read what a network interface has counted: bytes and packets sent, and bytes received."""
    folder = Path("/sys/class/net", interface, "statistics")
    return {name: int((folder / name).read_text()) for name in ("tx_bytes", "tx_packets", "rx_bytes")}


def end_with_parent() -> None:
    """End this process when its parent ends, where the system can: a killed runner cannot end its children."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _begin() -> IO[str]:
    """Prepare the process; returns the stream for answers, which libraries cannot print to."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    return answers
