"""``gravac export``: export a trace for other tools."""

from collections.abc import Iterator
from pathlib import Path

import click

from gravac.traces import TraceError
from gravac.wording import display_path, printable
from gravac_controller.cli.source import CannotUse, TraceFile
from gravac_controller.errors import MissingExtra
from gravac_controller.export.series import write_openmetrics, write_tensorboard
from gravac_controller.export.tables import of_windows, write_csv, write_parquet
from gravac_controller.report.summary import empty_job, windows_of
from gravac_controller.views.models import WindowView


@click.command()
@click.argument("trace", type=TraceFile())
@click.option(
    "--to",
    "form",
    type=click.Choice(["csv", "parquet", "tensorboard", "openmetrics"]),
    required=True,
    help="Format. parquet needs pip install 'gravac[parquet]', tensorboard 'gravac[tensorboard]'.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The file to write; a folder for tensorboard.",
)
def export(trace: Path, form: str, output: Path) -> None:
    """Export the windows of TRACE for other tools.

    csv and parquet: a table with one row per window (the columns of the page's CSV). Unknown values are
    empty. tensorboard: event files, one scalar per column. openmetrics: the metrics of the controller's /metrics after
    each window, which promtool converts to blocks for Prometheus.

    TRACE is the journal of a job, gzipped or not, its folder, or its name in GRAVAC_DATA_DIR, else in gravac-runs.

    \b
    Examples:
      gravac export gravac-runs/my-job --to csv -o my-job.csv
      gravac export gravac-runs/my-job --to openmetrics -o my-job.om
      promtool tsdb create-blocks-from openmetrics my-job.om /var/lib/prometheus
    """
    live, notes = empty_job(), list[str]()
    both = windows_of(trace, live, notes)
    windows: Iterator[WindowView] = (view for view, _ in both)
    try:
        match form:
            case "csv":
                written = write_csv(of_windows(windows), output)
            case "parquet":
                written = write_parquet(of_windows(windows), output)
            case "tensorboard":
                written = write_tensorboard(windows, output)
            case _:
                written = write_openmetrics(both, live, output)
    except (TraceError, MissingExtra, OSError) as error:
        raise CannotUse(printable(str(error))) from None
    click.echo(f"{display_path(output)}: {written} windows of {printable(live.spec_and_decision()[0].job)}")
    for note in notes:
        click.echo(f"note: {printable(note)}", err=True)
