"""``gravac bench tournament``: what plans do to learning, on several tasks, and a summary of the rows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from gravac.wording import format_percent, printable
from gravac_controller.cli.whatif import quantities
from gravac_controller.cli.wording import Listing, number, seconds
from gravac_controller.errors import MissingExtra
from gravac_lab.bench import tournament as runs
from gravac_lab.bench.tournament import PRESETS, Tournament
from gravac_lab.cli import options, output
from gravac_lab.cli.tournament_plot import draw
from gravac_lab.tournament import RowError, Run, read_rows
from gravac_lab.tournament.curves import TARGET

TASKS = ("logistic", "lm")
ROWS = Path("gravac-tournament.jsonl")


@click.command(short_help="What codecs and strengths do to learning, with simulated ranks.")
@click.option(
    "--tasks",
    "tasks",
    multiple=True,
    default=TASKS,
    show_default=True,
    metavar="TASK",
    help="Task: lm, gpt, resnet, vgg, vit, logistic or digits, with settings as in gpt:size=3m. Repeatable.",
)
@click.option(
    "--plans",
    multiple=True,
    default=("nearest:levels=7@10", "nearest:levels=3@17", "topk+bf16@10", "topk+bf16@100"),
    show_default=True,
    metavar="PLAN",
    help="Plan: CODEC@CF, CODEC@CF/MEMORY or CODEC@CF/MEMORY/COLLECTIVE, dense:repeat=N (dense with rounding errors), "
    "or a preset: " + ", ".join(PRESETS) + ". Repeatable. Dense and alone are always run.",
)
@click.option(
    "--ranks",
    "sizes",
    type=click.IntRange(1, 64),
    multiple=True,
    default=(4,),
    show_default=True,
    help="Simulated ranks. Repeatable.",
)
@click.option(
    "--seeds",
    type=click.IntRange(0, 2**20),
    multiple=True,
    default=(1,),
    show_default=True,
    help="Seed of weights, data and codecs. Repeatable.",
)
@click.option(
    "--steps", type=click.IntRange(2, 1_000_000), default=150, show_default=True, help="Steps of a run."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=ROWS,
    show_default=True,
    help="File of rows, one JSON object a line. Runs that it has are not repeated.",
)
@click.option(
    "--summary",
    "files",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="Run nothing: summarize the rows of this file. Repeatable.",
)
@click.option(
    "--link",
    callback=quantities.single(quantities.bandwidth),
    metavar="RATE",
    help="Also times to target on links of this bandwidth: 100mbit. Needs --compute.",
)
@click.option(
    "--compute",
    type=click.FloatRange(1e-6, 1e4),
    metavar="SECONDS",
    help="Computation of a step of one rank, for --link.",
)
@click.option(
    "--target",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=TARGET,
    show_default=True,
    help="The target of times to target is the held-out loss that dense has after this share of its steps.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Also draw loss curves and retained value, as SVG; needs pip install 'gravac[plots]'.",
)
@options.as_json
def tournament(
    tasks: tuple[str, ...],
    plans: tuple[str, ...],
    sizes: tuple[int, ...],
    seeds: tuple[int, ...],
    steps: int,
    out: Path,
    files: tuple[Path, ...],
    link: float | None,
    compute: float | None,
    target: float,
    plot: Path | None,
    as_json: bool,
) -> None:
    """What codecs and strengths do to learning: tasks by plans by ranks by seeds, with simulated ranks.

    All ranks learn in one process through the real codecs and error memories. What a plan does to learning does not
    depend on a link, so a run is made once; times to target follow from it and the time of a step. Each run is a row of
    --out with its whole curve. A tournament that was stopped goes on where it stopped.

    \b
    Examples:
      gravac bench tournament --tasks lm --plans frontier --seeds 1 --seeds 2 --seeds 3
      gravac bench tournament --summary gravac-tournament.jsonl --plot plots
      gravac bench tournament --summary gravac-tournament.jsonl --link 100mbit --compute 0.2
    """
    if link is not None and compute is None:
        raise click.UsageError("--link needs the computation of a step: add for example --compute 0.2")
    rows = list(files)

    def work(_: Path, progress: Callable[[str], None]) -> dict[str, Any]:
        if not files:
            asked = Tournament(tasks=tasks, plans=plans, ranks=sizes, seeds=seeds, steps=steps, out=out)
            runs.run(asked, progress)
            rows.append(out)
        known = read_rows(rows)
        answer = runs.summary(known, _step_seconds(link, compute), target)
        if plot is not None:
            answer["plots"] = [str(path) for path in draw(known, answer["rows"], plot)]
        return answer | {"link_bits_per_second": link}

    try:
        output.perform(work, show, as_json)
    except RowError as error:
        raise click.UsageError(printable(str(error))) from None
    except MissingExtra as error:
        raise click.ClickException(f"--plot: {error}") from None
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None


def _step_seconds(link: float | None, compute: float | None) -> Callable[[Run], float] | None:
    """Return the duration of a step of a run, predicted for the link; None without one."""
    if link is None or compute is None:
        return None
    return lambda run: predicted(run, link, compute)


def predicted(run: Run, bits_per_second: float, compute_seconds: float) -> float:
    """Return the predicted duration of a step of a run. Needs torch.

    Raises:
        RowError: The plan of the run is not known.
    """
    from gravac.predict.nominal import link
    from gravac_lab.tournament.run_steps import step_seconds

    try:
        return step_seconds(run, link(bits_per_second), compute_seconds)
    except ValueError as error:
        raise RowError(f"plan {run.plan!r}: {error}") from None


def show(result: dict[str, Any], console: Console) -> None:
    """Print a table for each task and number of ranks."""
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in result["rows"]:
        groups.setdefault((row["task"], row["ranks"], row["steps"]), []).append(row)
    timed = any(row["step_seconds"] is not None for row in result["rows"])
    for (task, ranks, steps), rows in groups.items():
        most = max(len(row["seeds"]) for row in rows)
        console.print(
            f"{printable(task)} ({printable(rows[0]['optimizer'])}), {ranks} simulated ranks, {steps} steps, "
            f"{most} {'seed' if most == 1 else 'seeds'}:",
            style="bold",
        )
        console.print(_table(rows, timed))
    console.print(
        "Medians over seeds (lowest to highest). η: steps dense needs / steps the plan needs, the median over levels "
        "of the later part of dense's curve. Retained: share of what communication is worth. τ: backlog. Progress: "
        "share of the way that dense gradients would have taken the parameters.",
        style="dim",
    )
    if timed:
        share = format_percent(result["target"])
        console.print(f"Target: the held-out loss that dense has after {share} of its steps.", style="dim")
    for path in result.get("plots", ()):
        console.print(f"Wrote {printable(path)}")


def _table(rows: Sequence[dict[str, Any]], timed: bool) -> Any:
    heads = ["Wire CF", "Held-out loss", "Against dense", "η", "Retained", "τ", "Progress", "Gain"]
    leaving = ("Gain", "Progress", "τ", "Step", "Retained", "Against dense", "To target", "Wire CF")
    heads += ("Step", "To target", "Faster") if timed else ()
    table = Listing(("Plan",), heads, leaving=leaving)
    for row in rows:
        cells = [
            number(row["wire_cf"]),
            _spread(row["loss"], "{:.4f}".format),
            _spread(row["above_dense"], "{:+.1%}".format),
            _spread(row["efficiency"], "{:.2f}".format),
            _spread(row["retained"], "{:.0%}".format),
            *(_spread(row[name], "{:.2f}".format) for name in ("backlog", "progress", "gain")),
        ]
        if timed:
            reached, seeds = row["reached"], len(row["seeds"])
            some = "" if reached == seeds else f" ({reached} of {seeds})"
            target = _spread(row["seconds"], seconds)
            cells += [
                seconds(row["step_seconds"]),
                "not reached" if not reached else target + some,
                _spread(row["speedup"], "{:.2f}x".format),
            ]
        table.add_row(printable(row["plan"]), *cells)
    return table


def _spread(spread: dict[str, float] | None, text: Callable[[float], str]) -> str:
    if spread is None:
        return "–"
    middle, low, high = (text(spread[name]) for name in ("median", "low", "high"))
    return middle if low == high else f"{middle} ({low} – {high})"
