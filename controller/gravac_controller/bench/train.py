"""The training benchmark: methods take turns on one network, a block of steps each."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gravac_controller.bench.network import parse_rate
from gravac_controller.bench.ranks import Places, Progress, Ranks, RanksFailed, on_hosts
from gravac_controller.bench.results import Tally, describe_machine, heldout_loss, rows

START_SECONDS = 180.0
STEP_SECONDS = 30.0
"""What a step may compute for at most, on however busy a machine."""


class ChangeImpossible(RuntimeError):
    """Links were to change in mid-run, but there are none of our own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """What to run. Every method trains ``rounds`` blocks; a block is ``warmup`` steps that are not timed and then
    ``block`` - ``warmup`` that are. ``link``: a rate, or none; ``then``: what it is from the middle on, None: the same.
    ``decay``: over the last such share of the steps the learning rate falls to 0.
    """

    methods: Sequence[str]
    hosts: int
    link: str
    then: str | None = None
    rounds: int
    block: int
    warmup: int
    width: int
    heldout: int
    seed: int
    decay: float = 0.0


def run(benchmark: Benchmark, scratch: Path, progress: Progress) -> dict[str, Any]:
    """Run it and return its figures: settings, machine, and ``rows`` as ``results.rows`` describes.

    Where no network can be made, the agent paces itself; PyTorch's own hooks, whose times would be those of loopback,
    are left out. The result then says ``emulated`` and why. A method that fails keeps its row, with ``error``.
    ``progress`` gets a line now and then.
    """
    described = describe_machine()
    with on_hosts(benchmark.hosts, parse_rate(benchmark.link), progress) as places:
        emulated = places.no_network is not None and parse_rate(benchmark.link) is not None
        if benchmark.then is not None and places.shape is None:
            raise ChangeImpossible(
                f"links cannot change to {benchmark.then} in mid-run without a network of our own: {places.no_network}"
            )
        tallies, later = _take_turns(benchmark, places, emulated, scratch, progress)
    return {
        "benchmark": "train",
        "hosts": benchmark.hosts,
        "link": benchmark.link,
        "emulated": emulated,
        "no_network": places.no_network,
        "machine": described,
        "width": benchmark.width,
        "seed": benchmark.seed,
        "decay": benchmark.decay,
        "elements": max(tally.elements for tally in tallies),
        "rows": rows(tallies, emulated),
        "then": None if benchmark.then is None else {"link": benchmark.then, "rows": rows(later, emulated)},
    }


def _take_turns(
    benchmark: Benchmark, places: Places, emulated: bool, scratch: Path, progress: Progress
) -> tuple[list[Tally], list[Tally]]:
    """What every method did, and did after the links had changed."""
    tallies = [Tally(name=method) for method in benchmark.methods]
    later = [Tally(name=method) for method in benchmark.methods]
    with ExitStack() as stack:
        running: dict[str, Ranks] = {}
        for number, tally in enumerate(tallies):
            if (
                emulated
                and tally.name not in ("none", "alone", "dense")
                and not tally.name.startswith("agent")
            ):
                tally.error = "an emulated link slows only the agent; a shaped one needs root, ip and tc"
                continue
            words = _words(benchmark, tally.name, emulated, places.interface, scratch / f"method{number}")
            ranks = Ranks(words, places.ranks, places.port(number), scratch / f"method{number}")
            stack.callback(ranks.close)
            with _failing(tally, progress):
                # One after the other: started together they would only fight for the cores.
                tally.elements = ranks.ready(START_SECONDS)[0]["elements"]
                running[tally.name] = ranks
        now = tallies
        for turn in range(benchmark.rounds):
            if benchmark.then is not None and turn == benchmark.rounds // 2:
                assert places.shape is not None
                places.shape(parse_rate(benchmark.then))
                progress(f"Links of {benchmark.then} from here on.")
                for before, after in zip(tallies, later, strict=True):
                    after.elements, after.steps, after.error = before.elements, before.steps, before.error
                now = later
            progress(f"Round {turn + 1} of {benchmark.rounds}, {benchmark.block} steps each.")
            # There and back, so that none always runs first.
            for tally in now if turn % 2 == 0 else now[::-1]:
                if tally.error is None:
                    with _failing(tally, progress):
                        _block(benchmark, running[tally.name], tally)
        for tally in now:
            if tally.error is None:
                with _failing(tally, progress):
                    answers = running[tally.name].ask(START_SECONDS, do="evaluate")
                    tally.heldout_loss = heldout_loss(answers)
    return tallies, later


def _block(benchmark: Benchmark, ranks: Ranks, tally: Tally) -> None:
    rates = (parse_rate(link) for link in (benchmark.link, benchmark.then or "none"))
    bits = min((bits for bits in rates if bits is not None), default=None)
    # Twice a ring all-reduce of the dense gradient, whatever the method.
    wire = 0.0 if bits is None else 2 * 2 * 32 * tally.elements / bits
    for steps in (benchmark.warmup, benchmark.block - benchmark.warmup):
        if steps:
            answers = ranks.ask(START_SECONDS + steps * (STEP_SECONDS + wire), do="train", steps=steps)
            tally.steps += steps
    tally.blocks.append(answers)


@contextmanager
def _failing(tally: Tally, progress: Progress) -> Iterator[None]:
    """A method that fails is left out from there on; the others go on."""
    try:
        yield
    except RanksFailed as error:
        tally.error = str(error)
        progress(f"{tally.name}: {error}")


def _words(
    benchmark: Benchmark, method: str, emulated: bool, interface: str | None, scratch: Path
) -> list[str]:
    # A dense agent sends what plain DDP does, bit for bit, and can be paced.
    method = "agent///dense" if emulated and method == "dense" else method
    words = [sys.executable, "-m", "gravac_agent.bench.train", "--method", method, "--scratch", str(scratch)]
    words += ["--width", str(benchmark.width), "--heldout", str(benchmark.heldout)]
    words += ["--seed", str(benchmark.seed), "--link", benchmark.link if emulated else "none"]
    if benchmark.decay:
        steps = benchmark.rounds * benchmark.block
        first = min(steps - 1, round(steps * (1 - benchmark.decay)))
        words += ["--decay", str(first), str(steps)]
    return words if interface is None else [*words, "--interface", interface]
