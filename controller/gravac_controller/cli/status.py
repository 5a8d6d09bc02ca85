"""``gravac status``: the jobs of controllers, or of a trace."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from gravac.traces import TraceError
from gravac.wording import format_plan, printable
from gravac_controller.cli.source import Source, SourceError, source_options, sources, token_of
from gravac_controller.cli.wording import number
from gravac_controller.client import ControllerError
from gravac_controller.views.models import JobView


@click.command()
@click.argument("source", required=False)
@source_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def status(source: str | None, data_dir: Path, token_file: Path | None, as_json: bool) -> None:
    """Show jobs, one line each, and below them the reasons of the current decisions.

    SOURCE is the address of a controller or a trace file. By default: the controller that GRAVAC_CONTROLLER names, else
    all that serve the journals in ./gravac-runs, else the newest journals. Open the address in a browser for the live
    page.

    \b
    Examples:
      gravac status
      gravac status http://127.0.0.1:8756
      gravac status gravac-runs/my-job/journal.jsonl
    """
    found = [_read(one) for one in sources(source, data_dir, token_of(token_file))]
    if as_json:
        shown = [
            {"url": where, "jobs": [_facts(job) for job in jobs], "unreadable": unreadable}
            for where, jobs, unreadable in found
        ]
        click.echo(json.dumps(shown[0] if len(shown) == 1 else {"controllers": shown}))
        return
    console = Console(highlight=False, markup=False)
    for where, jobs, unreadable in found:
        if not jobs:
            click.echo(f"The controller at {where} has no jobs yet.")
        elif source is None or len(found) > 1:
            console.print(f"At {where}:")
        if jobs:
            console.print(_table(jobs))
        for job in jobs:
            console.print(f"{job.job}: {printable(job.decision.reason)}", soft_wrap=not console.is_terminal)
        for name, why in unreadable.items():
            console.print(f"{name} is not served: {printable(why)}")


def _read(source: Source) -> tuple[str, list[JobView], dict[str, str]]:
    try:
        return source.where, source.jobs(), source.unreadable()
    except (ControllerError, TraceError) as error:
        hint = ". A training logs its controller's address at its start; `gravac serve` starts a permanent controller"
        text = printable(str(error))
        raise SourceError(text + (hint if "no controller answers" in text else "")) from None


def _table(jobs: list[JobView]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("Job", "State", "Ranks", "Step", "Plan", "Phase", "η", "Useful/s"):
        table.add_column(name, no_wrap=True)
    for job in jobs:
        table.add_row(
            job.job,
            job.state,
            str(job.world_size),
            str(job.totals.steps),
            format_plan(job.codec, job.cf),
            job.phase,
            *_learning(job),
        )
    return table


def _learning(job: JobView) -> tuple[str, str]:
    """Statistical efficiency and useful throughput of the last window."""
    view = job.latest
    if view is None:
        return "–", "–"
    return number(view.efficiency), number(view.useful_samples_per_second)


def _facts(job: JobView) -> dict[str, Any]:
    names = (
        "job",
        "state",
        "policy",
        "compressor",
        "world_size",
        "epoch",
        "phase",
        "codec",
        "cf",
        "windows",
        "steps",
    )
    figures = (
        "efficiency",
        "efficiency_low",
        "efficiency_high",
        "samples_per_second",
        "useful_samples_per_second",
        "compression_throughput",
    )
    order = None if job.override is None else job.override.model_dump(mode="json")
    facts = {name: getattr(job, name) for name in names}
    facts |= {name: None if job.latest is None else getattr(job.latest, name) for name in figures}
    return {**facts, "rule": job.decision.rule, "reason": job.decision.reason, "override": order}
