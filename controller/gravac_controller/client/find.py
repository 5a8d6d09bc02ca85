"""Finding the controllers that run on this machine: each leaves word in its folder of journals."""

import os
from collections.abc import Iterator
from pathlib import Path

from gravac_controller.client.calls import Client
from gravac_controller.client.errors import ControllerError
from gravac_controller.lock import LOCK_NAME, read_note

PROBE_SECONDS = 2.0


def running(data_dir: Path, token: str | None = None) -> Iterator[Client]:
    """A client for each controller that works on ``data_dir`` or a job of it; the one started last comes first.

    What a dead one left behind is passed over: the address must be answered by the very start that wrote it.
    """
    notes = [data_dir / LOCK_NAME, *data_dir.glob(f"*/{LOCK_NAME}")]
    for path in sorted((path for path in notes if path.is_file()), key=_age, reverse=True):
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
            yield Client(url, token if _ours(path) else None)


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
