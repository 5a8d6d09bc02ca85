"""``gravac ui``: the live page on a trace file."""

from pathlib import Path

import click

from gravac.traces import TraceError
from gravac.wording import printable
from gravac_controller.cli.source import CannotUse, TraceFile, active_part
from gravac_controller.replay.job import ReplayedJob
from gravac_controller.replay.server import serve_trace
from gravac_controller.server.listen import ListenError


@click.command()
@click.argument("trace", type=TraceFile())
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="TCP port [any free port].")
def ui(trace: Path, port: int) -> None:
    """Show TRACE on the live page, at any window from the first to the last.

    TRACE is the journal of a job, gzipped or not, its folder, or its name in GRAVAC_DATA_DIR, else in gravac-runs; also
    of a running job, up to its last window. A long trace opens at once with the windows read so far. A slider selects
    the window that is shown. The page is served to this machine only and is read-only. Ctrl-C ends it.

    \b
    Example:
      gravac ui gravac-runs/demo-lm-20261121-093000/journal.jsonl
    """

    def started(url: str, job: ReplayedJob) -> None:
        windows = job.live.counts.windows
        last = "no window yet" if job.live.latest is None else f"{windows} windows"
        more = "" if job.done and job.windows == windows else " so far, still reading"
        click.echo(f"{printable(job.name)}, {last}{more}, at {url}")

    def finished(job: ReplayedJob) -> None:
        for note in job.notes:
            click.echo(f"note: {printable(note)}", err=True)
        if job.problem:
            click.echo(f"the trace cannot be read to its end: {printable(job.problem)}", err=True)

    try:
        serve_trace(active_part(trace), port, started, finished)
    except (TraceError, ListenError, OSError) as error:
        raise CannotUse(printable(str(error))) from None
