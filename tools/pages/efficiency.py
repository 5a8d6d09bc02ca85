"""Prints the efficiencies that codecs state in their offers, from the rows of the committed tournament and of the study
of AdamW (``lab/benchmarks/adam.md``).

python -m tools.pages.efficiency
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from gravac.compressors import COMPRESSORS
from gravac.offers import TableKind
from gravac.signals.efficiency import LATE, of_progress
from gravac_lab.simulate.pool import read_lines
from gravac_lab.tournament import Baseline, Run, baselines, place, read_rows
from gravac_lab.tournament.curves import LossCurve, curve_of, efficiency
from gravac_lab.tournament.rows import ALONE, DENSE, REPEAT

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "lab" / "benchmarks" / "tournament"
FILES, RANKS = ("rows.jsonl.xz", "repeats.jsonl.xz"), 4
"""The rows of the table: runs of static plans and repetitions of dense, with as many simulated ranks."""
STUDY = ROOT / "lab" / "benchmarks" / "adam.jsonl.xz"
RULES: dict[tuple[str, float], TableKind] = {
    ("late:move=eager,age=pooled", 0.9): "aged",
    ("adamw", 0.5): "low_beta",
}
"""Rules and β₁ of its rows: of ``gravac.optim``, and of torch's AdamW. Dense has the same betas."""
TABLES: dict[str, TableKind] = {"sgd": "sgd", "matrix": "matrix", **LATE}
BETA2, LEAST_TASKS = 0.95, 2
"""Of what one task shows, the table says nothing."""
LEAST = 0.01
Table = dict[tuple[str, TableKind], dict[float, tuple[float, float, float]]]


def table(runs: Sequence[Run]) -> Table:
    """Return the efficiencies by codec and kind of optimizer, as ``gravac.offers.Kept``."""
    dense = baselines(runs)
    found: dict[tuple[str, TableKind, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    shown: dict[tuple[str, TableKind, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        base = dense.get(place(run))
        if run.plan in (DENSE, ALONE) or run.repeats_dense or base is None:
            continue
        if (key := _plan(run)) is not None:
            kind = TABLES.get(run.kind, "adam")
            found[key[0], kind, key[1]][run.task].append(_efficiency(base, run))
            shown[key[0], kind, key[1]][run.task].append(_shown(run, kind))
    kept: Table = defaultdict(dict)
    for (codec, kind, cf), values in sorted(found.items()):
        kept[codec, kind][cf] = _three(_by_task(values), _by_task(shown[codec, kind, cf]))
    return kept


def _place(row: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(row[name] for name in ("task", "seed", "steps", "beta1"))


def late_table() -> Table:
    """Return the efficiencies under optimizers that bear late gradients, of the curves alone: signals say little.

    A task counts by the median of its seeds, and a seed by the median of dense's repetitions. Likely is the mean of the
    tasks: most keep all, so the median would say that nothing is ever lost. Where a stronger plan kept more than a
    milder one, which is noise, it states what the milder one does.
    """
    every = [row for row in read_lines(STUDY) if row["ranks"] == RANKS and row["beta2"] == BETA2]
    dense: dict[tuple[object, ...], list[LossCurve]] = defaultdict(list)
    for row in every:
        if row["plan"] == DENSE or row["plan"].startswith(REPEAT):
            dense[_place(row)].append(curve_of(row["curve"]))
    found: dict[tuple[str, TableKind, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in every:
        kind, sent = RULES.get((row["rule"], row["beta1"])), row["plan"].rpartition("@")
        if kind is not None and sent[1] and "/" not in sent[2]:  # no other collective
            curve = curve_of(row["curve"])
            etas = [efficiency(one, curve) or LEAST for one in dense[_place(row)]]
            found[sent[0], kind, float(sent[2])][row["task"]].append(min(1.0, max(LEAST, median(etas))))
    kept: Table = defaultdict(dict)
    for (codec, kind, cf), values in sorted(found.items()):
        if len(values) >= LEAST_TASKS:
            rows = kept[codec, kind]
            of_tasks = _by_task(values)
            three = (round(each, 3) for each in (min(of_tasks), mean(of_tasks), max(of_tasks)))
            low, likely, high = (min(each) for each in zip(three, *rows.values(), strict=True))
            rows[cf] = low, likely, high
    return kept


def _shown(run: Run, table: TableKind) -> float:
    """Return what the signals of a run show of its efficiency, with less noise than its curve."""
    sums = run.sums
    return of_progress(run.backlog or 0.0, run.progress or 1.0, sums["raw_dot_next"] / sums["raw_sq"], table)


def _by_task(runs: Mapping[str, Sequence[float]]) -> list[float]:
    """Return the median over the seeds of each task."""
    return [median(values) for values in runs.values()]


def _three(measured: Sequence[float], shown: Sequence[float]) -> tuple[float, float, float]:
    """Return lowest, likely and highest efficiency of a plan; likely: the median of curves averaged with signals."""
    likely = (median(measured) + median(shown)) / 2
    return round(min(likely, *measured), 3), round(likely, 3), round(max(likely, *measured), 3)


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


def runs_of_the_table() -> list[Run]:
    """Return the committed runs that the table is made of."""
    return [run for run in read_rows(ROWS / name for name in FILES) if run.ranks == RANKS]


def main() -> None:
    for (codec, kind), kept in (*table(runs_of_the_table()).items(), *late_table().items()):
        print(f"{codec}: {kind}={kept},")


if __name__ == "__main__":
    main()
