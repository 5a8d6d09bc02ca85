"""What the agent costs in a step of a GPT: time against plain DDP, on the device and on the host."""

import gc
import importlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from gravac.memories import Bucket
from tools.gpu.figures import Figure
from tools.gpu.measure.gpt import Training
from tools.gpu.measure.launches import SPAN, launches
from tools.gpu.measure.timing import quartiles, synchronize

PLANS = (
    ("observing", "topk+bf16", 1.0),
    ("topk+twobit, 64x", "topk+twobit", 16.6),
    ("bf16", "bf16", 2.0),
    ("int8", "int8", 4.0),
    ("topk+bf16, 1 %", "topk+bf16", 100.0),
    ("nearest, 15 levels", "nearest:levels=15", 7.5),
    ("topk, 1 %", "topk", 100.0),
)
"""Name, codec and CF of the agent's side, those first that most is asked of."""
WARM_UP = 12
"""Steps in which kernels are compiled and buckets rebuilt, and in the first ten of which DDP itself waits for a GPU."""
MOST_OBSERVING = 1.0
"""Percent of a step."""
MOST_HOST_SECONDS = 100e-6
"""Of a bucket."""


def measured(device: torch.device, function: str, **arguments: Any) -> list[dict[str, Any]]:
    """Run a function on this rank, as all ranks do, and write each figure to the output when it is known.

    Args:
        device: Where it trains.
        function: ``module:function`` of ``tools.gpu.measure``.
        arguments: Its other arguments.

    Returns:
        The figures, for JSON.
    """
    figures = []
    module, _, name = function.partition(":")
    found = getattr(importlib.import_module(f"tools.gpu.measure.{module}"), name)
    for figure in found(device, **arguments):
        print(figure.line(), flush=True)
        figures.append(asdict(figure))
    return figures


def against_ddp(device: torch.device, shape: str, pairs: int, block: int) -> Iterator[Figure]:
    """Measure steps with the agent against plain DDP: blocks of steps in turn, two models in one process.

    Args:
        device: Where they train.
        shape: Sizes, a key of ``SHAPES``.
        pairs: Pairs of blocks.
        block: Steps in a block.
    """
    plain = Training(shape, device)
    _block(plain, WARM_UP)
    for name, codec, cf in PLANS:
        what = f"GPT of {plain.parameters / 1e6:.3g} M, {name}"
        with Training(shape, device, codec, cf) as ours:
            _block(ours, WARM_UP)
            taken = [(_block(plain, block), _block(ours, block)) for _ in range(pairs)]
        costs = [100 * (mine / theirs - 1) for theirs, mine in taken]
        low, cost, high = quartiles(costs)
        most = MOST_OBSERVING if cf == 1.0 and plain.parameters > 100e6 else None
        yield Figure(name=f"{what}: added to a step", value=cost, unit="%", low=low, high=high, most=most)
        theirs = statistics.median(pair[0] for pair in taken)
        yield Figure(name=f"{what}: a step of plain DDP", value=theirs / block, unit="s")
        del ours
        empty(device)


def _block(training: Training, steps: int) -> float:
    """Return the seconds that some steps take, until the device has done them."""
    synchronize(training.device)
    begun = time.perf_counter()
    for _ in range(steps):
        training.step()
    synchronize(training.device)
    return time.perf_counter() - begun


def host_time(device: torch.device, shape: str, steps: int) -> Iterator[Figure]:
    """Measure how long the trainer's thread is inside the agent, and what it launches there: in DDP's hook, by bucket.

    The last bucket's call also queues what ends the step. On the CPU the agent uses simulated streams.
    """
    for name, codec, cf in PLANS:
        with ExitStack() as stack:
            if device.type == "cpu":
                from tests.support.streams.at_once import streams_for_agents

                stack.enter_context(streams_for_agents(whole=True))
            training = stack.enter_context(Training(shape, device, codec, cf))
            for _ in range(WARM_UP):
                training.step()
            hooks, ends = _timed(training, steps)
            launched = _launched(training)
        what = f"GPT of {training.parameters / 1e6:.3g} M, {name}: host,"
        each = [seconds for step in hooks for seconds in step[:-1]]
        low, middle, high = quartiles(each)
        most = MOST_HOST_SECONDS if device.type == "cuda" else None
        yield Figure(name=f"{what} a bucket", value=middle, unit="s", low=low, high=high, most=most)
        yield Figure(name=f"{what} the last bucket", value=statistics.median(s[-1] for s in hooks), unit="s")
        yield Figure(name=f"{what} all buckets of a step", value=statistics.median(map(sum, hooks)), unit="s")
        yield Figure(name=f"{what} the end of a step", value=statistics.median(ends), unit="s")
        yield Figure(name=f"{what} buckets", value=float(len(hooks[0])))
        yield Figure(name=f"{what} launches in a step", value=float(sum(launched)))
        del training
        empty(device)


def _launched(training: Training) -> list[int]:
    """Return what each bucket's hook of a step launches on a GPU."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if training.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with TemporaryDirectory() as folder, _submitting(training, lambda: record_function(SPAN)):
        with torch.profiler.profile(activities=activities) as profiler:
            training.step()
            synchronize(training.device)
        file = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(file))
        return launches(json.loads(file.read_text()))


@contextmanager
def _submitting(training: Training, around: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Put a context around each call of DDP's hook."""
    assert training.agent is not None
    session = training.agent._session
    assert session is not None
    submit = session.steps.submit

    def surrounded(bucket: Bucket, buffer: Tensor, last: bool) -> torch.futures.Future[Tensor]:
        with around():
            return submit(bucket, buffer, last)

    session.steps.submit = surrounded  # type: ignore[method-assign]
    try:
        yield
    finally:
        del session.steps.submit


def _timed(training: Training, steps: int) -> tuple[list[list[float]], list[float]]:
    """Return for each step the seconds in the hook, by bucket, and those in what ends it when the next one begins."""
    assert training.agent is not None
    session = training.agent._session
    assert session is not None
    finish_step = session.steps.finish_step
    hooks: list[list[float]] = []
    ends: list[float] = []

    @contextmanager
    def timed() -> Iterator[None]:
        begun = time.perf_counter()
        yield
        hooks[-1].append(time.perf_counter() - begun)

    def timed_end(dropped: bool = False) -> None:
        begun = time.perf_counter()
        finish_step(dropped)
        ends[-1] += time.perf_counter() - begun

    session.steps.finish_step = timed_end  # type: ignore[method-assign]
    with _submitting(training, timed):
        for _ in range(steps):
            hooks.append([])
            ends.append(0.0)
            training.step()
    del session.steps.finish_step
    synchronize(training.device)
    return hooks, ends


def empty(device: torch.device) -> None:
    """Free what a finished training held, so that the next one finds the same memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
