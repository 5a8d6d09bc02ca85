"""Count the Python calls of a plain step: two gloo ranks, one bucket of 98 k parameters.

    python -m tools.calls [--compressor topk+bf16] [--all]

It counts calls of functions in gravac's packages, on all threads of rank 0, in a step that is neither surveyed nor the
last of its window: how many, in how many files, and how often they return to a file that they had left. ``--all`` also
prints every call.
"""

import argparse
import itertools
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac import Agent

ROOT = Path(__file__).parent.parent
PACKAGES = tuple(f"{ROOT / folder}{os.sep}" for folder in ("gravac", "agent/gravac_agent"))
SIDE = 313
"""Rows and columns of the only weight, which has 98 k elements."""
STEPS, PLAIN = 24, slice(8, 16)


class Call(NamedTuple):
    """A call of a function of ours."""

    thread: str
    file: str
    function: str


class Counted(NamedTuple):
    """The calls of a step, and of its part from DDP's hook to the future."""

    calls: list[Call]
    hook_to_future: int

    @property
    def files(self) -> int:
        """Files that were entered."""
        return len({call.file for call in self.calls})

    @property
    def returns(self) -> int:
        """How often a thread came back to a file that it had left for another."""
        found = 0
        for thread in {call.thread for call in self.calls}:
            files = [call.file for call in self.calls if call.thread == thread]
            seen: set[str] = set()
            for before, now in itertools.pairwise(files):
                seen.add(before)
                found += now != before and now in seen
        return found


class Recorder:
    """Records calls on all threads that start after it."""

    def __init__(self) -> None:
        self.calls: list[Call] | None = None
        self.hook_at = self.future_at = 0
        threading.setprofile(self)
        sys.setprofile(self)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self.calls is None:
            return
        if event == "c_call" and getattr(argument, "__name__", "") == "set_result":
            self.future_at = len(self.calls)
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGES) or code.co_name.startswith("<"):
            return  # comprehensions are no calls
        if code.co_name == "gravac_hook":
            self.hook_at = len(self.calls)
        file = str(Path(code.co_filename).relative_to(ROOT))
        self.calls.append(Call(threading.current_thread().name, file, code.co_qualname))

    def step(self, run: Callable[[], object]) -> Counted:
        """Return what ``run`` calls."""
        self.calls = []
        run()
        calls, self.calls = self.calls, None
        return Counted(calls, self.future_at - self.hook_at)


def rank(number: int, folder: str, compressor: str) -> list[Counted]:
    """Train on one of two ranks. Return the counted steps."""
    recorder = Recorder()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    module = DistributedDataParallel(nn.Linear(SIDE, SIDE, bias=False))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def train() -> None:
        module(torch.randn(4, SIDE, dtype=torch.float32)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with Agent(
        module,
        optimizer,
        compressor=compressor,
        policy="static:cf=100",
        controller=None,
        data_dir=folder,
        job="calls",
    ):
        counted = [recorder.step(train) for _ in range(STEPS)]
    dist.destroy_process_group()
    return counted[PLAIN]


def plain_step(compressor: str) -> Counted:
    """Train on two ranks. Return the step of rank 0 with the fewest calls, as a thread may also do older work."""
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(2, get_context("spawn")) as ranks:
        first, _ = ranks.map(rank, (0, 1), (folder,) * 2, (compressor,) * 2)
        return min(first, key=lambda counted: len(counted.calls))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--compressor", default="topk+bf16")
    parser.add_argument("--all", action="store_true", help="print every call")
    options = parser.parse_args()
    counted = plain_step(options.compressor)
    if options.all:
        for call in counted.calls:
            print(f"{call.thread:16} {call.file:48} {call.function}")
    print(
        f"{len(counted.calls)} calls in {counted.files} files, {counted.returns} returns to a file; "
        f"{counted.hook_to_future} calls from the hook to the future"
    )


if __name__ == "__main__":
    main()
