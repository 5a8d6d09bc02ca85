"""``gravac steer``: give an order to a running job."""

import getpass
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import click
from pydantic import ValidationError

from gravac.protocol import LARGEST_CF, Decision, Override
from gravac.wording import did_you_mean, printable, validator_message
from gravac_controller.cli.source import (
    ADDRESS,
    SourceError,
    address_in_environment,
    data_dir_option,
    json_option,
)
from gravac_controller.client import (
    Client,
    ControllerError,
    NoController,
    OverrideState,
    Refused,
    owner_control_token,
    running_controllers,
)
from gravac_controller.client.connection import TimedOut

Action = Literal["pin", "dense", "pause", "resume"]
CONTROL_TOKEN = "GRAVAC_CONTROLLER_CONTROL_TOKEN"
POLL_SECONDS = 0.2
TRIES = 5
"""Attempts to give an order where a window ends between reading the state and giving the order."""


@click.command()
@click.argument("job")
@click.argument("action", type=click.Choice(get_args(Action)))
@click.argument("cf", required=False, type=click.FloatRange(min=1, max=LARGEST_CF))
@click.option(
    "--codec",
    help="With pin: codec to send with, the job's compressor or one that its policy may choose [one that reaches CF, "
    "the one in force if it does].",
)
@click.option("--note", default="", help="Reason, for the journal, the live page and the log.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0, max=86400),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until the order takes effect; 0: do not wait.",
)
@data_dir_option
@json_option
def steer(job: str, action: Action, cf: float | None, codec: str | None, **given: Any) -> None:
    """Give JOB an order, which is in force from the next window on.

    \b
    pin CF   send compression factor CF, regardless of its gain; 1 is dense
    dense    send uncompressed gradients
    pause    stop exploring: use the CF that the policy had chosen
    resume   give the decision back to the policy, which continues where it was

    Where the codec in force does not reach CF, another one of the job sends it. If none does, the order is refused with
    a list of what can be pinned. An order ends by `resume`, and when the training ends or starts again. The journal
    names your user. Steering is off by default. Enable it with `gravac serve --owner-may-steer`, or with
    GRAVAC_STEERING=owner for a controller that a training starts: the owner of the data folder then needs no token.
    Others set GRAVAC_CONTROLLER_CONTROL_TOKEN, and GRAVAC_CONTROLLER to an address on another machine.

    \b
    Examples:
      gravac steer my-job pin 25 --note "20 was fine all week"
      gravac steer my-job dense --note "the loss looks odd"
      gravac steer my-job resume
    """
    if action == "pin" and cf is None:
        raise click.UsageError(f"pin needs a compression factor: gravac steer {job} pin 25")
    for name, value in (("CF", cf), ("--codec", codec)):
        if action != "pin" and value is not None:
            raise click.UsageError(f"{name} {value} is for pin; omit it with {action}")
    _give(action, job, cf, codec, **given)


@dataclass(frozen=True)
class OrderOutcome:
    """The result of an order. ``decision``: the one that follows it (None: not yet). ``later``: a newer order."""

    order: Override | None
    decision: Decision | None = None
    later: Override | None = None
    ended: bool = False


def _give(
    action: Action,
    job: str,
    cf: float | None,
    codec: str | None,
    *,
    note: str,
    wait_seconds: float,
    data_dir: Path,
    as_json: bool,
) -> None:
    try:
        with _controller_of(job, data_dir, os.environ.get(CONTROL_TOKEN) or None) as client:
            seen = _order(client, job, action, cf, codec, note)
            outcome = _outcome(client, job, seen, wait_seconds)
            where = client.url
    except ControllerError as error:
        raise SourceError(printable(str(error))) from None
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
        for line in _lines(job, outcome, wait_seconds):
            click.echo(printable(line))
        if codec is None and outcome.order is not None and outcome.order.codec is not None:
            click.echo(
                printable(
                    f"{job}: the codec in force does not send {cf:g}x; {outcome.order.codec} does. Choose with --codec."
                )
            )


def _order(
    client: Client, job: str, action: Action, cf: float | None, codec: str | None, note: str
) -> OverrideState:
    """Give the order, based on the current state. Raises ControllerError; click.UsageError for an invalid order."""
    for left in reversed(range(TRIES)):
        try:
            current = client.override(job)
            return client.order(job, action, actor=_user(), current=current, cf=cf, codec=codec, note=note)
        except ValidationError as error:
            field = str(error.errors()[0]["loc"][0])
            raise click.UsageError(f"--{field}: {validator_message(error.errors()[0]['msg'])}") from None
        except Refused as refused:
            if refused.status != 412 or not left:
                raise
    raise AssertionError


def _outcome(client: Client, job: str, state: OverrideState, seconds: float) -> OrderOutcome:
    """Wait for the decision that follows the order. Raises ControllerError."""
    order, until = state.view.waiting, time.monotonic() + seconds
    if order is None:  # nothing to resume
        return OrderOutcome(None, ended=client.job(job).state == "ended")
    while True:
        view = client.override(job).view
        if view.waiting is None or view.epoch > order.epoch:
            first = next(client.decisions(job, epoch=order.epoch + 1, changed=True), None)
            later = view.waiting or view.in_force
            return OrderOutcome(
                order,
                None if first is None else first.decision,
                later if later is not None and later != order else None,
            )
        if client.job(job).state == "ended":
            return OrderOutcome(order, ended=True)
        if time.monotonic() >= until:
            return OrderOutcome(order)
        time.sleep(POLL_SECONDS)


def _lines(job: str, outcome: OrderOutcome, waited: float) -> Iterator[str]:
    if outcome.order is None:
        why = "it has ended, and orders end with it" if outcome.ended else "the policy decides"
        yield f"{job}: nothing to resume: no order is in force, {why}."
    elif outcome.decision is not None:
        yield f"{job}, epoch {outcome.decision.epoch}: {outcome.decision.reason}"
        if outcome.later is not None:
            yield f"{job}: {outcome.later.actor} has since given another order: {outcome.later.action}."
    elif outcome.ended:
        yield f"{job} has ended before the order could take effect."
    else:
        none = f"; none ended within {waited:g} s" if waited else ""
        yield f"{job}: the order was accepted. It takes effect with the next window{none}."


def _controller_of(job: str, data_dir: Path, token: str | None) -> Client:
    """Return the controller that GRAVAC_CONTROLLER names, or the running one that has the job.

    Raises ControllerError.
    """
    if (url := address_in_environment()) is not None:
        return Client(url, token or owner_control_token(data_dir, url))
    known, asked = list[str](), list[str]()
    slow: TimedOut | None = None
    for client in running_controllers(data_dir, token, steering=True):
        try:
            names = [job.job for job in client.jobs()]
        except TimedOut as error:
            slow = error
            continue
        except NoController:
            continue
        if job in names:
            return client
        known += names
        asked.append(client.url)
        client.close()
    if slow is not None:  # it may have the job
        raise slow
    if not asked:
        raise SourceError(
            f"no controller serves {data_dir}: give its address in {ADDRESS}, or its folder with --data-dir"
        )
    listed = ", ".join(known) or "none"
    raise SourceError(
        printable(
            f"no job {job!r}{did_you_mean(job, known)} at {', '.join(asked)}; its jobs: {listed}. "
            f"{ADDRESS} names another controller"
        )
    )


def _user() -> str:
    """Return the user's name in the form that an order accepts."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):
        name = ""
    return re.sub(r"[^A-Za-z0-9._@+-]", "-", name)[:64].lstrip("._@+-") or "operator"
