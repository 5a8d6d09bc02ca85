"""The training benchmark: methods take turns on one network, a block of steps each."""

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gravac_controller.bench import rate
from gravac_controller.bench.namespaces import NetworkUnavailable
from gravac_controller.bench.network import INTERFACE, Network
from gravac_controller.bench.ranks import Place, Ranks, RanksFailed
from gravac_controller.bench.results import Tally, heldout_loss, rows

START_SECONDS = 180.0
STEP_SECONDS = 30.0
"""What a step may compute for at most, on however busy a machine."""
FIRST_PORT = 29600
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """What to run. Every method trains ``rounds`` blocks; a block is ``warmup`` steps that are not timed and then
    ``block`` - ``warmup`` that are. ``link``: a rate, or none."""

    methods: Sequence[str]
    hosts: int
    link: str
    rounds: int
    block: int
    warmup: int
    width: int
    heldout: int
    seed: int


def run(benchmark: Benchmark, scratch: Path, tell: Tell) -> dict[str, Any]:
    """Run it and return its figures: settings, machine, and ``rows`` as ``results.rows`` describes.

    Where no network can be made, the agent paces itself; PyTorch's own hooks, whose times would be those of loopback,
    are left out. The result then says ``emulated`` and why. A method that fails keeps its row, with ``error``.
    ``tell`` gets a line now and then.
    """
    load = os.getloadavg()[0]
    with _places(benchmark, tell) as (places, obstacle):
        emulated = obstacle is not None and rate.parse(benchmark.link) is not None
        tallies = _take_turns(benchmark, places, emulated, obstacle is not None, scratch, tell)
    return {
        "benchmark": "train",
        "hosts": benchmark.hosts,
        "link": benchmark.link,
        "emulated": emulated,
        "no_network": obstacle,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": load,
        "width": benchmark.width,
        "elements": max(tally.elements for tally in tallies),
        "rows": rows(tallies, emulated),
    }


@contextmanager
def _places(benchmark: Benchmark, tell: Tell) -> Iterator[tuple[list[Place], str | None]]:
    """A place for each rank, and why there is no network, if so."""
    cores = _cores(benchmark.hosts, tell)
    with ExitStack() as stack:
        try:
            network = stack.enter_context(Network(benchmark.hosts, rate.parse(benchmark.link)))
        except NetworkUnavailable as error:
            tell(f"No network of our own: {error}.")
            loopback = Place(address="127.0.0.1", interface="lo", core=None, wrap=list)
            yield [_at(loopback, core) for core in cores], str(error)
            return
        yield (
            [
                Place(address=host.address, interface=INTERFACE, core=core, wrap=host.command)
                for host, core in zip(network.hosts, cores, strict=True)
            ],
            None,
        )


def _at(place: Place, core: int | None) -> Place:
    return Place(address=place.address, interface=place.interface, core=core, wrap=place.wrap)


def _cores(hosts: int, tell: Tell) -> list[int | None]:
    """A core a rank, so that ranks do not take turns on one while another idles."""
    if shutil.which("taskset") is None:
        tell("Ranks are not pinned to cores: the command taskset is missing (Debian: util-linux).")
        return [None] * hosts
    usable = sorted(os.sched_getaffinity(0))
    if hosts > len(usable):
        tell(f"{hosts} ranks share {len(usable)} cores: step times are those of an overloaded machine.")
    return [usable[rank % len(usable)] for rank in range(hosts)]


def _take_turns(
    benchmark: Benchmark, places: list[Place], emulated: bool, loopback: bool, scratch: Path, tell: Tell
) -> list[Tally]:
    tallies = [Tally(name=method) for method in benchmark.methods]
    with ExitStack() as stack:
        running: dict[str, Ranks] = {}
        for number, tally in enumerate(tallies):
            if emulated and tally.name not in ("none", "dense") and not tally.name.startswith("agent"):
                tally.error = "an emulated link slows only the agent; a shaped one needs root, ip and tc"
                continue
            words = _words(benchmark, tally.name, emulated, loopback, scratch / f"method{number}")
            port = _free_port() if loopback else FIRST_PORT + number
            ranks = Ranks(words, places, port, scratch / f"method{number}")
            stack.callback(ranks.close)
            with _failing(tally, tell):
                # One after the other: started together they would only fight for the cores.
                tally.elements = ranks.ready(START_SECONDS)[0]["elements"]
                running[tally.name] = ranks
        for turn in range(benchmark.rounds):
            tell(f"Round {turn + 1} of {benchmark.rounds}, {benchmark.block} steps each.")
            # There and back, so that none always runs first.
            for tally in tallies if turn % 2 == 0 else tallies[::-1]:
                if tally.error is None:
                    with _failing(tally, tell):
                        _block(benchmark, running[tally.name], tally)
        for tally in tallies:
            if tally.error is None:
                with _failing(tally, tell):
                    answers = running[tally.name].ask(START_SECONDS, do="evaluate")
                    tally.heldout_loss = heldout_loss(answers)
    return tallies


def _block(benchmark: Benchmark, ranks: Ranks, tally: Tally) -> None:
    bits = rate.parse(benchmark.link)
    # Twice a ring all-reduce of the dense gradient, whatever the method.
    wire = 0.0 if bits is None else 2 * 2 * 32 * tally.elements / bits
    for steps in (benchmark.warmup, benchmark.block - benchmark.warmup):
        if steps:
            answers = ranks.ask(START_SECONDS + steps * (STEP_SECONDS + wire), do="train", steps=steps)
            tally.steps += steps
    tally.blocks.append(answers)


@contextmanager
def _failing(tally: Tally, tell: Tell) -> Iterator[None]:
    """A method that fails is left out from there on; the others go on."""
    try:
        yield
    except RanksFailed as error:
        tally.error = str(error)
        tell(f"{tally.name}: {error}")


def _words(benchmark: Benchmark, method: str, emulated: bool, loopback: bool, scratch: Path) -> list[str]:
    # A dense agent sends what plain DDP does, bit for bit, and can be paced.
    method = "agent///dense" if emulated and method == "dense" else method
    words = [sys.executable, "-m", "gravac_agent.bench.train", "--method", method, "--scratch", str(scratch)]
    words += ["--width", str(benchmark.width), "--heldout", str(benchmark.heldout)]
    words += ["--seed", str(benchmark.seed), "--link", benchmark.link if emulated else "none"]
    return words if loopback else [*words, "--interface", INTERFACE]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
