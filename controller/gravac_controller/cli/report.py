"""``gravac report``: a trace, or several, as one page or a picture."""

from pathlib import Path

import click

from gravac.traces import TraceError
from gravac.wording import display_path, printable
from gravac_controller.cli.wording import size
from gravac_controller.extras import MissingExtra
from gravac_controller.report.figure import svg
from gravac_controller.report.lines import lines
from gravac_controller.report.page import page
from gravac_controller.report.png import write_png
from gravac_controller.report.told import MOST_WINDOWS, Told, labels, tell, thinning_note

MOST_TRACES = 12
"""More lines cannot be told apart."""


class CannotReport(click.ClickException):
    """A trace cannot be read, or a file not be written; the message says why."""

    exit_code = 2


@click.command()
@click.argument(
    "traces", metavar="TRACE...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True)
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The page, an HTML file."
)
@click.option(
    "--svg", "picture", type=click.Path(path_type=Path, dir_okay=False), help="CF and gain over steps."
)
@click.option(
    "--png",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The same as pixels; needs pip install 'gravac[plots]'.",
)
@click.option(
    "--windows",
    type=click.IntRange(100, 100_000),
    default=MOST_WINDOWS,
    show_default=True,
    help="Most windows of a trace to hold; of longer ones those that stand out, and it says so.",
)
def report(
    traces: tuple[Path, ...], output: Path | None, picture: Path | None, png: Path | None, windows: int
) -> None:
    """Write TRACE as one self-contained page: the live page's charts, tables and reasons, without a server.

    The file opens from disk and asks nothing of any host; send it, or keep it with the run. Several traces are laid
    over each other for comparison, with a table of differences against the first; below, each job as a whole.

    TRACE is a job's journal, or the folder it is in; gzipped is fine.

    \b
    Examples:
      gravac report gravac-runs/demo-lm-20261121-093000 -o demo.html
      gravac report dense.jsonl.gz gravac.jsonl.gz -o both.html --svg both.svg
    """
    if output is None and picture is None and png is None:
        raise click.UsageError("say what to write: -o FILE.html, --svg FILE.svg or --png FILE.png")
    if len(traces) > MOST_TRACES:
        raise click.UsageError(f"at most {MOST_TRACES} traces fit one report, got {len(traces)}")
    try:
        told = [tell(path, windows) for path in traces]
        if output is not None:
            _write(output, page(told))
        drawn = [lines(one, name) for one, name in zip(told, labels(told), strict=True)]
        if picture is not None:
            _write(picture, svg(drawn))
        if png is not None:
            write_png(drawn, png)
            _said(png)
    except (TraceError, MissingExtra, OSError, ValueError) as error:
        raise CannotReport(printable(str(error))) from None
    for one in told:
        _notes(one)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    _said(path)


def _said(path: Path) -> None:
    click.echo(f"{display_path(path)}: {size(path.stat().st_size)}")


def _notes(told: Told) -> None:
    for note in (*told.notes, thinning_note(told)):
        if note:
            click.echo(f"note: {printable(told.path)}: {printable(note)}", err=True)
