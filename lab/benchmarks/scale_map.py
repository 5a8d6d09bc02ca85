"""Where each plan is best, from 8 to 1,024 ranks on links of 1 to 100 Gbit/s: by the product's formulas, nothing ran.

python -m lab.benchmarks.scale_map [--plot docs/scale.svg]
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from gravac.collectives import AUTO, COLLECTIVES, Network, Owners, keeps_up
from gravac.collectives.choice import HANDICAP
from gravac.collectives.cost import all_reduce
from gravac.policies.base import Plan
from gravac.predict.nominal import PUBLISHED, NominalJob
from gravac.signals import efficiency

ELEMENTS, COMPUTE_SECONDS = 124_000_000, 0.25
"""A GPT-2 of the smallest size, and a step of it without any exchange."""
OPTIMIZERS = {"adam-aged": "gravac.optim.AdamW", "adam": "torch.optim.AdamW"}
"""By kind."""
DEVICE = "h100"
"""The GPU that encodes and decodes."""
RANKS_PER_HOST = 8
INSIDE = Network(latency_seconds=1e-5, bytes_per_second=50e9)
"""Of a rank among those of its host."""
LATENCY_SECONDS = 5e-5
"""Of a message between hosts."""
RANKS, CARDS = (8, 16, 32, 64, 128, 256, 512, 1024), (1, 2, 4, 8)
GBITS = (100, 50, 25, 10, 5, 2.5, 1)
VALUE_BYTES = 4
Cell = tuple[str, int, int, float]
"""Kind of the optimizer, ranks, cards and Gbit/s."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of plan: one cell of the legend."""

    name: str
    letter: str
    color: str
    plans: tuple[tuple[str, float, str], ...]
    """Codec, CF and collective of each."""


KINDS = (
    Kind("dense", "D", "#b8b8b8", (("dense", 1.0, AUTO),)),
    Kind("bf16", "B", "#dce8f6", (("bf16", 2.0, AUTO),)),
    Kind("int8", "I", "#b4cfee", (("int8", 4.0, AUTO),)),
    Kind(
        "int4, compressed all-reduce", "C", "#7fadde", (("nearest:levels=15", 7.5, "compressed-all-reduce"),)
    ),
    Kind(
        "topk+twobit, gathered",
        "G",
        "#f2b35e",
        (("topk+twobit", 5.1, "gather"), ("topk+twobit", 16.6, "gather"), ("topk+twobit", 32.0, "gather")),
    ),
    Kind(
        "topk+twobit, owners",
        "O",
        "#d9772b",
        (("topk+twobit", 5.1, "owners"), ("topk+twobit", 16.6, "owners"), ("topk+twobit", 32.0, "owners")),
    ),
    Kind("PowerSGD", "P", "#7aa874", (("powersgd", 10.0, AUTO), ("powersgd", 30.0, AUTO))),
)


@dataclass(frozen=True, slots=True)
class Best:
    """The best plan of a cell.

    Attributes:
        kind: Of the plan.
        two_levels: Whether the ranks of a host divide gradients.
        times: How many times as much it advances training in a second as dense does, both by their better level.
    """

    kind: Kind
    two_levels: bool
    times: float


def progress(plan: tuple[str, float, str], cell: Cell, two_levels: bool) -> float:
    """Return the steps of dense training that a second is worth.

    Args:
        plan: Codec, CF and collective.
        cell: Where.
        two_levels: Whether the ranks of a host divide gradients.
    """
    (codec, cf, collective), (kind, ranks, cards, gbits) = plan, cell
    hosts, card = ranks // RANKS_PER_HOST, gbits * 1e9 / 8
    inside_seconds, elements, members = 0.0, ELEMENTS, ranks
    if two_levels or hosts == 1:  # inside one host, gradients stay dense
        # A rank has its share of the cards, as the agent measures it: while all of a host send.
        network = Network(latency_seconds=LATENCY_SECONDS, bytes_per_second=card * cards / RANKS_PER_HOST)
        elements, members = ELEMENTS // RANKS_PER_HOST, hosts
        inside_seconds = all_reduce(INSIDE, RANKS_PER_HOST, VALUE_BYTES * ELEMENTS)
    else:
        network = Network(
            latency_seconds=LATENCY_SECONDS, bytes_per_second=card, ranks_per_link=RANKS_PER_HOST // cards
        )
    coding = {Plan(codec, cf): PUBLISHED[DEVICE].seconds(elements)} if cf > 1.0 else {}
    job = NominalJob(elements, members, COMPUTE_SECONDS, collective, coding)
    exchange = job.volume(codec, cf, network)
    way = COLLECTIVES.get(exchange.collective)
    if way is not None and not keeps_up(way, cf, kind == "adam-aged"):
        if way is Owners:
            return 0.0  # no agent chooses it for coarse values
        exchange = replace(
            exchange, messages=HANDICAP * exchange.messages, link_bytes=HANDICAP * exchange.link_bytes
        )
    kept = efficiency.of_job(codec, cf, kind, members, None)
    assert kept is not None
    return kept.likely / (job.step(codec, cf, network, exchange=exchange).seconds + inside_seconds)


