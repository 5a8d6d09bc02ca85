"""What `gravac observe` says of thirteen training programs, against the truth.

    python -m lab.benchmarks.observe                    half an hour; needs root, ip and tc, and a quiet machine
    python -m lab.benchmarks.observe --only ddp late    these programs

The truth of a program is its step with the network less its step without: in blocks that take turns, all collectives
of torch return at once. Other groups of ranks run under `gravac observe`, one after the other, and take turns with the
first, so that losses and steps can be compared. Then one runs with `gravac.Agent` and the plan that the last verdict
names.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from observe_parts.groups import Block, Group, GroupFailed
from observe_parts.models import AGENT

from gravac_lab.bench.network import HostNetwork, parse_rate

ROOT = Path(__file__).parents[2]
PAGE, TITLE = Path(__file__).with_suffix(".md"), "## Figures\n"
FIRST_STEPS = 20
"""Of the block in which `gravac observe` records."""
BLOCK_SECONDS, LEAST_STEPS, MOST_STEPS = 1.2, 5, 16
WITHIN_POINTS, WITHIN_SPEEDUP = 3.0, 0.15
FIRST_PORT = 29600


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program, where it runs, and what the verdict is to be.

    Attributes:
        name: Of ``observe_parts/programs``.
        link: Of each rank's host.
        cause: Of the verdict.
        next: Words of the advice, where it is not the network.
        ranks: Number of them.
        agent: Whether a speed-up is predicted, and then measured.
        environment: Of ``make test-frameworks``; empty: this one.
    """

    name: str
    link: str
    cause: str
    next: str = ""
    ranks: int = 2
    agent: bool = False
    environment: str = ""

    @property
    def python(self) -> str:
        """The interpreter that runs it."""
        if not self.environment:
            return sys.executable
        return str(ROOT / ".venv-frameworks" / self.environment / "bin" / "python")


