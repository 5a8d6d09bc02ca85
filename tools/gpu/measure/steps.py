"""What the agent costs in a step of a GPT: time against plain DDP, on the device and on the host, and memory.

All ranks of a process group run the same function, through ``measured``.
"""

import gc
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.memories import Bucket
from tools.gpu.figures import Figure
from tools.gpu.measure.gpt import Precision, Training
from tools.gpu.measure.timing import allocated, quartiles, synchronize

PLANS = (("observing", "topk+bf16", 1.0), ("Top-k 1 %", "topk+bf16", 100.0))
"""Name, codec and CF of the agent's side."""
LOOPBACK_PLANS = (
    ("plain DDP", None, 1.0),
    ("agent, dense", "topk+bf16", 1.0),
    ("bf16", "bf16", 2.0),
    ("int8", "int8", 4.0),
    ("Top-k 10 %", "topk+bf16", 10.0),
    ("Top-k 1 %", "topk+bf16", 100.0),
    ("PowerSGD, rank 4", "powersgd:rank=4", 10.0),
)
WARM_UP = 12
"""Steps in which kernels are compiled and buckets rebuilt, and in the first ten of which DDP itself waits for a GPU."""
LOOPBACK_WARM_UP = 4
"""Fewer, since these steps are slow and the host waits after each."""
MOST_OBSERVING = 1.0
"""Percent of a step."""
MOST_HOST_SECONDS = 100e-6
"""Of a bucket."""


def measured(device: torch.device, function: str, **arguments: Any) -> list[dict[str, Any]]:
    """Run a function of this file on this rank, and write each figure to the output when it is known.

    Args:
        device: Where it trains.
        function: Its name.
        arguments: Its other arguments.

    Returns:
        The figures, for JSON.
    """
    figures = []
    for figure in globals()[function](device, **arguments):
        print(figure.line(), flush=True)
        figures.append(asdict(figure))
    return figures


def against_ddp(
    device: torch.device, shape: str, precision: Precision, pairs: int, block: int
) -> Iterator[Figure]:
    """Measure steps with the agent against plain DDP: blocks of steps in turn, two models in one process.

    Args:
        device: Where they train.
        shape: Sizes, a key of ``SHAPES``.
        precision: Of parameters and gradients.
        pairs: Pairs of blocks.
        block: Steps in a block.
    """
    for name, codec, cf in PLANS:
        with (
            Training(shape, device, precision) as plain,
            Training(shape, device, precision, codec, cf) as ours,
        ):
            what = f"GPT of {plain.parameters / 1e6:.3g} M, {precision}, {name}"
            _block(plain, WARM_UP)
            _block(ours, WARM_UP)
            taken = [(_block(plain, block), _block(ours, block)) for _ in range(pairs)]
        costs = [100 * (mine / theirs - 1) for theirs, mine in taken]
        low, cost, high = quartiles(costs)
        most = MOST_OBSERVING if cf == 1.0 and plain.parameters > 100e6 else None
        yield Figure(name=f"{what}: added to a step", value=cost, unit="%", low=low, high=high, most=most)
        theirs = statistics.median(pair[0] for pair in taken)
        yield Figure(name=f"{what}: a step of plain DDP", value=theirs / block, unit="s")
        del plain, ours
        _empty(device)


def _block(training: Training, steps: int) -> float:
    """Return the seconds that some steps take, until the device has done them."""
    synchronize(training.device)
    begun = time.perf_counter()
    for _ in range(steps):
        training.step()
    synchronize(training.device)
    return time.perf_counter() - begun


def host_time(device: torch.device, shape: str, precision: Precision, steps: int) -> Iterator[Figure]:
    """Measure how long the trainer's thread is inside the agent: in DDP's hook, by bucket, and at the end of a step."""
    for name, codec, cf in PLANS:
        with Training(shape, device, precision, codec, cf) as training:
            assert training.agent is not None
            for _ in range(WARM_UP):
                training.step()
            hooks, ends = _timed(training, steps)
        what = f"GPT of {training.parameters / 1e6:.3g} M, {precision}, {name}: host,"
        each = [seconds for step in hooks for seconds in step]
        low, middle, high = quartiles(each)
        most = MOST_HOST_SECONDS if device.type == "cuda" else None
        yield Figure(name=f"{what} a bucket", value=middle, unit="s", low=low, high=high, most=most)
        yield Figure(name=f"{what} the last bucket", value=statistics.median(s[-1] for s in hooks), unit="s")
        yield Figure(name=f"{what} all buckets of a step", value=statistics.median(map(sum, hooks)), unit="s")
        yield Figure(name=f"{what} the end of a step", value=statistics.median(ends), unit="s")
        yield Figure(name=f"{what} buckets", value=float(len(hooks[0])))
        del training
        _empty(device)


