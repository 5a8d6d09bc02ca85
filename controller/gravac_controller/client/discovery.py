"""Finding the controllers that run on this machine: each leaves a note in its folder of journals."""

import os
from collections.abc import Iterator
from pathlib import Path

from gravac_controller.client.client import Client
from gravac_controller.client.connection import ControllerError, base_url
from gravac_controller.lock import LOCK_NAME, control_token_in, read_note

PROBE_SECONDS = 2.0


def running_controllers(
    data_dir: Path, token: str | None = None, *, steering: bool = False
) -> Iterator[Client]:
    """A client for each controller that works on ``data_dir`` or a job of it; the one started last comes first.

    What a dead one left behind is passed over: the address must be answered by the very start that wrote it.
    ``steering``: where there is no ``token``, with the control token that the controller left for the folder's owner.
    """
    for path in _notes(data_dir):
        found = read_note(path) or {}
        url, instance = found.get("url"), found.get("instance")
        if not isinstance(url, str):
            continue
        try:
            with Client(url, seconds=PROBE_SECONDS) as probe:
                alive = probe.health().instance == instance
        except (ControllerError, ValueError):
            continue
        if alive:
            known = token or (control_token_in(path.parent) if steering else None)
            yield Client(url, known if _ours(path) else None)


def owner_control_token(data_dir: Path, url: str) -> str | None:
    """The control token that the controller at ``url`` left for the owner of its folder, which we must be.

    Raises ValueError for what is no address.
    """
    wanted = base_url(url)
    for path in _notes(data_dir):
        noted = (read_note(path) or {}).get("url")
        if noted == wanted and _ours(path) and (token := control_token_in(path.parent)) is not None:
            return token
    return None


def _notes(data_dir: Path) -> list[Path]:
    """The newest first."""
    notes = [data_dir / LOCK_NAME, *data_dir.glob(f"*/{LOCK_NAME}")]
    return sorted((path for path in notes if path.is_file()), key=_age, reverse=True)


def _ours(path: Path) -> bool:
    """Whether we wrote the note ourselves: somebody else's word is no reason to show an address our token."""
    try:
        return path.stat().st_uid == os.getuid()
    except OSError:
        return False


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
