"""How fast a GPT learns on two ranks of a slow link: dense, with torch's bf16 hook, and with the agent.

Each side trains for the same time, from the same weights, on the same batches. Seconds do not count the held-out loss.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook

from tools.gpu.figures import Figure
from tools.gpu.measure.cost import empty
from tools.gpu.measure.gpt import RATE, SHAPES, Training, loss_of
from tools.gpu.measure.text import MOST_BYTES, words
from tools.gpu.measure.timing import synchronize

EVERY = 10
"""Steps between two held-out losses."""
WARM_UP = 30
"""Steps in which the learning rate rises."""
STEPS = (10, 20, 50, 100, 200, 300, 500, 1000)
SECONDS = (5, 10, 20, 30, 40, 50)
"""After which a held-out loss is a figure."""


@dataclass(frozen=True, slots=True)
class Side:
    """What is compared: the agent's codec and CF, or torch's hook, or neither."""

    name: str
    compressor: str | None = None
    cf: float = 1.0
    half: bool = False


OURS = Side("topk+twobit, 64x, gravac.optim.AdamW", "topk+twobit", 16.6)
SIDES = (OURS, Side("torch's bf16 hook", half=True), Side("dense"))


@dataclass(frozen=True, slots=True)
class Point:
    """The held-out loss at a moment."""

    steps: int
    seconds: float
    loss: float


def learning(device: torch.device, shape: str, until: float) -> Iterator[Figure]:
    """Train each side for its share of the time, with all that belongs to it. All ranks run it.

    Args:
        device: Where they train.
        shape: Sizes, a key of ``SHAPES``.
        until: When it should end, by the clock.
    """
    sizes = SHAPES[shape]
    train, heldout = words(sizes.vocabulary, MOST_BYTES if sizes.vocabulary > 1000 else 300_000)
    yield Figure(name="words to train on", value=float(len(train)))
    found: dict[Side, list[Point]] = {}
    for number, side in enumerate(SIDES):
        share = (until - time.time()) / (len(SIDES) - number)
        points = found[side] = _curve(device, shape, side, train, heldout, share)
        empty(device)
        last = points[-1]
        yield Figure(name=f"{side.name}: a step", value=last.seconds / last.steps, unit="s")
        yield Figure(name=f"{side.name}: steps", value=float(last.steps))
        for name, marks, of in (
            ("steps", STEPS, [point.steps for point in points]),
            ("s", SECONDS, [point.seconds for point in points]),
        ):
            for mark in marks:
                reached = [point.loss for point, at in zip(points, of, strict=True) if at <= mark]
                if of[-1] >= mark:
                    yield Figure(name=f"{side.name}: held-out loss after {mark} {name}", value=reached[-1])
        yield Figure(name=f"{side.name}: held-out loss after {last.seconds:.0f} s, its last", value=last.loss)
    for rival in SIDES[1:]:
        yield from _against(found[OURS], found[rival], rival.name)


def _against(ours: list[Point], theirs: list[Point], name: str) -> Iterator[Figure]:
    goal = max(ours[-1].loss, theirs[-1].loss)
    mine, rival = (next(point for point in points if point.loss <= goal) for points in (ours, theirs))
    yield Figure(
        name=f"time to a loss of {goal:.2f}: {name} / ours", value=rival.seconds / mine.seconds, unit="x"
    )
    steps = min(ours[-1].steps, theirs[-1].steps)
    mine, rival = (next(point for point in points if point.steps == steps) for points in (ours, theirs))
    yield Figure(
        name=f"loss after {steps} steps, ours above {name}",
        value=100 * (mine.loss / rival.loss - 1),
        unit="%",
    )


def _curve(
    device: torch.device, shape: str, side: Side, train: Tensor, heldout: Tensor, seconds: float
) -> list[Point]:
    """Train one side for so many seconds. Returns its held-out losses; the same on all ranks."""
    until, rank = time.monotonic() + seconds, dist.get_rank()
    sizes, trained = SHAPES[shape], 0.0
    draw = torch.Generator().manual_seed(rank)
    unseen = _batch(heldout, sizes.batch, sizes.length, torch.Generator().manual_seed(1000 + rank)).to(device)
    points: list[Point] = []
    training = Training(shape, device, side.compressor, side.cf, aged=side.compressor is not None)
    if side.half:
        # torch refuses the one for bfloat16 on a CPU.
        hook = bf16_compress_hook if device.type == "cuda" else fp16_compress_hook
        training.module.register_comm_hook(None, hook)
    with training:
        while True:
            synchronize(device)
            begun = time.perf_counter()
            for step in range(len(points) * EVERY, (len(points) + 1) * EVERY):
                for group in training.optimizer.param_groups:
                    group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP)
                training.step(_batch(train, sizes.batch, sizes.length, draw).to(device))
            synchronize(device)
            trained += time.perf_counter() - begun
            with torch.no_grad():
                loss = loss_of(training.module.module, unseen)
            ended = float(time.monotonic() > until)
            sums = torch.stack([loss.double(), loss.new_full((), ended if rank == 0 else 0.0).double()])
            dist.all_reduce(sums)
            points.append(Point((len(points) + 1) * EVERY, trained, float(sums[0]) / dist.get_world_size()))
            if sums[1] > 0:
                return points


def _batch(text: Tensor, count: int, length: int, draw: torch.Generator) -> Tensor:
    """Return sequences from random places, shape ``(count, length + 1)``."""
    starts = torch.randint(len(text) - length - 1, (count, 1), generator=draw)
    return text[starts + torch.arange(length + 1, dtype=torch.int64, device="cpu")]
