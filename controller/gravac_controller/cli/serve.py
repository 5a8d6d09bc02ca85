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
from gravac_controller.cli.source import CannotUse
from gravac_controller.hosts import is_loopback
from gravac_controller.lock import DataDirError, DataDirInUse
from gravac_controller.safe_text import log_safely
from gravac_controller.server.listen import ListenError
from gravac_controller.server.run import UnsafeError, run
from gravac_controller.settings import DEFAULT_PORT, ControllerSettings

PREFIX = "GRAVAC_CONTROLLER_"
OTHERS = stat.S_IRGRP | stat.S_IROTH
"""Permission bits with which others could read a token."""


class InUse(CannotUse):
    """Another controller serves this folder or job. The agent that starts a controller looks for this exit code."""

    exit_code = 3


@click.command()
@click.option(
    "--host",
    help="Address to listen on [127.0.0.1: this machine only]. 0.0.0.0 accepts connections from everywhere and needs a "
    "token.",
)
@click.option("--port", type=int, help=f"TCP port [{DEFAULT_PORT}]. 0: any free port.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of the journals [./gravac-runs].")
@click.option("--job", help="Serve only this job of the folder.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    help="Another host name or address that clients may use for this server. Repeatable.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the token of agents and readers [GRAVAC_TOKEN].",
)
@click.option(
    "--control-token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the token that operators need to steer jobs [GRAVAC_CONTROLLER_CONTROL_TOKEN]. Without a token, "
    "steering is off.",
)
@click.option(
    "--owner-may-steer",
    is_flag=True,
    default=None,
    help="Allow the owner of the data folder to steer its jobs on this machine with `gravac steer`. The control token "
    "is stored there in a file that only they can read.",
)
@click.option(
    "--with-parent",
    is_flag=True,
    help="For a program that starts the controller: print one JSON line on stdout when the server is ready, and "
    "everything else on stderr; exit when standard input is closed.",
)
def serve(with_parent: bool, token_file: Path | None, control_token_file: Path | None, **given: Any) -> None:
    """Run the controller: decide for training jobs, write their journals, serve the live page and the REST API.

    Training jobs start a controller by themselves. Run this to serve several jobs from one place, or to see old ones.
    All settings can also be given as GRAVAC_CONTROLLER_<NAME>, for example GRAVAC_CONTROLLER_MAX_CONNECTIONS=2000.
    """
    given["token"] = _read_token("--token-file", token_file)
    given["control_token"] = _read_token("--control-token-file", control_token_file)
    log_safely(logging.WARNING)
    try:
        settings = _settings(given).with_control_token()
        run(
            settings,
            with_parent=with_parent,
            started=lambda url, services: _announce(url, services, with_parent),
        )
    except DataDirInUse as error:
        raise InUse(str(error)) from None
    except (DataDirError, ListenError, UnsafeError) as error:
        raise CannotUse(str(error)) from None


def _read_token(option: str, file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        if file.stat().st_mode & OTHERS:
            click.echo(f"warning: {option} {file} can be read by others: chmod 600 {file}", err=True)
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotUse(f"{option} {file} cannot be read: {error}") from None


def _settings(given: dict[str, Any]) -> ControllerSettings:
    chosen = {name: value for name, value in given.items() if value is not None and value != ()}
    for line in misspelled(os.environ):
        click.echo(line, err=True)
    try:
        return ControllerSettings(**chosen)
    except ValidationError as error:
        lines = [f"{_source(fault.field, chosen)}: {fault.message}" for fault in faults_of(error)]
        raise CannotUse("; ".join(lines)) from None


def misspelled(names: Iterable[str]) -> list[str]:
    """Return a message for each environment variable with the prefix of the controller's settings that is not one."""
    known = [name.upper() for name in ControllerSettings.model_fields]
    return [
        f"environment variable {name!r} is not a setting of the controller{did_you_mean(name, known, PREFIX)}"
        for name in sorted(names)
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in known
    ]


def _source(field: str, chosen: dict[str, Any]) -> str:
    """Return the option or environment variable that a value comes from."""
    return field if field in chosen or field.startswith("GRAVAC_") else f"{PREFIX}{field.upper()}"


def _announce(url: str, services: Services, with_parent: bool) -> None:
    """Print the address: as a JSON line for the parent, if there is one, and as text."""
    settings = services.settings
    if with_parent:
        line = {"url": url, "pid": os.getpid(), "instance": services.instance}
        print(json.dumps(line), file=sys.stdout, flush=True)  # noqa: T201 (the protocol with the parent)
    port = int(url.rsplit(":", 1)[1])
    lines = [f"gravac controller at {url}", f"journals in {settings.data_dir.resolve()}"]
    if is_loopback(settings.host):
        tunnel = f"ssh -L {port}:127.0.0.1:{port} {os.environ.get('USER', 'you')}@{socket.gethostname()}"
        lines.append(f"from another machine: {tunnel}, then open http://127.0.0.1:{port}")
    elif not Access.of(settings).open_to_look:
        lines.append("reading needs the token too; in a browser: any user name, the token as password")
    if settings.owner_may_steer:
        lines.append("the owner of that folder can steer: gravac steer JOB pin CF, or dense, pause, resume")
    elif settings.control_token is not None:
        lines.append(
            "steering is on: the control token allows to pin a CF, switch to dense, pause and resume"
        )
    for job, why in services.store.unreadable.items():
        lines.append(f"job {job} is not served: {why}")
    click.echo("\n".join(lines), err=with_parent)
