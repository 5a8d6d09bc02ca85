"""``gravac pin``, ``dense``, ``pause`` and ``resume``: an operator's order to a running job."""

import getpass
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
from pydantic import ValidationError

from gravac.protocol import Decision
from gravac.protocol.orders import Override
from gravac.wording import meant, printable
from gravac_controller.cli.source import DEFAULT_FOLDER, DEFAULT_URL, Nothing
from gravac_controller.client import (
    Client,
    ControllerError,
    NoController,
    OverrideState,
    Refused,
    owner_control_token,
    running_controllers,
)

Action = Literal["pin", "dense", "pause", "resume"]
CONTROL_TOKEN = "GRAVAC_CONTROLLER_CONTROL_TOKEN"
POLL_SECONDS = 0.2
TRIES = 5
"""How often an order is given again because a window ended between looking and ordering."""


def _steering(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that all four commands have."""
    options = (
        click.option("--url", help="Address of the controller; without it, the running one that has JOB."),
        click.option("--note", default="", help="Why, for the journal, the page and the log."),
        click.option("--actor", help="Who gives the order, for the journal [your user name]."),
        click.option(
            "--wait",
            "wait_seconds",
            type=click.FloatRange(min=0, max=86400),
            default=60.0,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait for the decision that obeys; 0: only give the order.",
        ),
        click.option(
            "--control-token-file",
            type=click.Path(path_type=Path, dir_okay=False),
            help=f"File with the controller's control token; {CONTROL_TOKEN} does the same. Not needed by the owner of "
            "the data folder where the controller was started with --owner-may-steer.",
        ),
        click.option(
            "--data-dir",
            type=click.Path(path_type=Path),
            default=DEFAULT_FOLDER,
            show_default=True,
            help="Folder of the journals, to find the controllers that run on it.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("job")
@click.argument("cf", type=click.FloatRange(min=1, max=1e9))
@_steering
def pin(job: str, cf: float, **given: Any) -> None:
    """Have JOB send compression factor CF from the next window on, whatever its gain; 1 is dense.

    The policy is not asked until `gravac resume JOB`. Steering is off unless the controller was started with it:
    `gravac serve --owner-may-steer`, or GRAVAC_STEERING=owner for a controller that a training starts.

    \b
    Example:
      gravac pin my-job 25 --note "20 was fine all week"
    """
    _give("pin", job, cf, **given)


@click.command()
@click.argument("job")
@_steering
def dense(job: str, **given: Any) -> None:
    """Have JOB send whole gradients from the next window on, until `gravac resume JOB`.

    \b
    Example:
      gravac dense my-job --note "the loss looks odd"
    """
    _give("dense", job, None, **given)


@click.command()
@click.argument("job")
@_steering
def pause(job: str, **given: Any) -> None:
    """Have JOB stop exploring and hold what it had settled on, until `gravac resume JOB`.

    \b
    Example:
      gravac pause my-job
    """
    _give("pause", job, None, **given)


@click.command()
@click.argument("job")
@_steering
def resume(job: str, **given: Any) -> None:
    """Give the decision about JOB back to its policy, which goes on from where it was.

    \b
    Example:
      gravac resume my-job
    """
    _give("resume", job, None, **given)


@dataclass(frozen=True)
class Outcome:
    """What came of an order. ``decision``: the one that obeys it; None: not yet. ``later``: a later order in force."""

    order: Override | None
    decision: Decision | None = None
    later: Override | None = None
    ended: bool = False


def _give(
    action: Action,
    job: str,
    cf: float | None,
    *,
    url: str | None,
    note: str,
    actor: str | None,
    wait_seconds: float,
    control_token_file: Path | None,
    data_dir: Path,
    as_json: bool,
) -> None:
    token = _control_token(control_token_file)
    name = _user() if actor is None else actor
    try:
        with _controller_of(job, url, data_dir, token) as client:
            seen = _order(client, job, action, cf, name, note)
            outcome = _outcome(client, job, seen, wait_seconds)
            where = client.url
    except ControllerError as error:
        raise Nothing(printable(str(error))) from None
    if as_json:
        order, decision = outcome.order, outcome.decision
        facts = {
            "url": where,
            "job": job,
            "order": None if order is None else order.model_dump(mode="json"),
            "decision": None if decision is None else decision.model_dump(mode="json"),
        }
        click.echo(json.dumps(facts))
    else:
        for line in _told(job, outcome, wait_seconds):
            click.echo(printable(line))


def _order(
    client: Client, job: str, action: Action, cf: float | None, actor: str, note: str
) -> OverrideState:
    """Give the order about what holds now. Raises ControllerError, and click's own for what is no order."""
    for left in reversed(range(TRIES)):
        try:
            return client.order(job, action, actor=actor, current=client.override(job), cf=cf, note=note)
        except ValidationError as error:
            field = str(error.errors()[0]["loc"][0])
            raise click.UsageError(f"--{field}: {error.errors()[0]['msg']}") from None
        except Refused as refused:
            if refused.status != 412 or not left:
                raise
    raise AssertionError


def _outcome(client: Client, job: str, given: OverrideState, seconds: float) -> Outcome:
    """Wait for the decision that obeys. Raises ControllerError."""
    order, until = given.view.waiting, time.monotonic() + seconds
    if order is None:  # nothing to resume
        return Outcome(None)
    while True:
        view = client.override(job).view
        if view.waiting is None or view.epoch > order.epoch:
            first = next(client.decisions(job, epoch=order.epoch + 1, changed=True), None)
            later = view.waiting or view.in_force
            return Outcome(
                order,
                None if first is None else first.decision,
                later if later is not None and later != order else None,
            )
        if client.job(job).state == "ended":
            return Outcome(order, ended=True)
        if time.monotonic() >= until:
            return Outcome(order)
        time.sleep(POLL_SECONDS)


def _told(job: str, outcome: Outcome, waited: float) -> Iterator[str]:
    if outcome.order is None:
        yield f"{job}: no order is in force, so there is nothing to resume: the policy decides."
    elif outcome.decision is not None:
        yield f"{job}, epoch {outcome.decision.epoch}: {outcome.decision.reason}"
        if outcome.later is not None:
            yield f"{job}: {outcome.later.actor} gave another order since: {outcome.later.action}."
    elif outcome.ended:
        yield f"{job} has ended; no window followed that could obey."
    else:
        none = f", but none has ended in {waited:g} s" if waited else ""
        yield f"{job}: the order was taken. It takes effect with the next window{none}."


def _controller_of(job: str, url: str | None, data_dir: Path, token: str | None) -> Client:
    """The controller at ``url``, or the running one that has the job. Raises ControllerError, Nothing."""
    if url is not None:
        try:
            return Client(url, token or owner_control_token(data_dir, url))
        except ValueError as error:
            raise click.UsageError(f"--{error}") from None
    known, asked = list[str](), list[str]()
    for client in (*running_controllers(data_dir, token, steering=True), Client(DEFAULT_URL, token)):
        try:
            names = [one.job for one in client.jobs()]
        except NoController:
            continue
        if job in names:
            return client
        known += names
        asked.append(client.url)
        client.close()
    if not asked:
        raise Nothing(
            f"no controller runs on the journals in {data_dir}, and none answers at {DEFAULT_URL}: name one with "
            "--url, or the folder with --data-dir"
        )
    listed = ", ".join(known) or "none"
    raise Nothing(
        printable(
            f"no job {job!r}{meant(job, known)} at {', '.join(asked)}; there: {listed}. Or name a --url"
        )
    )


def _control_token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(CONTROL_TOKEN) or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Nothing(f"--control-token-file {file} cannot be read: {error}") from None


def _user() -> str:
    """The user's name as an order takes it."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):
        name = ""
    return re.sub(r"[^A-Za-z0-9._@+-]", "-", name)[:64].lstrip("._@+-") or "operator"
