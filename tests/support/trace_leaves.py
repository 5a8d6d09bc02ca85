"""Alters every field of a trace's lines, one at a time, and checks what replay finds."""

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from gravac.replays.follow import Difference, Follower
from gravac.traces import Line
from gravac.traces.line import KINDS

Way = tuple[str | int, ...]
HEX = re.compile("[0-9a-f]{16,64}")
EVENTS = ("registered", "restarted", "override", "fallback", "recovered", "nonfinite", "failed", "note")
KINDS_OF_OPTIMIZERS = ("sgd", "adam", "sign")
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
    """Yield every value that holds no other, with its path."""
    if isinstance(body, dict) and body:
        for name, value in body.items():
            yield from leaves(value, (*way, name))
    elif isinstance(body, list) and body:
        for place, value in enumerate(body):
            yield from leaves(value, (*way, place))
    else:
        yield way, body


def field(kind: str, way: Way) -> str:
    """Return the name of a leaf, the same for all items of a list."""
    return ".".join([kind, *("*" if isinstance(step, int) else step for step in way)])


def changes(value: Any) -> list[Any]:
    """Return other values, as an accident or a forger would write them: with another first or last digit."""
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
    """Return another value that the same field may hold; null stays null."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 2 + 0.1 if value >= 1.0 else value / 2 + 0.0123  # at most 1 where that is a bound
    if isinstance(value, str):
        if value in KINDS_OF_OPTIMIZERS:
            return "other"
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
    """Return the line with some leaves changed and new digests; None where that is not a valid record."""
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
    """A replayed trace that can be resumed before any of its lines."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self._before: list[Follower] = []
        follower = Follower()
        for line in lines:
            self._before.append(self._copy(follower))
            if self._wrong(follower, line):
                raise ValueError(f"line {line.number} does not replay")

    def catches(self, place: int, line: Line, later: int | None = None) -> bool:
        """Return whether replay rejects the trace with ``line`` at ``place``, within ``later`` further lines."""
        follower = self._copy(self._before[place])
        end = None if later is None else place + 1 + later
        try:
            return self._wrong(follower, line) or any(
                self._wrong(follower, line) for line in self.lines[place + 1 : end]
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
