"""A program that measures: options in, one JSON object a line out, until it is done or whoever started it has gone."""

import argparse
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """A runner that was killed cannot end its children: the kernel does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def speak(
    measured: Callable[[argparse.Namespace], Iterable[dict[str, Any]]], chosen: argparse.Namespace
) -> None:
    """Print ``{"kernels": …}``, then what ``measured`` yields, ``{"limit": …}`` or ``{"row": …}``, as it comes."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    torch.set_num_threads(1)
    from gravac import kernels

    answers.write(json.dumps({"kernels": kernels.active()}) + "\n")
    for answer in measured(chosen):
        answers.write(json.dumps(answer, allow_nan=False) + "\n")


def options(name: str, description: str | None) -> argparse.ArgumentParser:
    """What all of them take."""
    parser = argparse.ArgumentParser(prog=f"gravac_agent.bench.{name}", description=description)
    parser.add_argument("--n", type=int, nargs="+", required=True, help="elements")
    parser.add_argument("--pairs", type=int, required=True, help="pairs of the two sides that count")
    return parser
