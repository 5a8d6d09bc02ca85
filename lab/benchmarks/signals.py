"""How each signal alone orders plans: its rank correlation with measured statistical efficiency.

    python -m lab.benchmarks.signals [--rows FILE …] [--ranks N …]

Signals of the whole run, medians over seeds. g: gradient of a rank; ḡ: its mean over ranks. The formula of
``gravac.signals.efficiency`` joins the backlog, ρ and the progress ratio.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
from efficiency_fit import ROWS, learned, rank_correlation

from gravac.signals.efficiency import of_progress, table_of
from gravac_lab.tournament import Run, baselines, place, read_rows
from gravac_lab.tournament.rows import ALONE, DENSE

Signal = Callable[[Mapping[str, float], Run], float]


def _confirmed(sums: Mapping[str, float]) -> float:
    return min(1.0, max(0.0, sums["raw_dot_next"] / sums["raw_sq"]))


SIGNALS: Mapping[str, Signal] = {
    "gain, ‖sent‖² / ‖g + residual‖²": lambda sums, _: sums["sent_sq"] / sums["compensated_sq"],
    "gain over the raw gradient, ‖sent‖² / ‖g‖²": lambda sums, _: sums["sent_sq"] / sums["gradient_sq"],
    "backlog τ, ⟨residual, g⟩ / ‖g‖²": lambda sums, _: -sums["residual_dot_gradient"] / sums["gradient_sq"],
    "residual ratio, ‖residual‖² / ‖g‖²": lambda sums, _: -sums["residual_sq"] / sums["gradient_sq"],
    "ρ, ⟨ḡ, next ḡ⟩ / ‖ḡ‖²": lambda sums, _: -_confirmed(sums),
    "τ ρ": lambda sums, run: -(run.backlog or 0.0) * _confirmed(sums),
    "progress ratio P": lambda _, run: run.progress or 0.0,
    "the formula, of τ ρ and P": lambda sums, run: of_progress(
        run.backlog or 0.0,
        run.progress or 0.0,
        _confirmed(sums),
        table_of(run.plan.partition("@")[0], run.kind),
    ),
}
"""Each signal, with the sign that makes a higher value better."""


def table(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the lines of the table."""
    dense = baselines(runs)
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        compressed = run.plan not in (DENSE, ALONE) and not run.repeats_dense
        if compressed and run.progress is not None and run.backlog is not None and place(run) in dense:
            groups.setdefault((run.task, run.plan, run.ranks), []).append(run)
    kinds = {"SGD": ("sgd",), "Adam": ("adam",), "both": ("sgd", "adam")}
    parts = {
        name: [group for group in groups.values() if group[0].kind in chosen]
        for name, chosen in kinds.items()
    }
    true = {
        name: [median(learned(run, dense[place(run)]) for run in group) for group in part]
        for name, part in parts.items()
    }
    yield f"| signal | {' | '.join(f'{name}: {len(part)} plans and tasks' for name, part in parts.items())} |"
    yield "|---|---:|---:|---:|"
    for title, signal in SIGNALS.items():
        found = [
            rank_correlation([median(signal(run.sums, run) for run in group) for group in part], true[name])
            for name, part in parts.items()
        ]
        yield f"| {title} | {' | '.join(f'{each:.2f}' for each in found)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, nargs="+", default=ROWS, help="rows of tournaments")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4], help="numbers of ranks")
    given = parser.parse_args()
    for line in table([run for run in read_rows(given.rows) if run.ranks in given.ranks]):
        print(line)


if __name__ == "__main__":
    main()
