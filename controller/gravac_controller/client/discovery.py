"""Finds the controllers that run on this machine: each writes a note into its folder of journals."""

import os
from collections.abc import Iterator
from pathlib import Path

from gravac.traces.file_lock import read_note
from gravac_controller.client.client import Client
from gravac_controller.client.connection import ControllerError, TimedOut, base_url
from gravac_controller.lock import LOCK_NAME, control_token_in

PROBE_SECONDS = 2.0


def running_controllers(
    data_dir: Path, token: str | None = None, *, steering: bool = False
) -> Iterator[Client]:
    """Return a client for each controller that serves ``data_dir`` or a job of it, the most recently started one first.

    Notes of dead controllers are skipped: the instance that wrote the note must answer at its address, or be slow to.
    ``steering``: where there is no ``token``, use the control token that the controller stored for the owner of the
    folder.
    """
    for path in _notes(data_dir):
        found = read_note(path) or {}
        url, instance = found.get("url"), found.get("instance")
        if not isinstance(url, str):
            continue
        try:
            with Client(url, seconds=PROBE_SECONDS) as probe:
                alive = probe.health().instance == instance
        except TimedOut:
            alive = True
        except (ControllerError, ValueError):
            continue
        if alive:
            known = token or (control_token_in(path.parent) if steering else None)
            yield Client(url, known if _own(path) else None)


def owner_control_token(data_dir: Path, url: str) -> str | None:
    """Return the control token that the controller at ``url`` stored for the owner of its folder; None for other users.

    Raises ValueError where ``url`` is not an address.
    """
    wanted = base_url(url)
    for path in _notes(data_dir):
        noted = (read_note(path) or {}).get("url")
        if noted == wanted and _own(path) and (token := control_token_in(path.parent)) is not None:
            return token
    return None


def _notes(data_dir: Path) -> list[Path]:
    """Return the notes, newest first."""
    notes = [data_dir / LOCK_NAME, *data_dir.glob(f"*/{LOCK_NAME}")]
    return sorted((path for path in notes if path.is_file()), key=_age, reverse=True)


def _own(path: Path) -> bool:
    """Return whether this user wrote the note. The token is not shown to an address in a note of another user."""
    try:
        return path.stat().st_uid == os.getuid()
    except OSError:
        return False


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
