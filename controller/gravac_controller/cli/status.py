"""``gravac status``: what a running controller is doing."""

import http.client
import json
from urllib.parse import quote, urlsplit

import click
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from gravac_controller.cli.wording import factor, printable
from gravac_controller.settings import DEFAULT_PORT
from gravac_controller.views import JobList, JobView

TIMEOUT_SECONDS = 5.0
MAX_BYTES = 16_000_000
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"


@click.command()
@click.argument("url", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def status(url: str | None, as_json: bool) -> None:
    """Show the jobs of the controller at URL, one line each, with the reason of the decision in force.

    A training prints its controller's address when it starts; `gravac serve` listens on port 8756 unless told
    otherwise, and that is where this looks without a URL. The same address in a browser is the live page.

    \b
    Example:
      gravac status http://127.0.0.1:8756
    """
    address = _address(url or DEFAULT_URL)
    jobs, unreadable = _jobs(address)
    if as_json:
        shown = [{**_summary(job), "reason": job.decision.reason, "rule": job.decision.rule} for job in jobs]
        click.echo(json.dumps({"url": address, "jobs": shown, "unreadable": unreadable}))
        return
    if not jobs:
        click.echo(f"The controller at {address} has no jobs yet.")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("Job", "State", "Ranks", "Step", "CF", "Phase"):
        table.add_column(name, no_wrap=True)
    table.add_column("Reason")
    for job in jobs:
        numbers = (str(job.world_size), str(job.totals.steps), factor(job.cf))
        table.add_row(job.job, job.state, *numbers, job.phase, printable(job.decision.reason))
    console = Console(highlight=False, markup=False)
    if jobs:
        console.print(table)
    for name, why in unreadable.items():
        console.print(f"{name} is not served: {printable(why)}")


def _jobs(address: str) -> tuple[list[JobView], dict[str, str]]:
    views: list[JobView] = []
    unreadable: dict[str, str] = {}
    after = ""
    try:
        while True:
            page = JobList.model_validate_json(_get(address, "/v1/jobs" + after))
            unreadable.update({job.job: job.reason for job in page.unreadable})
            answers = (_get(address, f"/v1/jobs/{quote(job.job)}") for job in page.items)
            views.extend(JobView.model_validate_json(answer) for answer in answers)
            if page.next is None:
                return views, unreadable
            after = f"?after={quote(page.next)}"
    except ValidationError:
        raise click.ClickException(
            f"what answers at {address} is not a gravac controller of this version"
        ) from None


def _address(text: str) -> str:
    """The address as scheme://host:port, whatever path came with it; http where no scheme was given."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        wrong = (
            ""
            if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            else "not an address"
        )
    except ValueError as error:
        wrong = str(error)
    if wrong:
        raise click.UsageError(f"URL {text!r}: {wrong}; write for example {DEFAULT_URL}")
    return f"{parts.scheme}://{parts.netloc}"


def _get(address: str, path: str) -> bytes:
    parts = urlsplit(address)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)
    try:
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read(MAX_BYTES)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise click.ClickException(
            f"no controller answers at {address} ({error or type(error).__name__}). A training prints its "
            "controller's address when it starts; `gravac serve` starts one that stays"
        ) from None
    if answer.status != 200:
        raise click.ClickException(
            f"{address}{path} answered {answer.status}: {printable(body[:300].decode(errors='replace'))}"
        )
    return body


def _summary(job: JobView) -> dict[str, object]:
    names = ("job", "state", "policy", "compressor", "world_size", "epoch", "phase", "cf", "windows", "steps")
    return {name: getattr(job, name) for name in names}
