"""EC-SGD with arbitrary sampling, variance reduction and absolute compression, on stand-ins for a9a, w8a and gisette.

    python lab/benchmarks/ec_sgd.py --quick            # seconds; full size without --quick: minutes, on one core

1. sampling: steps that uniform and importance sampling need; 2. variance: how much closer L-SVRG gets than SGD at the
same step size; 3. sparsifier: hard threshold against Top-k at equal coordinates sent, also on label-sorted data.
Tables go to standard output, and with all curves to --output; plots too where matplotlib is installed.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path

import torch
from ec_sgd_parts import plots
from ec_sgd_parts.experiments import EXPERIMENTS, Result, Settings
from ec_sgd_parts.standins import KINDS, SMALL_KINDS

SETTINGS = {
    "a9a": Settings(
        gap=0.1, most_steps=10_000, coarse=0.05,
        variance_steps=36_000, fine=0.02,
        sparsifier_steps=20_000, top=1, threshold=1.0,
        every=100,
    ),
    "w8a": Settings(
        gap=0.1, most_steps=10_000, coarse=0.05,
        variance_steps=5_000, fine=0.005,
        sparsifier_steps=5_000, top=3, threshold=2.0,
        every=100,
    ),
    "gisette": Settings(
        gap=0.1, most_steps=10_000, coarse=0.05,
        variance_steps=15_000, fine=0.05,
        sparsifier_steps=3_000, top=50, threshold=4.0,
        every=100,
    ),
}  # fmt: skip
SMALL_SETTINGS = {
    "a9a": Settings(
        gap=0.02, most_steps=2000, coarse=0.05,
        variance_steps=4500, fine=0.01,
        sparsifier_steps=2500, top=1, threshold=1.0,
        every=20,
    ),
    "w8a": Settings(
        gap=0.15, most_steps=2000, coarse=0.05,
        variance_steps=1000, fine=0.01,
        sparsifier_steps=1000, top=1, threshold=0.3,
        every=20,
    ),
    "gisette": Settings(
        gap=0.15, most_steps=2000, coarse=0.05,
        variance_steps=1000, fine=0.05,
        sparsifier_steps=1000, top=2, threshold=4.0,
        every=20,
    ),
}  # fmt: skip


def table(results: list[Result]) -> str:
    """Markdown, one table an experiment, one row a problem and seed."""
    lines = []
    for experiment in EXPERIMENTS:
        rows = [result for result in results if result.experiment == experiment]
        if rows:
            names = list(rows[0].figures)
            lines += [
                f"### {experiment}",
                "",
                "| data | seed | " + " | ".join(names) + " |",
                "|---" * (len(names) + 2) + "|",
            ]
            for row in rows:
                cells = [
                    "never" if row.figures[name] is None else f"{row.figures[name]:.4g}" for name in names
                ]
                lines.append(f"| {row.problem} | {row.seed} | " + " | ".join(cells) + " |")
            lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="8 workers of 150 samples instead of the full sizes"
    )
    parser.add_argument(
        "--only", choices=list(EXPERIMENTS), action="append", help="this experiment (repeatable)"
    )
    parser.add_argument("--data", choices=list(KINDS), action="append", help="this kind of data (repeatable)")
    parser.add_argument(
        "--seed", type=int, action="append", help="of data and draws (repeatable); 0 by default"
    )
    parser.add_argument("--steps", type=int, help="of the second and third experiment")
    parser.add_argument(
        "--output", type=Path, default=Path("gravac-runs/ec_sgd"), help="folder for what is written"
    )
    parser.add_argument(
        "--json", action="store_true", help="figures as JSON on standard output, not as a table"
    )
    parser.add_argument("--no-plots", action="store_true", help="tables and curves only")
    options = parser.parse_args()
    if options.steps is not None and options.steps < 1:
        parser.error(f"--steps {options.steps}: must be at least 1")
    torch.set_num_threads(1)
    kinds, settings = (SMALL_KINDS, SMALL_SETTINGS) if options.quick else (KINDS, SETTINGS)
    options.output.mkdir(parents=True, exist_ok=True)

    begun, results = time.perf_counter(), []
    for experiment in options.only or EXPERIMENTS:
        for name in options.data or kinds:
            for seed in options.seed or [0]:
                chosen = settings[name]
                if options.steps is not None:
                    chosen = dataclasses.replace(
                        chosen, variance_steps=options.steps, sparsifier_steps=options.steps
                    )
                results.append(EXPERIMENTS[experiment](kinds[name], chosen, seed))
    summary = {
        "quick": options.quick,
        "seconds": time.perf_counter() - begun,
        "results": [dataclasses.asdict(result) for result in results],
    }
    text = table(results)
    (options.output / "ec_sgd.json").write_text(json.dumps(summary))
    (options.output / "ec_sgd.md").write_text(text)
    drawing = not options.no_plots and plots.available()
    drawn = [plots.plot(result, options.output) for result in results] if drawing else []
    if options.json:
        short = [{k: v for k, v in result.items() if k != "runs"} for result in summary["results"]]
        print(json.dumps(summary | {"results": short}))
        return
    print(text)
    what = f"{len(drawn)} plots" if drawn else "no plots"
    if not options.no_plots and not drawing:
        what += " (matplotlib is not installed)"
    print(f"{summary['seconds']:.0f} s; tables, curves and {what} in {options.output}")


if __name__ == "__main__":
    main()
