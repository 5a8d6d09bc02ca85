"""``gravac serve``: run the controller in the foreground."""

import json
import logging
import os
import socket
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from gravac.wording import did_you_mean
from gravac_controller.api.access import Access
from gravac_controller.api.problems import faults_of
from gravac_controller.api.services import Services
from gravac_controller.hosts import is_loopback
from gravac_controller.lock import DataDirError, DataDirInUse
from gravac_controller.safe_text import log_safely
from gravac_controller.server.listen import ListenError
from gravac_controller.server.run import UnsafeError, run
from gravac_controller.settings import DEFAULT_PORT, ControllerSettings

PREFIX = "GRAVAC_CONTROLLER_"
OTHERS = stat.S_IRGRP | stat.S_IROTH
"""Who must not be able to read a token."""


class CannotStart(click.ClickException):
    """A setting, port or folder that does not work; the message says what to do."""

    exit_code = 2


class InUse(CannotStart):
    """Another controller serves this folder or job. A code of its own, which the agent that started us looks for."""

    exit_code = 3


@click.command()
@click.option(
    "--host",
    help="Address to listen on. 127.0.0.1, the default, can be reached from this machine only; 0.0.0.0 from "
    "everywhere, and needs a token.",
)
@click.option("--port", type=int, help=f"TCP port, {DEFAULT_PORT} unless given; 0 takes a free one.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of the journals [./gravac-runs].")
@click.option("--job", help="Serve this one job of the folder only.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    help="A further name or address by which browsers and agents may call this server. Repeatable.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the token of agents and readers; GRAVAC_TOKEN does the same.",
)
@click.option(
    "--control-token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the token that operators must show to steer a job; GRAVAC_CONTROLLER_CONTROL_TOKEN does the same. "
    "Without it nothing can be steered.",
)
@click.option(
    "--owner-may-steer",
    is_flag=True,
    default=None,
    help="Let the owner of the data folder steer its jobs from this machine, with `gravac pin`, `dense`, `pause` and "
    "`resume`: the control token is left there in a file that only they can read.",
)
@click.option(
    "--announce",
    is_flag=True,
    help="Print one JSON line on stdout when requests are answered; the rest on stderr.",
)
@click.option("--with-parent", is_flag=True, help="End when standard input ends.")
@click.option(
    "--linger",
    "linger_seconds",
    type=float,
    metavar="SECONDS",
    help="With --with-parent: end this much later.",
)
def serve(
    announce: bool, with_parent: bool, token_file: Path | None, control_token_file: Path | None, **given: Any
) -> None:
    """Run the controller: decide for training jobs, journal and show what was decided.

    Training jobs start one by themselves; run this to serve several jobs from one place, or to look at old ones.
    All settings can also be given as GRAVAC_CONTROLLER_<NAME>, for example GRAVAC_CONTROLLER_MAX_JOBS=50.
    """
    given["token"] = _read_token("--token-file", token_file)
    given["control_token"] = _read_token("--control-token-file", control_token_file)
    log_safely(logging.WARNING)
    try:
        settings = _settings(given).with_control_token()
        run(
            settings,
            with_parent=with_parent,
            started=lambda url, services: _tell(url, services, announce),
        )
    except DataDirInUse as error:
        raise InUse(str(error)) from None
    except (DataDirError, ListenError, UnsafeError) as error:
        raise CannotStart(str(error)) from None


def _read_token(option: str, file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        if file.stat().st_mode & OTHERS:
            click.echo(f"warning: {option} {file} can be read by others: chmod 600 {file}", err=True)
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"{option} {file} cannot be read: {error}") from None


def _settings(given: dict[str, Any]) -> ControllerSettings:
    chosen = {name: value for name, value in given.items() if value is not None and value != ()}
    for line in misspelled(os.environ):
        click.echo(line, err=True)
    try:
        return ControllerSettings(**chosen)
    except ValidationError as error:
        lines = [f"{_source(fault.field, chosen)}: {fault.message}" for fault in faults_of(error)]
        raise CannotStart("; ".join(lines)) from None


def misspelled(names: Iterable[str]) -> list[str]:
    """A line for each environment variable that looks like a setting of the controller and is none."""
    known = [name.upper() for name in ControllerSettings.model_fields]
    return [
        f"environment variable {name!r} is not a setting of the controller{did_you_mean(name, known, PREFIX)}"
        for name in sorted(names)
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in known
    ]


def _source(field: str, chosen: dict[str, Any]) -> str:
    """The option or the variable that a value came from."""
    return field if field in chosen or field.startswith("GRAVAC_") else f"{PREFIX}{field.upper()}"


def _tell(url: str, services: Services, announce: bool) -> None:
    """Say where we are: to a program in one JSON line, to people in a few plain ones."""
    settings = services.settings
    if announce:
        line = {"url": url, "pid": os.getpid(), "instance": services.instance}
        print(json.dumps(line), file=sys.stdout, flush=True)  # noqa: T201 (the protocol with the parent)
    port = int(url.rsplit(":", 1)[1])
    lines = [f"gravac controller at {url}", f"journals in {settings.data_dir.resolve()}"]
    if is_loopback(settings.host):
        tunnel = f"ssh -L {port}:127.0.0.1:{port} {os.environ.get('USER', 'you')}@{socket.gethostname()}"
        lines.append(f"from another machine: {tunnel}, then open http://127.0.0.1:{port}")
    elif not Access.of(settings).open_to_look:
        lines.append("looking needs the token too: in a browser any name, and the token as the password")
    if settings.owner_may_steer:
        lines.append("the owner of that folder may steer: gravac pin JOB CF, gravac dense|pause|resume JOB")
    elif settings.control_token is not None:
        lines.append("control is on: whoever has the control token may pin a CF, go dense, pause and resume")
    for job, why in services.store.unreadable.items():
        lines.append(f"job {job} is not served: {why}")
    click.echo("\n".join(lines), err=announce)