def _timed(training: Training, steps: int) -> tuple[list[list[float]], list[float]]:
    """Return for each step the seconds in the hook, by bucket, and those in what ends a step.

    Without a device that is before the optimizer; with one, when the next forward begins.
    """
    session = training.agent._session if training.agent is not None else None
    assert session is not None
    submit, finish_step = session.submit, session.finish_step
    hooks: list[list[float]] = []
    ends: list[float] = []

    def timed_submit(bucket: Bucket, buffer: Tensor, last: bool) -> torch.futures.Future[Tensor]:
        begun = time.perf_counter()
        future = submit(bucket, buffer, last)
        hooks[-1].append(time.perf_counter() - begun)
        return future

    def timed_end(dropped: bool = False) -> None:
        begun = time.perf_counter()
        finish_step(dropped)
        ends[-1] += time.perf_counter() - begun

    session.submit, session.finish_step = timed_submit, timed_end  # type: ignore[method-assign]
    for _ in range(steps):
        hooks.append([])
        ends.append(0.0)
        training.step()
    del session.submit, session.finish_step
    synchronize(training.device)
    return hooks, ends


def peak_memory(device: torch.device, shape: str, precision: Precision, steps: int) -> Iterator[Figure]:
    """Measure the memory that a training takes with plain DDP and with the agent: at its peak, and between steps."""
    plain = 0
    with Training(shape, device, precision) as training:
        training.step()  # what libraries take once and keep belongs to nobody
    del training
    for name, codec, cf in (("plain DDP", None, 1.0), *PLANS):
        _empty(device)
        before = allocated(device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        with Training(shape, device, precision, codec, cf) as training:
            for _ in range(steps):
                training.step()
            synchronize(device)
            held = allocated(device) - before
            peak = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else 0
            state = training.agent.state if training.agent is not None else None
        what = f"GPT of {training.parameters / 1e6:.3g} M, {precision}, {name}: memory"
        yield Figure(name=f"{what} at the peak", value=float(peak), unit="B")
        yield Figure(name=f"{what} between steps", value=float(held), unit="B")
        if state is None:
            plain = held
        else:
            copies = (held - plain) / training.gradient_bytes
            yield Figure(name=f"{what} added between steps, copies of the gradient", value=copies)
        del training


def loopback(device: torch.device, shape: str, precision: Precision, steps: int) -> Iterator[Figure]:
    """Measure steps of several ranks on a slow link: dense against compressed. All ranks run it."""
    dense = 0.0
    for name, codec, cf in LOOPBACK_PLANS:
        with Training(shape, device, precision, codec, cf) as training:
            _block(training, LOOPBACK_WARM_UP)
            before, taken = _bytes(training), []
            for _ in range(steps):
                dist.barrier(device_ids=[0] if device.type == "cuda" else None)
                taken.append(_block(training, 1))
            whole, sent = (now - then for now, then in zip(_bytes(training), before, strict=True))
        low, middle, high = quartiles(taken)
        dense = dense or middle
        what = f"GPT of {training.parameters / 1e6:.3g} M, {precision}, {dist.get_world_size()} ranks, {name}"
        yield Figure(name=f"{what}: a step", value=middle, unit="s", low=low, high=high)
        if codec is not None:
            yield Figure(name=f"{what}: plain DDP / this", value=dense / middle, unit="x")
        if sent:
            yield Figure(name=f"{what}: compression", value=whole / sent, unit="x")
        del training
        _empty(device)


def _bytes(training: Training) -> tuple[int, int]:
    """Return the bytes of dense gradients and those handed to collectives, since the start; zeros without an agent."""
    state = training.agent.state if training.agent is not None else None
    return (0, 0) if state is None else (state.dense_bytes, state.payload_bytes)


def _empty(device: torch.device) -> None:
    """Free what a finished training held, so that the next one finds the same memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
