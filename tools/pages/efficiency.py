"""Writes ``gravac/signals/efficiency_table.py`` from the rows of the committed tournament.

python -m tools.pages.efficiency
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from gravac.compressors import COMPRESSORS
from gravac.signals.efficiency import of_progress
from gravac_lab.tournament import Baseline, Run, baselines, place, read_rows
from gravac_lab.tournament.rows import ALONE, DENSE

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "lab" / "benchmarks" / "tournament"
FILES, RANKS = ("rows.jsonl.xz", "repeats.jsonl.xz"), 4
"""The rows of the table: runs of static plans and repetitions of dense, with as many simulated ranks."""
TABLE = ROOT / "gravac" / "signals" / "efficiency_table.py"
LEAST = 0.01
HEAD = '''"""Statistical efficiency of plans, measured in simulations: data only, made by ``tools/pages/efficiency.py``.

Steps that dense training needs, divided by those that the plan needs, to the same held-out loss: {runs} runs of
{tasks} tasks with {ranks} simulated ranks and error feedback (``lab/benchmarks/tournament``).
"""

from typing import Literal, NamedTuple

TableKind = Literal["sgd", "adam"]


class Row(NamedTuple):
    """Efficiency of one codec at one CF.

    Attributes:
        kind: of the optimizer.
        codec: name without settings; a stack is named ``selector+quantizer``.
        cf: of a quantizer, its wire CF; of a selector, elements in / elements kept.
        low: of the task that bears it worst, the median over seeds.
        likely: median over tasks of what curves say, averaged with that of what the signals of the runs say.
        high: of the task that bears it best.
    """

    kind: TableKind
    codec: str
    cf: float
    low: float
    likely: float
    high: float


ROWS: tuple[Row, ...] = (
'''
TAIL = ''')
"""By kind, codec and ascending CF."""
ALIASES: dict[str, str] = {"topk+bf16": "topk", "fp16": "bf16"}
"""Codecs that lose as little as another one at equal CF, up to the noise of the measurements."""
'''


def table(runs: Sequence[Run]) -> str:
    """Return the source of the table."""
    dense = baselines(runs)
    found: dict[tuple[str, str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    shown: dict[tuple[str, str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        base = dense.get(place(run))
        if run.plan in (DENSE, ALONE) or run.repeats_dense or base is None:
            continue
        kind = run.kind
        if (key := _plan(run)) is not None:
            found[kind, *key][run.task].append(_efficiency(base, run))
            shown[kind, *key][run.task].append(_shown(run, kind))
    lines = []
    for plan, values in sorted(found.items(), key=lambda item: (item[0][0] != "sgd", *item[0][1:])):
        kind, codec, cf = plan
        three = _three(_by_task(values), _by_task(shown[plan]))
        lines.append(f'    Row("{kind}", "{codec}", {cf}, {three}),\n')
    head = HEAD.format(
        runs=len(runs),
        tasks=len({run.task for run in runs}),
        ranks=_listed(sorted({run.ranks for run in runs})),
    )
    return head + "".join(lines) + TAIL


def _shown(run: Run, kind: str) -> float:
    """Return what the signals of a run show of its efficiency, with less noise than its curve."""
    sums = run.sums
    return of_progress(run.backlog or 0.0, run.progress or 1.0, sums["raw_dot_next"] / sums["raw_sq"], kind)


def _by_task(runs: Mapping[str, Sequence[float]]) -> list[float]:
    """Return the median over the seeds of each task."""
    return [median(values) for values in runs.values()]


def _three(measured: Sequence[float], shown: Sequence[float]) -> str:
    """Format lowest, likely and highest efficiency of a plan; likely: the median of curves averaged with signals."""
    likely = (median(measured) + median(shown)) / 2
    return f"{min(likely, *measured):.3f}, {likely:.3f}, {max(likely, *measured):.3f}"


def _efficiency(dense: Baseline, run: Run) -> float:
    """Return η between 0.01 and 1; of a run that reaches no level of dense, by the last loss that it has."""
    found = dense.efficiency(run.curve)
    if found is None:
        found = dense.worth(run.curve)
    return min(1.0, max(LEAST, found))


def _plan(run: Run) -> tuple[str, float] | None:
    """Return the codec's bare name and its CF; None for Accordion, and for another memory than the residual."""
    if run.layered_codec is not None:
        return None
    sent, _, memory = run.plan.partition("/")
    if memory not in ("", "residual"):
        return None
    codec, _, number = sent.rpartition("@")
    bare = "+".join(part.partition(":")[0] for part in codec.split("+"))
    first = bare.split("+")[0]
    selects = first not in COMPRESSORS or COMPRESSORS[first].traits.selector
    return {"topk+bf16": "topk"}.get(bare, bare), float(number) if selects else round(run.wire_cf or 1.0, 1)


def _listed(numbers: Iterable[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def runs_of_the_table() -> list[Run]:
    """Return the committed runs that the table is made of."""
    return [run for run in read_rows(ROWS / name for name in FILES) if run.ranks == RANKS]


def main() -> None:
    TABLE.write_text(table(runs_of_the_table()), encoding="utf-8")


if __name__ == "__main__":
    main()