SOFTER = {"late ranks": ("several causes",), "other": ("data first",)}
"""Kinds of verdicts that are right, too, where the advice is."""
PROGRAMS = (
    Program(name="ddp", link="100mbit", cause="network", agent=True),
    Program(name="ddp_after", link="200mbit", cause="network", agent=True),
    Program(name="sharded", link="200mbit", cause="network", agent=True),
    Program(name="sharded_before", link="200mbit", cause="network"),
    Program(name="replicated", link="none", cause="other", next="speed up computation"),
    Program(name="hybrid", link="500mbit", cause="network", ranks=4),
    Program(name="tensor", link="500mbit", cause="network"),
    Program(name="pipeline", link="none", cause="late ranks", next="balance the stages"),
    Program(name="lightning_trainer", link="100mbit", cause="network", agent=True, environment="lightning"),
    Program(name="hf_trainer", link="50mbit", cause="network", agent=True, environment="transformers"),
    Program(name="accumulated", link="50mbit", cause="network", agent=True),
    Program(name="loading", link="1gbit", cause="other", next="load data faster"),
    Program(name="late", link="none", cause="late ranks", next="find what delays rank 1"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One run of a program under `gravac observe`, and the truth about the same minute. Steps are in seconds.

    Attributes:
        step: With the network.
        without: Without.
        working: Of a step, what the thread that trains takes more of its core with the network than without.
        verdict: Of `gravac observe`.
        equal: Whether all losses of the first block are those of a run that is not observed.
        first: Seconds of the first block, in which `gravac observe` records.
        observed: A later step of the observed program.
        ending: Seconds that it took to end.
    """

    step: float
    without: float
    working: float
    verdict: dict[str, Any]
    equal: bool
    first: float
    observed: float
    ending: float

    @property
    def truth(self) -> float:
        """Share of a step, in per cent, that is exposed communication."""
        return 100 * (1 - self.without / self.step)

    @property
    def said(self) -> float:
        """What the verdict says of it."""
        return float(100 * self.verdict["exposed_seconds"] / self.verdict["step_seconds"])

    @property
    def unseen(self) -> float:
        """Share of a step, in per cent, that the core works for the network in the thread that trains."""
        return 100 * self.working / self.step

    def predicted(self, plan: str) -> float | None:
        """Return the speed-up that the verdict promises of a plan; None: it does not know the plan."""
        forecast = self.verdict["forecast"] or {"rows": []}
        rows = {row["plan"]: row["step_seconds"] for row in forecast["rows"]}
        return float(rows["dense"] / rows[plan]) if plan in rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was measured of a program.

    Attributes:
        program: Which.
        recordings: Its runs.
        first: Seconds of the first block of the run that is not observed.
        ending: Seconds that it took to end.
        speedup: With the agent and the plan of the last verdict; None: not measured.
    """

    program: Program
    recordings: Sequence[Recording]
    first: float
    ending: float
    speedup: float | None

    def each(self, what: Callable[[Recording], float]) -> list[float]:
        """Return a figure of each recording."""
        return [what(recording) for recording in self.recordings]

    def of(self, what: Callable[[Recording], float]) -> float:
        """Return the median of a figure."""
        return median(self.each(what))

    @property
    def off(self) -> list[float]:
        """By how many points each share is off."""
        return self.each(lambda one: one.said - one.truth)

    @property
    def rest(self) -> float:
        """What of it the core's work for the network does not explain."""
        return self.of(lambda one: one.said + one.unseen - one.truth)

    @property
    def wrong(self) -> list[str]:
        """The causes of verdicts that are not right."""
        return [
            one.verdict["kind"]
            for one in self.recordings
            if one.verdict["kind"] not in (self.program.cause, *SOFTER.get(self.program.cause, ()))
            or self.program.next not in one.verdict["next"]
        ]

    @property
    def equal(self) -> bool:
        """Whether all losses are."""
        return all(one.equal for one in self.recordings)

    @property
    def plan(self) -> str:
        """Which the last verdict names."""
        return str(self.recordings[-1].verdict["forecast"]["chosen"])

    @property
    def predicted(self) -> list[float]:
        """Speed-up that verdicts promise of it."""
        return [found for one in self.recordings if (found := one.predicted(self.plan)) is not None]

    @property
    def speedup_off(self) -> float:
        """By how much the prediction is off, relative."""
        assert self.speedup is not None
        return median(self.predicted) / self.speedup - 1


def run(program: Program, recordings: int, rounds: int, port: int, scratch: Path) -> Result:
    """Run a program with and without a network, observed, and with an agent.

    Raises:
        GroupFailed: it did not train.
    """
    with (
        HostNetwork(program.ranks, parse_rate(program.link)) as network,
        Group(program.name, network, port, scratch / "plain", python=program.python) as plain,
    ):
        plain.ready()
        first = plain.steps(FIRST_STEPS)
        count = max(LEAST_STEPS, min(MOST_STEPS, round(BLOCK_SECONDS / first.step())))
        found = [
            _record(program, plain, first, network, rounds, count, port + 1, scratch / f"observed{each}")
            for each in range(recordings)
        ]
        verdict, speedup = found[-1].verdict, None
        if program.agent and verdict["forecast"] is not None:
            speedup = _speedup(
                program, verdict, plain, network, rounds + 1, count, port + 2, scratch / "agent"
            )
        began = time.perf_counter()
        plain.end()
    return Result(
        program=program,
        recordings=found,
        first=first.total,
        ending=time.perf_counter() - began,
        speedup=speedup,
    )


def _record(
    program: Program,
    plain: Group,
    first: Block,
    network: HostNetwork,
    rounds: int,
    count: int,
    port: int,
    scratch: Path,
) -> Recording:
    """Observe a program that takes turns with a plain one."""
    observing = [sys.executable, "-m", "gravac_controller", "observe", "--json", "--"]
    with Group(program.name, network, port, scratch, observing, python=program.python) as observed:
        observed.ready()
        blocks = [(plain.steps(count), plain.steps(count, network=False))]
        recorded = observed.steps(FIRST_STEPS)
        again: list[Block] = []
        for turn in range(rounds):
            if turn % 2:
                again.append(observed.steps(count))
            without = plain.steps(count, network=False)
            blocks.append((plain.steps(count), without))
            if not turn % 2:
                again.append(observed.steps(count))
        began = time.perf_counter()
        printed = observed.end()
    with_network, without_network = zip(*blocks, strict=True)
    return Recording(
        step=median(block.step() for block in with_network),
        without=median(block.step() for block in without_network),
        working=median(block.working() for block in with_network)
        - median(block.working() for block in without_network),
        verdict=json.loads(printed[printed.index('{"') :]),
        equal=first.losses == recorded.losses,
        first=recorded.total,
        observed=median(block.step() for block in again),
        ending=time.perf_counter() - began,
    )


def _speedup(
    program: Program,
    verdict: dict[str, Any],
    plain: Group,
    network: HostNetwork,
    rounds: int,
    count: int,
    port: int,
    scratch: Path,
) -> float:
    """Return how much faster steps are with an agent and the plan of a verdict."""
    forecast = verdict["forecast"]
    chosen = next(row for row in forecast["rows"] if row["plan"] == forecast["chosen"])
    settings = {"controller": None, "data_dir": str(scratch / "data"), "job": "observe"}
    if chosen["cf"] > 1.0:
        settings |= {"compressor": chosen["codec"], "policy": f"static:cf={chosen['cf']:g}"}
        settings |= {"collective": forecast["collective"]} if forecast["collective"] else {}
    with Group(
        program.name, network, port, scratch, variables={AGENT: json.dumps(settings)}, python=program.python
    ) as agent:
        agent.ready()
        agent.steps(max(10, count))
        pairs = [(plain.steps(count), agent.steps(count)) for _ in range(rounds)]
        agent.end()
    return median(dense.step() for dense, _ in pairs) / median(faster.step() for _, faster in pairs)


HEAD = (
    "| program | link | step | without network | core, by the network | exposed: truth | said | off by, points | "
    "with the core | verdicts right | losses equal | other steps, observed | recording | at the end |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|---:|---|---|---:|---:|---:|"
)


def row(found: Result) -> str:
    """Return a line of the first table."""
    program, count = found.program, len(found.recordings)
    right = f"{count - len(found.wrong)} of {count}" + (
        f" (**{', '.join(found.wrong)}**)" if found.wrong else ""
    )
    return (
        f"| `{program.name}` | {program.link} | {1e3 * found.of(lambda one: one.step):.0f} ms | "
        f"{1e3 * found.of(lambda one: one.without):.0f} ms | {1e3 * found.of(lambda one: one.working):+.0f} ms | "
        f"{found.of(lambda one: one.truth):.1f} % | {found.of(lambda one: one.said):.1f} % | "
        f"**{median(found.off):+.1f}** ({_range(found.off, '+.1f')}) | {found.rest:+.1f} | {right} | "
        f"{'yes' if found.equal else '**no**'} | {found.of(lambda one: one.observed / one.step):.3f} | "
        f"{found.of(lambda one: one.first) - found.first:+.2f} s | "
        f"{found.of(lambda one: one.ending) - found.ending:+.1f} s |"
    )


def _range(figures: Sequence[float], form: str) -> str:
    return f"{min(figures):{form}} to {max(figures):{form}}"


PLANS = "| program | plan | speed-up: predicted | measured | off by |\n|---|---|---:|---:|---:|"


def plan(found: Result) -> str:
    """Return a line of the second table."""
    return (
        f"| `{found.program.name}` | {found.plan} | {median(found.predicted):.2f} "
        f"({_range(found.predicted, '.2f')}) | {found.speedup:.2f} | {found.speedup_off:+.0%} |"
    )


def judged(results: Sequence[Result]) -> list[str]:
    """Return what holds, in sentences."""
    close = sum(abs(median(found.off)) <= WITHIN_POINTS for found in results)
    explained = sum(abs(found.rest) <= WITHIN_POINTS for found in results)
    fast = [found for found in results if found.speedup is not None]
    near = sum(abs(found.speedup_off) <= WITHIN_SPEEDUP for found in fast)
    verdicts = sum(len(found.recordings) for found in results)
    later = sorted(one.observed / one.step for found in results for one in found.recordings)
    low, middle, high = (later[round(share * (len(later) - 1))] for share in (0.25, 0.5, 0.75))
    return [
        f"median share within {WITHIN_POINTS:g} points: {close} of {len(results)}; with the core: {explained}",
        f"verdict right: {verdicts - sum(len(found.wrong) for found in results)} of {verdicts}",
        f"losses bit-equal: {sum(found.equal for found in results)} of {len(results)}",
        f"later steps of an observed run over those of a plain one: {middle:.3f} ({low:.3f} to {high:.3f}, half of "
        f"{len(later)})",
        f"median prediction within {WITHIN_SPEEDUP:.0%}: {near} of {len(fast)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="programs")
    parser.add_argument(
        "--recordings", type=int, default=3, help="runs under gravac observe, of each program"
    )
    parser.add_argument("--rounds", type=int, default=2, help="blocks of each side, after each recording")
    parser.add_argument("--keep", type=Path, help="folder for what the programs print, not there yet")
    parser.add_argument("--write", action="store_true", help="write the figures into observe.md, too")
    given = parser.parse_args()
    results, load = [], os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        scratch = given.keep or Path(temporary)
        for program in PROGRAMS:
            if program.name not in given.only:
                continue
            if not Path(program.python).exists():
                print(
                    f"{program.name}: left out; make .venv-frameworks/{program.environment}/.ready makes what it needs",
                    file=sys.stderr,
                )
                continue
            began = time.perf_counter()
            try:
                results.append(
                    run(program, given.recordings, given.rounds, FIRST_PORT, scratch / program.name)
                )
            except GroupFailed as error:
                print(f"{program.name}: {error}", file=sys.stderr)
                continue
            print(f"{program.name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
            print(row(results[-1]), file=sys.stderr, flush=True)
    lines = [HEAD, *map(row, results), "", PLANS, *(plan(each) for each in results if each.speedup), ""]
    lines += [f"- {sentence}" for sentence in judged(results)]
    print(*lines, sep="\n")
    if given.write:
        said = f"{time.strftime('%Y-%m-%d')}, load {load:.1f} when it began:\n\n"
        before = PAGE.read_text().partition(TITLE)[0]
        PAGE.write_text(before + TITLE + "\n" + said + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
