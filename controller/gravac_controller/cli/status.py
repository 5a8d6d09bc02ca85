"""``gravac status``: the jobs of controllers, or of a trace, once or as they go on."""

import json
from pathlib import Path
from typing import Any

import click

from gravac.signals import figures
from gravac.signals.figures import LinkUse
from gravac.traces import TraceError
from gravac.wording import printable
from gravac_controller.cli.screen import listing
from gravac_controller.cli.source import (
    Source,
    SourceError,
    asked,
    choose,
    data_dir_option,
    json_option,
    one_source,
    reading_token,
    sources,
)
from gravac_controller.cli.watch import watch
from gravac_controller.cli.wording import links, printer
from gravac_controller.client import ControllerError
from gravac_controller.views.models import JobView


@click.command()
@click.argument("words", nargs=-1, metavar="[JOB] [SOURCE]")
@click.option(
    "--watch", "watched", is_flag=True, help="Keep showing plan, reasons, step time, ranks and decisions."
)
@data_dir_option
@json_option
def status(words: tuple[str, ...], watched: bool, data_dir: Path, as_json: bool) -> None:
    """Show jobs, one line each, and below them the reasons of the current decisions.

    With JOB, show only that one. SOURCE is the address of a controller or a trace file. By default: the controller that
    GRAVAC_CONTROLLER names, else all that serve the journals in ./gravac-runs, else the newest journals. Open the
    address in a browser for the live page.

    --watch shows JOB in detail [the only one that runs], on a screen that updates until Ctrl-C. Where the output is no
    terminal it prints a line for each window and for each decision that changes something; with --json, an object for
    each window.

    \b
    Examples:
      gravac status
      gravac status my-job
      gravac status my-job --watch
      gravac status http://127.0.0.1:8756
      gravac status gravac-runs/my-job/journal.jsonl
    """
    given, token = asked(words), reading_token()
    try:
        if watched:
            watch(one_source(given.source, data_dir, token, given.job), given.job, as_json)
            return
        if given.job is None:
            found = [_read(source, None) for source in sources(given.source, data_dir, token)]
        else:
            found = [_read(one_source(given.source, data_dir, token, given.job), given.job)]
    except (ControllerError, TraceError) as error:
        hint = ". A training logs its controller's address at its start; `gravac serve` starts a permanent controller"
        text = printable(str(error))
        raise SourceError(text + (hint if "no controller answers" in text else "")) from None
    if as_json:
        shown = [
            {"url": where, "jobs": [_facts(job) for job in jobs], "unreadable": unreadable}
            for where, jobs, unreadable in found
        ]
        click.echo(json.dumps(shown[0] if len(shown) == 1 else {"controllers": shown}))
        return
    console = printer()
    for where, jobs, unreadable in found:
        if not jobs:
            click.echo(f"The controller at {where} has no jobs yet.")
        elif given.source is None or len(found) > 1:
            console.print(f"At {where}:")
        if jobs:
            console.print(listing(jobs))
        for job in jobs:
            console.print(f"{job.job}: {printable(job.decision.reason)}")
            if used := _links(job):
                console.print(f"{job.job}: {links(used)}")
        for name, why in unreadable.items():
            console.print(f"{name} is not served: {printable(why)}")


def _read(source: Source, wanted: str | None) -> tuple[str, list[JobView], dict[str, str]]:
    jobs = source.jobs(wanted)
    if wanted is not None:
        return source.where, [choose(jobs, wanted, source.where)], {}
    if source.left_out:
        click.echo(f"{source.left_out} older jobs at {source.where} have ended and are not shown.", err=True)
    return source.where, jobs, source.unreadable()


def _links(job: JobView) -> dict[str, LinkUse]:
    return {} if job.latest is None else figures.links(job.latest.report)


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
    of_window = (
        "efficiency",
        "efficiency_low",
        "efficiency_high",
        "samples_per_second",
        "useful_samples_per_second",
        "compression_throughput",
        "wire_cf",
    )
    order = None if job.override is None else job.override.model_dump(mode="json")
    facts = {name: getattr(job, name) for name in names}
    facts |= {name: None if job.latest is None else getattr(job.latest, name) for name in of_window}
    facts["links"] = {level: used._asdict() for level, used in _links(job).items()} or None
    return {**facts, "rule": job.decision.rule, "reason": job.decision.reason, "override": order}
