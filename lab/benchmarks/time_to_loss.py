"""How long real ranks take, on links of some rates, to the loss that dense training has near its end on a fast one.

    python -m lab.benchmarks.time_to_loss --write                                   needs root, ip and tc; half an hour
    python -m lab.benchmarks.time_to_loss --seeds 1 2 --links 100mbit --methods agent///auto@adamw-aged
    python -m lab.benchmarks.time_to_loss --table                                   of what was measured

A method is that of ``gravac bench train``, with ``@`` and the optimizer of the task: ``dense@muon``. Without, it is
AdamW. All of a run take turns, with a block of steps each, on the same cores and the same hosts, whose links are given
the rate of whose turn it is. The held-out loss is measured after each block, and does not count as time. All have the
learning rate of the same step. Those that have not reached the loss in as many steps as dense train half as many more.

What a policy chooses depends on the link, so its ranks train on one link only. Those of DiLoCo do the same on any: they
train once, with blocks on all links in turn, and a block that was not on a link counts with the mean of those on it.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from adam import PAGE, page, spread

from gravac_lab.bench.network import parse_rate
from gravac_lab.bench.ranks import Places, Ranks, RanksFailed, on_hosts
from gravac_lab.bench.results import MethodAnswers, describe_machine, heldout_loss
from gravac_lab.bench.train import START_SECONDS, Benchmark, rank_command, train_block
from gravac_lab.tournament.curves import curve_of

ROWS = Path(__file__).with_suffix(".jsonl")
DENSE, FAST = "dense", "10gbit"
METHODS = (
    "agent///auto@adamw-aged",
    "agent///auto:bound=0.03@adamw-aged",
    "agent///auto",
    "powersgd:1",
    "powersgd:4",
    "diloco:8",
    "diloco:32",
)
SHARES = (0.8, 0.9)
"""Of the steps of dense: its losses after these are the levels."""
COMPUTE_SECONDS, BYTES, CELL_SECONDS = 0.18, 13.2e6, 8.0
"""Of a step, of a dense gradient, and of starting and evaluating: for the estimate only."""


@dataclass(kw_only=True)
class Cell:
    """A method on its links."""

    method: str
    links: Sequence[str]
    benchmark: Benchmark
    ranks: Ranks
    tally: MethodAnswers
    losses: list[float] = field(default_factory=list)

    def link(self, turn: int) -> str:
        """Return the link of a block."""
        return self.links[turn % len(self.links)]

    def train(self, turn: int, places: Places) -> None:
        """Train a block on the link of this turn, and measure the loss."""
        assert places.shape is not None
        places.shape(parse_rate(self.link(turn)))
        try:
            train_block(replace(self.benchmark, link=self.link(turn)), self.ranks, self.tally)
            self.losses.append(heldout_loss(self.ranks.ask(START_SECONDS, do="evaluate")))
        except RanksFailed as error:
            self.tally.error = str(error)
            print(f"{self.method}: {error}", file=sys.stderr, flush=True)

    def curve(self, link: str) -> list[tuple[int, float, float]]:
        """Return steps, seconds and loss after each block."""
        seconds = [max(sum(rank["seconds"]) for rank in block) for block in self.tally.blocks]
        return curve(seconds, self.losses, self.links, link, self.benchmark.block)


def curve(
    seconds: Sequence[float], losses: Sequence[float], links: Sequence[str], link: str, block: int
) -> list[tuple[int, float, float]]:
    """Return steps, seconds and loss after each block of that many steps, where blocks took turns on links."""
    here = [took if links[turn % len(links)] == link else None for turn, took in enumerate(seconds)]
    known = [took for took in here if took is not None]
    if not known:
        return []
    clock = accumulate(fmean(known) if took is None else took for took in here)
    return [(turn * block, at, loss) for turn, (at, loss) in enumerate(zip(clock, losses, strict=False), 1)]


def split(method: str) -> tuple[str, str]:
    """Return a method and its optimizer."""
    name, _, optimizer = method.partition("@")
    return name, optimizer or "adamw"


def planned(given: argparse.Namespace) -> list[tuple[str, tuple[str, ...]]]:
    """Return every cell's method and links; the first is dense on the fast one."""
    found: list[tuple[str, tuple[str, ...]]] = [(f"{DENSE}@{given.baseline}", (FAST,))]
    for method in given.methods:
        if method.startswith("diloco"):
            found.append((method, tuple(given.links)))
        else:
            found += [(method, (link,)) for link in given.links]
    return found


