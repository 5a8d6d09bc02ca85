"""The overhead of the agent: plain DDP against other methods, on ranks side by side.

Each method has separate processes with the same weights and data. A block of plain DDP and a block of another method
are a pair; the order alternates, so that other load on the machine affects both. One of the methods is plain DDP again,
in a second set of processes: the difference of its ratio from 1 is the noise.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gravac_lab.bench.ranks import Progress, Ranks, side_by_side
from gravac_lab.bench.results import describe_machine, quartiles, steps_of
from gravac_lab.bench.train import START_SECONDS, STEP_SECONDS

BASELINE = "dense"
OTHERS = {
    "again": ("plain DDP again", "dense", 1.0),
    "observing": ("agent, observing", "agent///dense", 1.0),
    "topk": ("agent, Top-k 1 %", "agent/topk//static:cf=100", 100.0),
    "fp16": ("fp16 hook of PyTorch", "fp16", 2.0),
}
"""The name of each method, its form for ``gravac_lab.programs.methods``, and its CF."""
WARM_UP, STEPS = 3, 8
"""Steps of a block: not timed, then timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """What to run: ``pairs`` of blocks for each method, and the width of the LSTM."""

    ranks: int
    pairs: int
    width: int


def measure_hook(chosen: Pairs, scratch: Path, progress: Progress) -> dict[str, Any]:
    """Measure, and return a row for each method.

    ``seconds`` and ``baseline``: medians over blocks of the median step. ``ratio``: median over pairs of baseline /
    seconds. ``cpu_ratio``: the same for CPU seconds, which other load disturbs less. Raises RanksFailed.
    """
    described = describe_machine()
    places = side_by_side(chosen.ranks, "side by side on purpose", progress)
    taken: dict[str, list[tuple[Block, Block]]] = {way: [] for way in OTHERS}
    with ExitStack() as stack:
        running: dict[str, Ranks] = {}
        methods = {BASELINE: BASELINE, **{way: method for way, (_, method, _) in OTHERS.items()}}
        for number, (name, method) in enumerate(methods.items()):
            words = [sys.executable, "-m", "gravac_lab.programs.train", "--method", method]
            words += ["--width", str(chosen.width), "--scratch", str(scratch / str(number))]
            ranks = Ranks(words, places.ranks, places.port(number), scratch / str(number))
            stack.callback(ranks.close)
            elements = ranks.ready(START_SECONDS)[0]["elements"]
            running[name] = ranks
        for number in range(chosen.pairs):
            progress(
                f"Pair {number + 1} of {chosen.pairs} of each method, {WARM_UP} + {STEPS} steps a block."
            )
            for name in OTHERS:
                order = (BASELINE, name) if number % 2 == 0 else (name, BASELINE)
                blocks = {each: _block(running[each]) for each in order}
                taken[name].append((blocks[BASELINE], blocks[name]))
    return {
        "benchmark": "hook",
        "machine": described,
        "ranks": chosen.ranks,
        "elements": elements,
        "rows": [_row(way, elements, pairs) for way, pairs in taken.items()],
    }


@dataclass(frozen=True, slots=True)
class Block:
    """Seconds per step: the median wall time of the job, and the CPU time of a rank."""

    wall: float
    cpu: float
    payload_bytes: float


def _block(ranks: Ranks) -> Block:
    for steps in (WARM_UP, STEPS):
        answers = ranks.ask(START_SECONDS + steps * STEP_SECONDS, do="train", steps=steps)
    shares = len(answers) * STEPS
    return Block(
        median(steps_of(answers)),
        sum(answer["cpu_seconds"] for answer in answers) / shares,
        sum(answer["payload_bytes"] for answer in answers) / shares,
    )


def _row(way: str, elements: int, pairs: Sequence[tuple[Block, Block]]) -> dict[str, Any]:
    ratios = [plain.wall / other.wall for plain, other in pairs]
    cpu_ratios = [plain.cpu / other.cpu for plain, other in pairs]
    name, _, cf = OTHERS[way]
    return {
        "name": name,
        "against": "plain DDP",
        "n": elements,
        "cf": cf,
        "seconds": median(other.wall for _, other in pairs),
        "baseline": median(plain.wall for plain, _ in pairs),
        "ratio": median(ratios),
        "quartiles": quartiles(ratios),
        "cpu_seconds": median(other.cpu for _, other in pairs),
        "cpu_baseline": median(plain.cpu for plain, _ in pairs),
        "cpu_ratio": median(cpu_ratios),
        "cpu_quartiles": quartiles(cpu_ratios),
        "payload_bytes": pairs[-1][1].payload_bytes,
        "pairs": len(pairs),
    }
