"""Every field of a trace's lines, one at a time altered: what of a line is changed, and what replay says of it."""

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from gravac.traces import Line
from gravac.traces.follow import Difference, Follower
from gravac.traces.line import KINDS

Way = tuple[str | int, ...]
HEX = re.compile("[0-9a-f]{16,64}")
EVENTS = ("registered", "restarted", "override", "fallback", "recovered", "nonfinite", "failed", "note")
WORDS = (
    "hold",
    "explore",
    "fallback",
    "untried",
    "passed",
    "fixed",
    "climb",
    "static",
    "dense",
    "gap",
    "pin",
)


def leaves(body: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """Every value that holds no other, and the way to it."""
    if isinstance(body, dict) and body:
        for name, value in body.items():
            yield from leaves(value, (*way, name))
    elif isinstance(body, list) and body:
        for place, value in enumerate(body):
            yield from leaves(value, (*way, place))
    else:
        yield way, body


def field(kind: str, way: Way) -> str:
    """What the leaf is called, whichever item of a list it is in."""
    return ".".join([kind, *("*" if isinstance(step, int) else step for step in way)])


def changes(value: Any) -> list[Any]:
    """Other values, of the kind that a slip or a forger would put there: of digits the first and the last."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [each for each in (value * 2 + 1, value + 1, value - 1, 0) if each != value]
    if isinstance(value, float):
        return [each for each in (value * 2 + 0.1, value / 2, _next_up(value), 0.0) if each != value]
    if isinstance(value, str):
        return [each for each in (*WORDS, value + "x", value.swapcase(), _hex(value)) if each != value]
    return [0.5, 1, "x"]  # null, or nothing in a list


def other(value: Any) -> Any:
    """Another value that the same field may hold, whichever it is; null stays null."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 2 + 0.1
    if isinstance(value, str):
        return "gap" if value in EVENTS else _hex(value) if HEX.fullmatch(value) else value + "x"
    return value


def _hex(value: str) -> str:
    return value.translate(str.maketrans("0123456789abcdef", "123456789abcdef0"))


def _next_up(value: float) -> float:
    text = repr(value)
    digits = [place for place, character in enumerate(text.partition("e")[0]) if character.isdigit()]
    last = digits[-1]
    return float(text[:last] + str((int(text[last]) + 1) % 10) + text[last + 1 :])


def altered(line: Line, changed: dict[Way, Any]) -> Line | None:
    """The line with some leaves changed, as if it had been sealed so; null where that is no record at all."""
    body = line.record.model_dump(mode="json")
    for way, value in changed.items():
        place = body
        for step in way[:-1]:
            place = place[step]
        place[way[-1]] = value
    try:
        record = KINDS[line.kind].model_validate_json(to_json(body))
    except ValidationError:
        return None
    return replace(line, record=record, body=b"")


class Replayed:
    """A trace decided again, with a look back to before any of its lines."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self._before: list[Follower] = []
        follower = Follower()
        for line in lines:
            self._before.append(self._copy(follower))
            if self._wrong(follower, line):
                raise ValueError(f"line {line.number} does not replay")

    def catches(self, place: int, line: Line, later: int | None = None) -> bool:
        """Whether replay finds fault with the trace that has ``line`` at ``place``, by so many ``later`` lines."""
        follower = self._copy(self._before[place])
        end = None if later is None else place + 1 + later
        try:
            return self._wrong(follower, line) or any(
                self._wrong(follower, each) for each in self.lines[place + 1 : end]
            )
        except ValueError:
            return True

    @staticmethod
    def _wrong(follower: Follower, line: Line) -> bool:
        return any(isinstance(found, Difference) or not found.same for found in follower.push(line))

    @staticmethod
    def _copy(follower: Follower) -> Follower:
        other = copy.copy(follower)
        if follower.fold is not None:
            other.fold = copy.copy(follower.fold)
            other.fold._windows = follower.fold._windows.copy()
        return other