def estimate(given: argparse.Namespace) -> float:
    """Return about how many minutes a seed takes, if half of the cells need no more steps than dense."""
    total = 0.0
    for method, links in planned(given):
        kind, _, setting = split(method)[0].partition(":")
        number = float(setting) if setting.isdecimal() else 1.0
        each = {"dense": 1.0, "diloco": 1 / number, "powersgd": number / 110}
        wire = fmean(8 * BYTES * each.get(kind, 0.06) / (parse_rate(link) or 1e10) for link in links)
        total += 1.25 * given.steps * (COMPUTE_SECONDS + wire) + CELL_SECONDS
    return total / 60


def run(given: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Measure all cells with one seed. Returns a row for each method and link."""
    began, machine = time.monotonic(), describe_machine()
    rounds = given.steps // given.block

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s: {line}", file=sys.stderr, flush=True)

    with (
        tempfile.TemporaryDirectory() as scratch,
        on_hosts(given.hosts, parse_rate(FAST), say) as places,
        ExitStack() as stack,
    ):
        if places.no_network is not None:
            sys.exit(f"no network can be made here: {places.no_network}")
        assert places.shape is not None
        cells = []
        for number, (method, links) in enumerate(planned(given)):
            name, optimizer = split(method)
            benchmark = Benchmark(
                methods=(name,),
                hosts=given.hosts,
                link=links[0],
                rounds=rounds,
                block=given.block,
                warmup=0,
                width=0,
                task=f"{given.task},optimizer={optimizer}",
                heldout=64,
                seed=seed,
            )
            places.shape(parse_rate(links[0]))  # an agent measures its link at the start
            folder = Path(scratch, str(number))
            command = rank_command(benchmark, name, False, places.interface, folder)
            ranks = Ranks(command, places.ranks, places.port(number), folder)
            stack.callback(ranks.close)
            tally = MethodAnswers(name=name)
            cells.append(Cell(method=method, links=links, benchmark=benchmark, ranks=ranks, tally=tally))
            tally.elements = ranks.ready(START_SECONDS)[0]["elements"]
        going = cells
        for turn in range(rounds * 3 // 2):
            if turn >= rounds:
                level = min(levels(cells[0].curve(FAST)))
                going = [cell for cell in going if min(cell.losses, default=0.0) > level]
                if time.monotonic() - began > 60 * given.minutes:
                    say(
                        f"no more steps after {given.minutes:g} minutes: {', '.join(cell.method for cell in going)}"
                    )
                    break
            going = [cell for cell in going if cell.tally.error is None]
            for cell in going[:: 1 if turn % 2 == 0 else -1]:
                cell.train(turn, places)
            if going:
                say(f"{(turn + 1) * given.block} steps of {len(going)} cells")
    dense = cells[0].curve(FAST)
    return [
        {
            "task": given.task,
            "seed": seed,
            "steps": given.steps,
            "method": cell.method,
            "link": link,
            "sent_bytes": cell.tally.per_step("sent_bytes"),
            "curve": cell.curve(link),
            "baseline": given.baseline,
            "dense": dense,
            "error": cell.tally.error,
            "machine": machine,
        }
        for cell in cells
        for link in cell.links
    ]


def levels(dense: Sequence[Sequence[float]]) -> list[float]:
    """Return the losses whose times are compared."""
    curve = curve_of(dense, 0, 2)
    return [curve.lowest(share * curve.at[-1]) for share in SHARES]


def figures(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[float | None]]:
    """Return what the table says of the seeds of a cell, and the median time to each level; None where one had none."""
    if errors := [row["error"] for row in rows if row["error"] or len(row["curve"]) < len(row["dense"])]:
        return [f"failed: {str(errors[0]).partition(chr(10))[0]}"], []
    ends = [row["curve"][len(row["dense"]) - 1] for row in rows]
    dense = [row["dense"][-1] for row in rows]
    cells = [
        f"{spread([1e3 * end[1] / end[0] for end in ends], '.0f')} ms",
        f"{median(row['sent_bytes'] for row in rows) / 1e3:,.0f} kB",
        spread([end[1] / base[1] for end, base in zip(ends, dense, strict=True)], ".2f"),
        spread([end[2] for end in ends], ".4f"),
        spread([end[2] / base[2] - 1 for end, base in zip(ends, dense, strict=True)], "+.1%"),
    ]
    times: list[float | None] = []
    for place in range(len(SHARES)):
        found = [curve_of(row["curve"], 1, 2).reaches(levels(row["dense"])[place]) for row in rows]
        known = [each for each in found if each is not None]
        times.append(median(known) if len(known) == len(found) else None)
        missed = [row["curve"][-1] for row, each in zip(rows, found, strict=True) if each is None]
        words = [f"{spread(known, '.1f')} s"] if known else []
        words += [f"not within {end[0]} steps, ended at {end[2]:.4f}" for end in missed]
        cells.append("; ".join(words))
    return cells, times


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a Markdown table for each task, number of steps and optimizer of dense."""
    groups: dict[tuple[Any, ...], dict[tuple[str, str], dict[int, dict[str, Any]]]] = {}
    for row in rows:  # a later one of the same cell and seed takes the place of an earlier one
        cells = groups.setdefault((row["task"], row["steps"], row["baseline"]), {})
        cells.setdefault((row["link"], row["method"]), {})[row["seed"]] = row
    lines = []
    for (task, steps, baseline), cells in groups.items():
        found = {cell: figures(list(seeds.values())) for cell, seeds in cells.items()}
        machine = [row["machine"] for seeds in cells.values() for row in seeds.values()][-1]
        lines += [
            "",
            f"`{task}`, {steps} steps, next to `{DENSE}@{baseline}` on {FAST}. {machine['processor']}, "
            f"{machine['cores']} cores, {machine['date'][:10]}, load {machine['load_before']:.1f} when it began:",
            "",
            "| link | method | seeds | step | sent | time | held-out loss | next to dense | "
            + " | ".join(f"to dense's loss after {share:.0%} of its steps" for share in SHARES)
            + " |",
            "|---|---|---|---:|---:|---:|---:|---:|" + "---:|" * len(SHARES),
        ]
        for (link, method), (shown, times) in sorted(
            found.items(), key=lambda item: -(parse_rate(item[0][0]) or 0.0)
        ):
            for place, time_to in enumerate(times):
                rivals = [other[place] for (where, _), (_, other) in found.items() if where == link and other]
                if time_to is not None and time_to == min(each for each in rivals if each is not None):
                    shown[place - len(SHARES)] = f"**{shown[place - len(SHARES)]}**"
            seeds = ", ".join(map(str, sorted(cells[link, method])))
            lines.append(f"| {link} | `{method}` | {seeds} | {' | '.join(shown)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--links", nargs="+", default=["100mbit", "30mbit", "10mbit"])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--baseline", default="adamw", help="optimizer of dense")
    parser.add_argument("--task", default="gpt:size=3m,heldout=192", help="without its optimizer")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument(
        "--minutes", type=float, default=25, help="of a seed after which nobody gets more steps"
    )
    parser.add_argument("--out", type=Path, default=ROWS, help="file that rows are appended to")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="write the table into the page, too")
    given = parser.parse_args()
    for seed in () if given.table else given.seeds:
        print(
            f"Seed {seed}: about {estimate(given):.0f} minutes on a quiet machine.",
            file=sys.stderr,
            flush=True,
        )
        found = run(given, seed)
        with given.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in found)
    lines = table([json.loads(line) for line in given.out.read_text().splitlines()])
    print(*lines, sep="\n")
    if given.write:
        PAGE.write_text(page(PAGE.read_text(), {"time": lines}))


if __name__ == "__main__":
    main()