def best(cell: Cell) -> Best:
    """Return the best plan of a cell; the first of equals."""
    found = [
        (progress(plan, cell, two), kind, two)
        for kind, two in product(KINDS, (False, True))
        for plan in kind.plans
    ]
    dense = max(value for value, kind, _ in found if kind is KINDS[0])
    value, kind, two = max(found, key=lambda each: each[0])
    return Best(kind, two, value / dense)


def cells() -> dict[Cell, Best]:
    """Return the best plan of each cell."""
    return {cell: best(cell) for cell in product(OPTIMIZERS, RANKS, CARDS, GBITS)}


def table(found: Mapping[Cell, Best]) -> Iterator[str]:
    """Yield the lines of the picture as text: a letter, ``2`` after it for two levels, and times dense."""
    for kind, cards in product(OPTIMIZERS, CARDS):
        yield f"{OPTIMIZERS[kind]}, {cards} {'card' if cards == 1 else 'cards'} a host"
        yield "Gbit/s " + "".join(f"{ranks:>9}" for ranks in RANKS)
        for gbits in GBITS:
            row = (found[kind, ranks, cards, gbits] for ranks in RANKS)
            yield f"{gbits:>6g} " + "".join(
                f"{each.kind.letter}{2 if each.two_levels else ' '}{each.times:6.2f}".rjust(9) for each in row
            )
    counted = Counter(each.kind.name for each in found.values())
    yield ", ".join(f"{each.letter}: {each.name} ({counted[each.name]} cells)" for each in KINDS)


WIDTH, HEIGHT, LEFT, TOP = 40, 17, 34, 58
GAP_X, GAP_Y = 40, 48


def svg(found: Mapping[Cell, Best]) -> str:
    """Return the picture: a panel for each optimizer and number of cards."""
    panel_width, panel_height = len(RANKS) * WIDTH, len(GBITS) * HEIGHT
    width = LEFT + len(OPTIMIZERS) * (panel_width + GAP_X)
    height = TOP + len(CARDS) * (panel_height + GAP_Y)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="10" text-anchor="middle">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *_legend(),
    ]
    for (column, kind), (row, cards) in product(enumerate(OPTIMIZERS), enumerate(CARDS)):
        left, top = LEFT + column * (panel_width + GAP_X), TOP + row * (panel_height + GAP_Y)
        lines += _panel(found, kind, cards, left, top)
    return "\n".join([*lines, "</svg>\n"])


def _legend() -> Iterator[str]:
    at = 8
    for kind in KINDS:
        yield f'<rect x="{at}" y="6" width="12" height="12" fill="{kind.color}"/>'
        yield f'<text x="{at + 16}" y="16" text-anchor="start">{kind.letter}: {kind.name}</text>'
        at += 40 + round(5.2 * len(kind.name))
    yield (
        '<text x="8" y="33" text-anchor="start" fill="#555">Dot: two levels of links. Number: how many times as far '
        "the training gets in a second as with dense gradients.</text>"
    )


def _panel(found: Mapping[Cell, Best], kind: str, cards: int, left: int, top: int) -> Iterator[str]:
    in_words = "1 network card a host" if cards == 1 else f"{cards} network cards a host"
    middle, bottom = left + len(RANKS) * WIDTH // 2, top + len(GBITS) * HEIGHT
    yield f'<text x="{middle}" y="{top - 6}" font-weight="bold">{OPTIMIZERS[kind]}, {in_words}</text>'
    shapes: dict[str, list[str]] = {}
    texts = []
    for (row, gbits), (column, ranks) in product(enumerate(GBITS), enumerate(RANKS)):
        x, y, cell = left + column * WIDTH, top + row * HEIGHT, found[kind, ranks, cards, gbits]
        shapes.setdefault(cell.kind.color, []).append(f"M{x} {y}h{WIDTH - 1}v{HEIGHT - 1}h{1 - WIDTH}z")
        times = f"{cell.times:.{2 if cell.times < 10 else 1}f}"
        texts.append(
            f'<text x="{x + WIDTH // 2}" y="{y + 12}">{cell.kind.letter}{"•" * cell.two_levels} {times}</text>'
        )
    for color, paths in shapes.items():
        yield f'<path fill="{color}" d="{"".join(paths)}"/>'
    yield f'<g font-size="8">{"".join(texts)}</g>'
    for row, gbits in enumerate(GBITS):
        yield f'<text x="{left - 4}" y="{top + row * HEIGHT + 12}" text-anchor="end">{gbits:g}</text>'
    for column, ranks in enumerate(RANKS):
        yield f'<text x="{left + column * WIDTH + WIDTH // 2}" y="{bottom + 12}">{ranks}</text>'
    yield f'<text x="{middle}" y="{bottom + 24}" fill="#555">ranks; up: Gbit/s of a card</text>'


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", type=Path, help="also draw them, as SVG")
    given = parser.parse_args(arguments)
    found = cells()
    if given.plot is not None:
        given.plot.write_text(svg(found))
    for line in table(found):
        print(line)


if __name__ == "__main__":
    main()
