"""``gravac report``: one or several traces as an HTML file or a figure."""

from pathlib import Path
from typing import Literal

import click

from gravac.traces import TraceError
from gravac.wording import display_path, printable
from gravac_controller.cli.source import CannotUse, TraceFile, by_ending
from gravac_controller.cli.wording import size
from gravac_controller.errors import MissingExtra
from gravac_controller.report.figure import lines_of, write_figure
from gravac_controller.report.page import page
from gravac_controller.report.summary import (
    TraceSummary,
    labels,
    summarize,
    thinning_note,
)

MOST_TRACES = 12
"""More lines cannot be distinguished."""
FORMS: dict[str, Literal["html", "svg", "png"]] = {".html": "html", ".svg": "svg", ".png": "png"}


@click.command()
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=TraceFile())
@click.option(
    "-o",
    "--output",
    "outputs",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    required=True,
    help="The file to write, by its ending: .html, or .svg or .png, a figure of CF and gain over steps, which needs "
    "pip install 'gravac[plots]'. Repeatable.",
)
def report(traces: tuple[Path, ...], outputs: tuple[Path, ...]) -> None:
    """Write TRACE as one self-contained HTML file: the charts, tables and reasons of the live page, without a server.

    The file makes no network requests: send it, or archive it with the run. Several traces are compared in shared
    charts and in a table of differences from the first; each job is also shown on its own.

    TRACE is the journal of a job, gzipped or not, its folder, or its name in GRAVAC_DATA_DIR, else in gravac-runs.

    \b
    Examples:
      gravac report gravac-runs/demo-lm-20261121-093000 -o demo.html
      gravac report dense.jsonl.gz gravac.jsonl.gz -o both.html -o both.svg
    """
    forms = [by_ending(output, FORMS, "--output") for output in outputs]
    if len(traces) > MOST_TRACES:
        raise click.UsageError(f"a report compares at most {MOST_TRACES} traces, got {len(traces)}")
    try:
        summaries = [summarize(path) for path in traces]
        jobs = [lines_of(summary, name) for summary, name in zip(summaries, labels(summaries), strict=True)]
        for output, form in zip(outputs, forms, strict=True):
            if form == "html":
                output.write_text(page(summaries), encoding="utf-8")
            else:
                write_figure(jobs, output, form)
            click.echo(f"{display_path(output)}: {size(output.stat().st_size)}")
    except (TraceError, MissingExtra, OSError, ValueError) as error:
        raise CannotUse(printable(str(error))) from None
    for summary in summaries:
        _notes(summary)


def _notes(summary: TraceSummary) -> None:
    for note in (*summary.notes, thinning_note(summary)):
        if note:
            click.echo(f"note: {printable(summary.path)}: {printable(note)}", err=True)
