"""How rank 0 of the demo tells what happens: JSON lines for ``gravac demo``, plain lines for people."""

import json
import sys
from pathlib import Path
from typing import IO, Protocol


class Reporter(Protocol):
    """Takes events as they come: start, page, step, done."""

    def tell(self, event: str, **facts: object) -> None:
        """One event and what belongs to it; numbers, text or None."""
        ...


class Silent:
    """All ranks but 0."""

    def tell(self, event: str, **facts: object) -> None:
        pass


class Lines:
    """A line for people now and then; steps only every ``every``."""

    def __init__(self, every: int = 20, stream: IO[str] | None = None) -> None:
        self._every = every
        self._stream = sys.stdout if stream is None else stream

    def tell(self, event: str, **facts: object) -> None:
        step = facts.get("step")
        if event == "step" and isinstance(step, int) and step % self._every:
            return
        shown = " ".join(f"{name} {_short(value)}" for name, value in facts.items() if value is not None)
        self._stream.write(f"{event}: {shown}\n")
        self._stream.flush()


class JsonFile:
    """One JSON object a line, appended to a file that another process follows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def tell(self, event: str, **facts: object) -> None:
        self._file.write(json.dumps({"event": event, **facts}) + "\n")


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
