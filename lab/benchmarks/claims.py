"""Writes docs/claims.md: what the seed papers claim, and what was measured here, from the committed tournament.

python -m lab.benchmarks.claims --plot docs/objectives.svg > docs/claims.md
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
import objectives
from regret import TARGET, bound_of, cells
from regret_parts import tables
from regret_parts.budgets import budgets
from regret_parts.jobs import JobRow, read_jobs
from regret_parts.limits import limits
from regret_parts.noise import noise
from regret_parts.reading import reading

from gravac.predict.nominal import NominalJob, link
from gravac_lab.tournament import Run, baselines, place, read_rows
from gravac_lab.tournament.regret import Cell, Contender
from gravac_lab.tournament.rows import ALONE, DENSE

FOLDER = Path(__file__).parent / "tournament"
ROWS, JOBS = (
    tuple(
        FOLDER / name
        for name in ("rows.jsonl.xz", "more.jsonl.xz", "repeats.jsonl.xz", "collectives.jsonl.xz")
    ),
    FOLDER / "jobs.jsonl.xz",
)
"""The table of efficiencies, by which policies decide, is made of the first and the third file."""
FRONTIER = FOLDER / "frontier.jsonl.xz"
"""More codecs, error memories and learning rates, of two tasks."""
README = "[benchmarks](../lab/benchmarks/README.md)"
DEFAULT, UNBOUNDED = "auto", "auto:bound=1"
HEAD = """# Claims

```sh
python -m lab.benchmarks.claims --plot docs/objectives.svg > docs/claims.md
```

This page compares what the seed papers claim with what was measured here. The command writes it from the [rows of the
tournament](../lab/benchmarks/tournament/README.md): {runs} runs of static plans (`gravac bench tournament`), {repeats}
repetitions of dense runs, and {jobs} simulated jobs of policies (`python -m lab.benchmarks.regret run`).

