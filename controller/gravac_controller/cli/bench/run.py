"""How a benchmark is run from the command line: scratch space, an orderly end, the figures in the form asked for."""

import json
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from gravac_controller.bench.places import Tell
from gravac_controller.bench.program import ProgramFailed
from gravac_controller.bench.ranks import RanksFailed

Work = Callable[[Path, Tell], dict[str, Any]]
Show = Callable[[dict[str, Any], Console], None]
WIDTH = 132
"""Columns where nobody looks."""


def perform(work: Work, show: Show, as_json: bool) -> dict[str, Any]:
    """Do ``work``, ``show`` its figures, and print them as JSON if asked for. Progress goes to stderr.

    Ends the program with code 1 and what was said when measuring failed, with 130 when interrupted.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends in order, as Ctrl-C does
    try:
        with tempfile.TemporaryDirectory(prefix="gravac-bench-") as scratch:
            result = work(Path(scratch), lambda line: click.echo(line, err=True))
    except KeyboardInterrupt:
        click.echo("Stopped; everything it started has ended.", err=True)
        sys.exit(130)
    except (ProgramFailed, RanksFailed) as error:
        raise click.ClickException(str(error)) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    console = Console(stderr=as_json, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    show(result, console)
    if as_json:
        click.echo(json.dumps(result))
    return result
