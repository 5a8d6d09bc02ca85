"""torchrun with ``tools.elastic.rank``, seen from outside: its ranks' notes, and their ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools.elastic.rank import NOTES

ROOT = Path(__file__).parents[2]
START_SECONDS = 240.0
"""Longest time between two steps, a restart included, on a busy machine."""


class Torchrun:
    """A running torchrun.

    Args:
        folder: Where checkpoints, journals, notes and logs are.
        arguments: Of torchrun, such as ``--nproc-per-node 2``.
        steps: Steps in all.
        every: Steps between checkpoints.
        settings: Environment variables of gravac.
    """

    def __init__(
        self, folder: Path, arguments: list[str], steps: int, every: int, settings: dict[str, str]
    ) -> None:
        self.folder = folder
        (folder / "notes").mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GRAVAC_")}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)  # every start would compile all of torch that it imports
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, NOTES: str(folder / "notes")}
        own["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # docs/checkpoints.md says why
        command = [sys.executable, "-m", "torch.distributed.run", *arguments, "-m", "tools.elastic.rank"]
        with (folder / "torchrun.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--steps", str(steps), "--every", str(every)],
                cwd=folder,
                env=kept | own | settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, seconds: float = 600.0) -> int:
        """Return torchrun's exit code."""
        return self.process.wait(seconds)

    def end(self) -> None:
        """End torchrun and its ranks, if they run."""
        for number, seconds in ((signal.SIGTERM, 60.0), (signal.SIGKILL, 60.0)):
            if self.process.poll() is None:
                self.process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(seconds)


def starts(folder: Path) -> list[dict[str, Any]]:
    """Return the starts of all ranks in ``folder``, oldest first, each with the ``notes`` that followed it."""
    found = []
    for path in (folder / "notes").glob("*.jsonl"):
        text = path.read_text()
        notes = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        if notes:
            found.append(notes[0] | {"notes": notes[1:]})
    return sorted(found, key=lambda start: start["time"])


def last_step(start: dict[str, Any]) -> int:
    """Return the last step that a rank ended."""
    steps: list[int] = [note["step"] for note in start["notes"] if note["event"] == "step"]
    return max([int(start["step"]), *steps])


def alive(start: dict[str, Any], folder: Path) -> bool:
    """Whether the process of a rank runs. Its number may belong to another process by now."""
    process = Path(f"/proc/{start['pid']}")
    try:
        ours = os.readlink(process / "cwd") == str(folder)
        return ours and b"tools.elastic.rank" in (process / "cmdline").read_bytes()
    except OSError:
        return False


def wait_for_steps(run: Torchrun, world: int, steps: int) -> list[dict[str, Any]]:
    """Wait until ``world`` ranks run and each has done ``steps`` steps since its start.

    Raises:
        AssertionError: torchrun ended before, or no step was done in ``START_SECONDS``.
    """
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        now = [start for start in starts(run.folder) if alive(start, run.folder)]
        if len(now) == world == now[0]["world"] and all(
            last_step(start) - start["step"] >= steps for start in now
        ):
            return now
        assert run.process.poll() is None, f"torchrun ended: {tail(run.folder)}"
        time.sleep(0.02)
    raise AssertionError(f"no {steps} steps of {world} ranks in {START_SECONDS:g} s: {tail(run.folder)}")


def tail(folder: Path) -> str:
    """Return the end of torchrun's log."""
    return (folder / "torchrun.log").read_text(errors="replace")[-4000:]


def controllers(folder: Path) -> int:
    """Return how many controllers serve the jobs in ``folder``."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            inside = os.readlink(path.parent / "cwd") == str(folder)
            count += b"gravac_controller" in words and inside
    return count