Learning is real. There are {tasks} tasks with models of 0.05 to 0.4 million parameters, {ranks} simulated ranks,
{steps} steps, and {seeds} seeds of each. The noise differs from task to task: see [how much two dense runs
differ](#how-much-two-dense-runs-differ). The time model of [`gravac simulate`](simulate.md) predicts step times for
each link. The models are small: 100 Mbit/s is to them what 10 Gbit/s is to a model a hundred times as large. The papers
train for epochs on GPUs, so compare directions, not figures.
"""


OPTIMIZERS = {
    "sgd": "SGD",
    "adam": "Adam",
    "adam-aged": "gravac.optim",
    "adam-low-beta": "Adam, β₁ 0.5",
    "matrix": "Muon",
}
"""Names of the kinds of optimizers."""
OBJECTIVES = """
## T_comp and useful throughput

![What each objective promises against the speed-up to the target](objectives.svg)

GraVAC maximizes T_comp = T_sys · gain, and `auto` maximizes the useful throughput T_sys · η. The plot is for 4 ranks
and seed 1, with medians over tasks (`python -m lab.benchmarks.objectives`). The gain does not order codecs as learning
does. A plan that loses much misses the target within the steps of dense training, however short its steps are (the dots
at the bottom). Neither objective says so, and this is what the bound is for. Of the plans that are expected to keep the
bound, the one with the highest useful throughput is nearly always the fastest to the target.
"""


SCALED_ELEMENTS, SCALED_SECONDS = 3_511_616, 0.64
"""The LSTM of ``gravac bench train`` and what a step of it computes on one core (its method ``none``)."""
SCALED_RANKS = (2, 4, 8, 16, 32)
SCALED_RATES = {"100 Mbit/s": 100e6, "1 Gbit/s": 1e9}
SCALED_PLANS = (
    ("dense", 1.0),
    ("bf16", 2.0),
    ("nearest:levels=7", 10.1),
    ("dither:levels=3", 17.3),
    ("topk+bf16", 100.0),
)


def page(
    runs: Sequence[Run], jobs: Sequence[JobRow], points: Sequence[objectives.Point], frontier: Sequence[Run]
) -> Iterator[str]:
    """Yield the lines of the page.

    Args:
        runs: Static plans, dense and its repetitions.
        jobs: Of policies.
        points: Objectives of static plans.
        frontier: More static plans, for the best ones by wire budget only.
    """
    compared, _ = cells(runs, jobs, TARGET)
    plans = [run for run in runs if not run.repeats_dense]
    yield HEAD.format(
        runs=len(plans),
        repeats=len(runs) - len(plans),
        jobs=len(jobs),
        tasks=len({run.task for run in runs}),
        ranks=_listed({run.ranks for run in runs}),
        steps=_listed({run.steps for run in runs}),
        seeds=_span(list(Counter((run.task, run.plan, run.ranks) for run in plans).values())),
    )
    yield "## The papers' headlines\n"
    yield from headlines(compared, jobs)
    yield reading(compared, runs, TARGET, DEFAULT, UNBOUNDED)
    yield "\n## Statistical efficiency of static plans\n"
    yield from efficiencies(runs)
    yield from budgets([*runs, *frontier])
    yield OBJECTIVES
    yield from objectives.table(points)
    yield "\n## Policies against static plans\n"
    yield f"The target is the held-out loss of dense training after {TARGET:.0%} of its steps.\n"
    yield from noise(runs, TARGET)
    yield ""
    names = list(dict.fromkeys(name for pair in compared for name in pair.jobs))
    for section in (
        *(tables.regrets(compared, name, bound_of(name)) for name in names),
        tables.rivals(compared, f"`{DEFAULT}`", tables.always(DEFAULT)),
        tables.rivals(compared, f"`{DEFAULT}`, and `{UNBOUNDED}` where a rival breaks the bound,", suited),
        *(limits(compared, runs, name, bound_of(name)) for name in names),
        tables.learning(compared, names),
        *(tables.choices(compared, name, bound_of(name)) for name in names),
        *(tables.distribution(jobs, name) for name in names),
    ):
        yield from section
        yield ""
    yield "## Scaling efficiency, predicted\n"
    yield (
        "The table shows the computation of a step divided by its duration, for the LSTM of `gravac bench train` (3.5 "
        "million parameters, 0.64 s of computation) with the collective that the cost model chooses. `gravac whatif` "
        f"predicted all of it. Where plans did run, predicted steps were 2 to 32 % shorter than real ones ({README}).\n"
    )
    yield from scaling()


def scaling() -> Iterator[str]:
    """Yield scaling efficiency by the model of a step: computation of a step / its duration. Predicted, not run."""
    yield "| link | plan | " + " | ".join(f"{ranks} ranks" for ranks in SCALED_RANKS) + " |"
    yield "|---|---|" + "---:|" * len(SCALED_RANKS)
    for rate, bits in SCALED_RATES.items():
        for codec, cf in SCALED_PLANS:
            cells = []
            for ranks in SCALED_RANKS:
                step = NominalJob(SCALED_ELEMENTS, ranks, SCALED_SECONDS).step(codec, cf, link(bits)).seconds
                cells.append(f"{SCALED_SECONDS / step:.0%} ({step:.2f} s)")
            name = codec if cf == 1.0 else f"{codec}@{cf:g}"
            yield f"| {rate} | `{name}` | " + " | ".join(cells) + " |"


def suited(rival: Contender) -> str:
    """Return the policy that may lose as much as a rival does."""
    return DEFAULT if rival.keeps(bound_of(DEFAULT)) else UNBOUNDED


def headlines(compared: Sequence[Cell], jobs: Sequence[JobRow]) -> Iterator[str]:
    """Yield the table of what the papers claim."""
    slow = [pair for pair in compared if pair.link in ("30mbit", "100mbit")]
    yield "| claim | the paper | here | what differs |"
    yield "|---|---|---|---|"
    yield _line(
        "GraVAC: bytes against dense",
        "163x and 19x (ResNet101), 80x and 13.5x (VGG16), 289x and 279x (LSTM)",
        f"{_fewer(jobs, DEFAULT)} by default, {_fewer(jobs, UNBOUNDED)} with `bound=1`",
        "here: median over tasks on 30 and 100 Mbit/s, bytes with all indices and scales; the paper counts floats",
    )
    for what, said, rival in (
        ("static Top-k 10x", "4.32, 1.95 and 6.67 times less", ("topk", "topk+bf16")),
        ("Accordion", "1.94, 5.63 and 2.06 times less", ("accordion",)),
    ):
        differs = f"to the target, on 30 and 100 Mbit/s; {_of(rival)}"
        yield _line(f"GraVAC: time against {what}", said, _speedups(slow, rival), differs)
    yield _line(
        "GraVAC: multi-level against single-level compression",
        "1.83 times with Top-k, 1.5 with RedSync",
        "1.50 times with Top-k, 1.79 with RedSync",
        f"`gravac bench multilevel`, {README}: against compressing twice with the same kernels",
    )
    yield _line(
        "GraVAC: the search ends near the best T_comp",
        "six figures",
        "within 1 % of the best in all of them",
        f"`lab/benchmarks/paper_search.py`, {README}",
    )
    yield _line(
        "ConEF: memory of error feedback", "its tables", "measured", f"`lab/benchmarks/conef.py`, {README}"
    )
    yield _line(
        "EC-SGD, absolute compression", "its figures", "measured", f"`lab/benchmarks/ec_sgd.py`, {README}"
    )


def _line(*columns: str) -> str:
    return f"| {' | '.join(columns)} |"


def efficiencies(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the table of η, final loss above dense's, and retained value of each plan, by the optimizer's kind."""
    yield "| plan | optimizer | wire CF | runs | η, median | lowest | loss above dense, median | worst |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    dense = baselines(runs)
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.plan != DENSE and not run.repeats_dense and place(run) in dense:
            groups.setdefault((OPTIMIZERS[run.kind], run.plan), []).append(run)
    rows = []
    for (kind, plan), members in groups.items():
        bases = [dense[place(run)] for run in members]
        etas = [base.efficiency(run.curve) or 0.0 for run, base in zip(members, bases, strict=True)]
        above = [run.curve.final / base.final - 1.0 for run, base in zip(members, bases, strict=True)]
        wire = median(run.wire_cf or 0.0 for run in members)
        sent = f"{wire:.1f}" if plan != ALONE else "nothing"
        rows.append(
            (
                kind,
                -median(etas),
                f"| `{plan}` | {kind} | {sent} | {len(members)} | {median(etas):.3f} | {min(etas):.3f} | "
                f"{median(above):+.1%} | {max(above):+.1%} |",
            )
        )
    yield from (line for *_, line in sorted(rows))


def _fewer(jobs: Sequence[JobRow], policy: str) -> str:
    found = [
        row.fewer for row in jobs if row.cell.policy == policy and row.cell.link in ("30mbit", "100mbit")
    ]
    return f"{median(found):.1f}x ({min(found):.1f} to {max(found):.1f})" if found else "not measured"


def _speedups(compared: Sequence[Cell], rival: tuple[str, ...]) -> str:
    shown = []
    for policy in (DEFAULT, UNBOUNDED):
        found = []
        for pair in compared:
            best = pair.rival(rival)
            if rival[0] == "topk":
                best = pair.plans.get("topk+bf16@10")
            speedup = None if best is None or policy not in pair.jobs else pair.speedup(policy, best)
            if speedup is not None:
                found.append(speedup)
        if found:
            reached = [value for value in found if 0.0 < value < math.inf]
            times = (
                f"{median(reached):.2f} times less ({min(reached):.2f} to {max(reached):.2f})"
                if reached
                else "–"
            )
            theirs, ours = found.count(math.inf), found.count(0.0)
            shown.append(
                f"`{policy}`: {times} in {len(reached)} cells"
                + (f", in {theirs} the rival does not reach the target" if theirs else "")
                + (f", in {ours} `{policy}` does not" if ours else "")
            )
    return "; ".join(shown) or "not measured"


def _of(rival: tuple[str, ...]) -> str:
    return "Top-k sends 16-bit values" if rival[0] == "topk" else "per layer, as published, in steps"


def _listed(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _span(numbers: Sequence[int]) -> str:
    return str(min(numbers)) if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, help="also draw the plot of the page, as SVG")
    given = parser.parse_args()
    points = objectives.points(read_rows([objectives.ROWS]), TARGET)
    if given.plot is not None:
        objectives.draw(points, given.plot)
    for line in page(read_rows(ROWS), read_jobs(JOBS), points, read_rows([FRONTIER])):
        print(line)


if __name__ == "__main__":
    main()
