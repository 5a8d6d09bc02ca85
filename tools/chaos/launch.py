"""One launch of a training: how its ranks are started, and the files that they leave."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Launch:
    """Where and how a training is started. Its files in ``folder`` begin with ``name``."""

    folder: Path
    name: str
    world: int
    options: dict[str, Any]
    environment: dict[str, str]

    def file(self, rank: int, kind: str) -> Path:
        return self.folder / f"{self.name}.rank{rank}.{kind}"

    @property
    def handed_in(self) -> Path:
        """Every window that rank 0 reported, a line each."""
        return self.file(0, "windows")


@dataclass
class TrainingRecord:
    """What the checks know of a launch: its files, and how it ended.

    Attributes:
        launch: Where its files are.
        outcome: None while it runs, then finished, killed, or what went wrong.
        killed: The rank that was killed.
        fresh_controller: Whether a controller had to be started while it closed.
        cfs: CFs that rank 0 sent at.
    """

    launch: Launch
    outcome: str | None = None
    killed: int | None = None
    fresh_controller: bool = False
    cfs: set[float] = field(default_factory=set)

    def notes(self, rank: int) -> list[dict[str, Any]]:
        """Return what the rank wrote down."""
        return lines(self.launch.file(rank, "notes"))

    def log(self, rank: int = 0) -> str:
        path = self.launch.file(rank, "log")
        return path.read_text(errors="replace") if path.exists() else ""


def lines(path: Path) -> list[dict[str, Any]]:
    """Read the JSON lines of a file."""
    return [json.loads(line) for line in whole_lines(path)]


def whole_lines(path: Path) -> list[str]:
    """Read the lines of a file that may be missing, without a last one that a killed writer left incomplete."""
    text = path.read_text() if path.exists() else ""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
