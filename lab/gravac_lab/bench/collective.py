"""Collectives for compressed payloads against the dense all-reduce, measured and predicted by the cost model."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gravac_lab.bench.namespaces import NetworkUnavailable
from gravac_lab.bench.network import parse_rate
from gravac_lab.bench.ranks import Places, Progress, Ranks, on_hosts, side_by_side
from gravac_lab.bench.results import describe_machine, quartiles
from gravac_lab.bench.train import START_SECONDS

DENSE = "dense all-reduce"
WARM_UP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """What to measure. ``link``: a rate, with each rank on a separate host; none: side by side on this machine."""

    codec: str
    ranks: int
    n: int
    cf: Sequence[float]
    link: str
    pairs: int


def measure_collectives(chosen: Collectives, scratch: Path, progress: Progress) -> dict[str, Any]:
    """Measure, and return a row for each CF and collective.

    ``seconds``: from the payload to the mean, of the slowest rank. ``baseline``: the dense all-reduce in the same
    round. ``predicted_seconds`` and ``predicted_baseline``: from the cost model, with the ``network`` measured before.
    ``chosen``: whether the cost model chooses it. Raises RanksFailed, and NetworkUnavailable where links cannot be
    shaped.
    """
    described = describe_machine()
    with ExitStack() as stack:
        places = _places(chosen, stack, progress)
        words = [sys.executable, "-m", "gravac_lab.programs.collective", "--codec", chosen.codec]
        ranks = Ranks(words, places.ranks, places.port(0), scratch / "collective")
        stack.callback(ranks.close)
        network = ranks.ready(START_SECONDS)[0]
        rows = []
        for cf in chosen.cf:
            progress(f"CF {cf:g}: {WARM_UP} + {chosen.pairs} rounds")
            rows += _rows(chosen, ranks, chosen.n, cf)
    return {
        "benchmark": "collective",
        "machine": described,
        "ranks": chosen.ranks,
        "codec": chosen.codec,
        "link": chosen.link,
        "network": network,
        "rows": rows,
    }


def _places(chosen: Collectives, stack: ExitStack, progress: Progress) -> Places:
    bits = parse_rate(chosen.link)
    if bits is None:
        return side_by_side(chosen.ranks, "no link was asked for", progress)
    places = stack.enter_context(on_hosts(chosen.ranks, bits, progress))
    if places.no_network is not None:
        raise NetworkUnavailable(places.no_network)
    return places


def _rows(chosen: Collectives, ranks: Ranks, n: int, cf: float) -> list[dict[str, Any]]:
    ways = ranks.ask(START_SECONDS, do="load", n=n, cf=cf)[0]["ways"]
    bits = parse_rate(chosen.link)
    wire = 0.0 if bits is None else 2 * 8 * sum(way["link_bytes"] for way in ways.values()) / bits
    rounds: list[dict[str, float]] = []
    for number in range(WARM_UP + chosen.pairs):
        order = sorted(ways) if number % 2 else sorted(ways, reverse=True)
        answers = ranks.ask(START_SECONDS + wire, do="exchange", ways=order)
        slowest = [max(each) for each in zip(*(answer["seconds"] for answer in answers), strict=True)]
        rounds.append(dict(zip(order, slowest, strict=True)))
    return [
        _row(name, n, cf, rounds[WARM_UP:], ways[DENSE], way) for name, way in ways.items() if name != DENSE
    ]


def _row(
    name: str,
    n: int,
    cf: float,
    rounds: Sequence[dict[str, float]],
    dense: dict[str, Any],
    way: dict[str, Any],
) -> dict[str, Any]:
    ratios = [each[DENSE] / each[name] for each in rounds]
    return {
        "name": name,
        "against": DENSE,
        "n": n,
        "cf": cf,
        "seconds": median(each[name] for each in rounds),
        "baseline": median(each[DENSE] for each in rounds),
        "ratio": median(ratios),
        "quartiles": quartiles(ratios),
        "pairs": len(rounds),
        "predicted_baseline": dense["predicted_seconds"],
        **way,
    }
