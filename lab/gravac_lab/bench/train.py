"""The training benchmark: methods take turns on one network, with a block of steps each."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gravac_lab.bench.network import parse_rate
from gravac_lab.bench.ranks import Places, Progress, Ranks, RanksFailed, on_hosts
from gravac_lab.bench.results import MethodAnswers, describe_machine, heldout_loss, rows

START_SECONDS = 180.0
STEP_SECONDS = 30.0
"""Maximum time of the computation of a step, also on a busy machine."""
WIDTH = 872
"""Width of the LSTM: 3.5 million parameters."""


class ChangeImpossible(RuntimeError):
    """The links cannot change during the run, because there is no emulated network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """What to run. Every method trains ``rounds`` blocks of ``block`` steps; the first ``warmup`` steps are not timed.

    ``each``: ranks of a host, which share its link. ``task``: see ``gravac_lab.tasks.make``, trained by its recipe (the
    batch is shared among the ranks, DDP has the buckets of simulated ranks); None: the LSTM of ``width``. ``link``: a
    rate, or none. ``then``: the rate in the second half; None: the same. ``curve``: measure the held-out loss after
    every round.
    """

    methods: Sequence[str]
    hosts: int
    each: int = 1
    link: str
    then: str | None = None
    rounds: int
    block: int
    warmup: int
    width: int
    task: str | None = None
    heldout: int
    seed: int = 0
    curve: bool = False


def run(benchmark: Benchmark, scratch: Path, progress: Progress) -> dict[str, Any]:
    """Run the benchmark and return its settings, the machine, and ``rows`` (see ``results.rows``).

    Where no network can be created, the agent emulates the link, and PyTorch's hooks are skipped because they would run
    at the speed of loopback; the result has ``emulated`` and the reason. A failed method has a row with ``error``.
    ``progress`` receives lines about the progress.
    """
    described = describe_machine()
    with on_hosts(benchmark.hosts, parse_rate(benchmark.link), progress, benchmark.each) as places:
        emulated = places.no_network is not None and parse_rate(benchmark.link) is not None
        if benchmark.then is not None and places.shape is None:
            raise ChangeImpossible(
                f"links cannot change to {benchmark.then} during the run: no emulated network ({places.no_network})"
            )
        tallies, later = _take_turns(benchmark, places, emulated, scratch, progress)
    return {
        "benchmark": "train",
        "hosts": benchmark.hosts,
        "ranks_per_host": benchmark.each,
        "link": benchmark.link,
        "emulated": emulated,
        "no_network": places.no_network,
        "machine": described,
        "task": benchmark.task,
        "width": benchmark.width if benchmark.task is None else None,
        "seed": benchmark.seed,
        "elements": max(tally.elements for tally in tallies),
        "rows": rows(tallies, emulated),
        "then": None if benchmark.then is None else {"link": benchmark.then, "rows": rows(later, emulated)},
    }


def _take_turns(
    benchmark: Benchmark, places: Places, emulated: bool, scratch: Path, progress: Progress
) -> tuple[list[MethodAnswers], list[MethodAnswers]]:
    """The results of every method, before and after the links changed."""
    tallies = [MethodAnswers(name=method) for method in benchmark.methods]
    later = [MethodAnswers(name=method) for method in benchmark.methods]
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
            words = rank_command(
                benchmark, tally.name, emulated, places.interface, scratch / f"method{number}"
            )
            ranks = Ranks(words, places.ranks, places.port(number), scratch / f"method{number}")
            stack.callback(ranks.close)
            with _failing(tally, progress):
                # One after the other: together they would compete for the cores.
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
            # In alternating order, so that no method always runs first.
            for tally in now if turn % 2 == 0 else now[::-1]:
                if tally.error is None:
                    with _failing(tally, progress):
                        train_block(benchmark, running[tally.name], tally)
                        if benchmark.curve:
                            tally.add_point(running[tally.name].ask(START_SECONDS, do="evaluate"))
        for tally in now:
            if tally.error is None:
                with _failing(tally, progress):
                    answers = running[tally.name].ask(START_SECONDS, do="evaluate")
                    tally.heldout_loss = heldout_loss(answers)
    return tallies, later


def train_block(benchmark: Benchmark, ranks: Ranks, tally: MethodAnswers) -> None:
    """Have ranks train a block, and keep what they answer."""
    rates = (parse_rate(link) for link in (benchmark.link, benchmark.then or "none"))
    bits = min((bits for bits in rates if bits is not None), default=None)
    # Twice a ring all-reduce of the dense gradient, for every method.
    wire = 0.0 if bits is None else 2 * 2 * 32 * tally.elements / bits
    for steps in (benchmark.warmup, benchmark.block - benchmark.warmup):
        if steps:
            answers = ranks.ask(START_SECONDS + steps * (STEP_SECONDS + wire), do="train", steps=steps)
            tally.steps += steps
    tally.blocks.append(answers)


@contextmanager
def _failing(tally: MethodAnswers, progress: Progress) -> Iterator[None]:
    """Record the error of a method, which then takes no more turns; the others continue."""
    try:
        yield
    except RanksFailed as error:
        tally.error = str(error)
        progress(f"{tally.name}: {error}")


def rank_command(
    benchmark: Benchmark, method: str, emulated: bool, interface: str | None, scratch: Path
) -> list[str]:
    """Return the command of a rank."""
    # A dense agent sends the same bytes as plain DDP and can emulate the link.
    method = "agent///dense" if emulated and method == "dense" else method
    words = [sys.executable, "-m", "gravac_lab.programs.train", "--method", method, "--scratch", str(scratch)]
    words += ["--width", str(benchmark.width), "--heldout", str(benchmark.heldout)]
    if benchmark.task is not None:
        words += ["--task", benchmark.task, "--length", str(benchmark.rounds * benchmark.block)]
    words += ["--seed", str(benchmark.seed), "--link", benchmark.link if emulated else "none"]
    return words if interface is None else [*words, "--interface", interface]
