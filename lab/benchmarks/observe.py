"""What `gravac observe` says of thirteen training programs, against the truth.

    python -m lab.benchmarks.observe                    about ten minutes; needs root, ip and tc, and a quiet machine
    python -m lab.benchmarks.observe --only ddp late    these programs

The truth of a program is its step with the network less its step without: in blocks that take turns, all collectives
of torch return at once. A second group of ranks runs under `gravac observe` and takes turns with the first, so that
losses and steps can be compared. Then a third runs with `gravac.Agent` and the plan that the verdict names.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
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
    Program(name="late", link="none", cause="late ranks", next="find what keeps rank 1"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was measured of a program. Steps are in seconds.

    Attributes:
        program: Which.
        step: With the network.
        without: Without.
        verdict: Of `gravac observe`.
        equal: Whether all losses of the first block are.
        recording: Seconds that the first block took longer for being observed.
        observed: A later step of the observed program.
        ending: Seconds that it took longer to end.
        speedup: With the agent; None: not measured.
    """

    program: Program
    step: float
    without: float
    verdict: dict[str, Any]
    equal: bool
    recording: float
    observed: float
    ending: float
    speedup: float | None

    @property
    def truth(self) -> float:
        """Share of a step, in per cent, that is exposed communication."""
        return 100 * (1 - self.without / self.step)

    @property
    def said(self) -> float:
        """What the verdict says of it."""
        return float(100 * self.verdict["exposed_seconds"] / self.verdict["step_seconds"])

    @property
    def right(self) -> bool:
        """Whether the verdict's kind is."""
        return bool(self.verdict["cause"] == self.program.cause and self.program.next in self.verdict["next"])

    @property
    def predicted(self) -> float:
        """Speed-up that the verdict promises."""
        rows = {row["plan"]: row["step_seconds"] for row in self.verdict["forecast"]["rows"]}
        return float(rows["dense"] / rows[self.verdict["forecast"]["chosen"]])


def run(program: Program, rounds: int, port: int, scratch: Path) -> Result:
    """Run a program with and without a network, observed, and with an agent.

    Raises:
        GroupFailed: it did not train.
    """
    observing = [sys.executable, "-m", "gravac_controller", "observe", "--json", "--"]
    with (
        HostNetwork(program.ranks, parse_rate(program.link)) as network,
        Group(program.name, network, port, scratch / "plain", python=program.python) as plain,
        Group(
            program.name, network, port + 1, scratch / "observed", observing, python=program.python
        ) as observed,
    ):
        plain.ready()
        observed.ready()
        first, recorded = plain.steps(FIRST_STEPS), observed.steps(FIRST_STEPS)
        count = max(LEAST_STEPS, min(MOST_STEPS, round(BLOCK_SECONDS / first.step())))
        blocks: list[tuple[Block, Block, Block]] = []
        for turn in range(rounds):
            sides = [(plain, True), (plain, False), (observed, True)]
            done = [group.steps(count, there) for group, there in (sides if turn % 2 == 0 else sides[::-1])]
            with_network, without, again = done if turn % 2 == 0 else done[::-1]
            blocks.append((with_network, without, again))
        began = time.perf_counter()
        printed = observed.end()
        ending = time.perf_counter() - began
        verdict = json.loads(printed[printed.index('{"') :])
        speedup = None
        if program.agent and verdict["forecast"] is not None:
            speedup = _speedup(program, verdict, plain, network, rounds, count, port + 2, scratch / "agent")
        began = time.perf_counter()
        plain.end()
        ending -= time.perf_counter() - began
    return Result(
        program=program,
        step=median(block.step() for block, _, _ in blocks),
        without=median(block.step() for _, block, _ in blocks),
        observed=median(block.step() for _, _, block in blocks),
        verdict=verdict,
        equal=first.losses == recorded.losses,
        recording=recorded.total - first.total,
        ending=ending,
        speedup=speedup,
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
    "| program | link | step | without network | exposed: truth | said | off by, points | verdict | losses equal | "
    "other steps, observed | recording | at the end |\n|---|---|---:|---:|---:|---:|---:|---|---|---:|---:|---:|"
)


def row(found: Result) -> str:
    """Return a line of the first table."""
    program, verdict = found.program, found.verdict
    what = verdict["cause"] if found.right else f"**{verdict['cause']}**, not {program.cause}"
    return (
        f"| `{program.name}` | {program.link} | {1e3 * found.step:.0f} ms | {1e3 * found.without:.0f} ms | "
        f"{found.truth:.1f} % | {found.said:.1f} % | {found.said - found.truth:+.1f} | {what} | "
        f"{'yes' if found.equal else '**no**'} | {found.observed / found.step:.3f} | "
        f"{found.recording:+.2f} s | {found.ending:+.1f} s |"
    )


PLANS = "| program | plan | speed-up: predicted | measured | off by |\n|---|---|---:|---:|---:|"


def plan(found: Result) -> str:
    """Return a line of the second table."""
    assert found.speedup is not None
    off = found.predicted / found.speedup - 1
    return (
        f"| `{found.program.name}` | {found.verdict['forecast']['chosen']} | {found.predicted:.2f} | "
        f"{found.speedup:.2f} | {off:+.0%} |"
    )


def judged(results: Sequence[Result]) -> list[str]:
    """Return what holds, in sentences."""
    close = sum(abs(found.said - found.truth) <= WITHIN_POINTS for found in results)
    fast = [found for found in results if found.speedup is not None]
    near = sum(abs(found.predicted / (found.speedup or 1) - 1) <= WITHIN_SPEEDUP for found in fast)
    return [
        f"exposed share within {WITHIN_POINTS:g} points: {close} of {len(results)}",
        f"verdict right: {sum(found.right for found in results)} of {len(results)}",
        f"losses bit-equal: {sum(found.equal for found in results)} of {len(results)}",
        f"speed-up within {WITHIN_SPEEDUP:.0%}: {near} of {len(fast)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="programs")
    parser.add_argument("--rounds", type=int, default=3, help="blocks of each side")
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
                results.append(run(program, given.rounds, FIRST_PORT, scratch / program.name))
            except GroupFailed as error:
                print(f"{program.name}: {error}", file=sys.stderr)
                continue
            print(f"{program.name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
            print(row(results[-1]), results[-1].verdict["verdict"], sep="\n", file=sys.stderr, flush=True)
    lines = [HEAD, *map(row, results), "", PLANS, *(plan(each) for each in results if each.speedup), ""]
    lines += [f"- {sentence}" for sentence in judged(results)]
    print(*lines, sep="\n")
    if given.write:
        said = f"{time.strftime('%Y-%m-%d')}, load {load:.1f} when it began:\n\n"
        before = PAGE.read_text().partition(TITLE)[0]
        PAGE.write_text(before + TITLE + "\n" + said + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
