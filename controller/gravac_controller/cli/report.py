"""``gravac report``: one or several traces as an HTML file or a figure."""

from pathlib import Path

import click

from gravac.traces import TraceError
from gravac.wording import display_path, printable
from gravac_controller.cli.source import CannotUse, TraceFile
from gravac_controller.cli.wording import size
from gravac_controller.errors import MissingExtra
from gravac_controller.report.figure import lines_of, write_figure
from gravac_controller.report.page import page
from gravac_controller.report.summary import (
    MOST_WINDOWS,
    TraceSummary,
    labels,
    summarize,
    thinning_note,
)

MOST_TRACES = 12
"""More lines cannot be distinguished."""


@click.command()
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=TraceFile())
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The HTML file to write."
)
@click.option(
    "--svg",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A figure of CF and gain over steps; needs pip install 'gravac[plots]'.",
)
@click.option(
    "--png",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The same figure as PNG; needs pip install 'gravac[plots]'.",
)
@click.option(
    "--windows",
    type=click.IntRange(100, 100_000),
    default=MOST_WINDOWS,
    show_default=True,
    help="Maximum number of windows of a trace in the report. Longer traces are reduced to their notable windows.",
)
def report(
    traces: tuple[Path, ...], output: Path | None, svg: Path | None, png: Path | None, windows: int
) -> None:
    """Write TRACE as one self-contained HTML file: the charts, tables and reasons of the live page, without a server.

    The file makes no network requests: send it, or archive it with the run. Several traces are compared in shared
    charts and in a table of differences from the first; each job is also shown on its own.

    TRACE is the journal of a job, gzipped or not, its folder, or its name in GRAVAC_DATA_DIR, else in gravac-runs.

    \b
    Examples:
      gravac report gravac-runs/demo-lm-20261121-093000 -o demo.html
      gravac report dense.jsonl.gz gravac.jsonl.gz -o both.html --svg both.svg
    """
    if output is None and svg is None and png is None:
        raise click.UsageError("choose an output: -o FILE.html, --svg FILE.svg or --png FILE.png")
    if len(traces) > MOST_TRACES:
        raise click.UsageError(f"a report compares at most {MOST_TRACES} traces, got {len(traces)}")
    try:
        summaries = [summarize(path, windows) for path in traces]
        if output is not None:
            output.write_text(page(summaries), encoding="utf-8")
            _written(output)
        jobs = [lines_of(summary, name) for summary, name in zip(summaries, labels(summaries), strict=True)]
        if svg is not None:
            write_figure(jobs, svg, "svg")
            _written(svg)
        if png is not None:
            write_figure(jobs, png, "png")
            _written(png)
    except (TraceError, MissingExtra, OSError, ValueError) as error:
        raise CannotUse(printable(str(error))) from None
    for summary in summaries:
        _notes(summary)


def _written(path: Path) -> None:
    click.echo(f"{display_path(path)}: {size(path.stat().st_size)}")


def _notes(summary: TraceSummary) -> None:
    for note in (*summary.notes, thinning_note(summary)):
        if note:
            click.echo(f"note: {printable(summary.path)}: {printable(note)}", err=True)
