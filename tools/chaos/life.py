"""One training as its ranks are told of it. Imports no torch: the process that watches them needs none."""

from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Life:
    """Where and how one training runs. ``name``: of its files in ``folder``."""

    folder: Path
    name: str
    world: int
    options: dict[str, Any]
    environment: dict[str, str]

    def file(self, rank: int, kind: str) -> Path:
        return self.folder / f"{self.name}.rank{rank}.{kind}"

    @property
    def handed(self) -> Path:
        """Every window that rank 0 handed to its reporter, a line each."""
        return self.file(0, "windows")


def run(life: Life, rank: int, orders: Connection | None) -> None:
    """Be that rank, in a process of its own, which has imported ``tools.chaos.rank`` already."""
    from tools.chaos.rank import main

    main(life, rank, orders)
