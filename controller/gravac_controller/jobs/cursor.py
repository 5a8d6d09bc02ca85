"""Where a page of a list begins, and how a page is cut from what follows.

Windows are numbered once each. Decisions carry the number of their window, and a trainer that starts again repeats
the one in force, so several may share it: a cursor ``12.1`` stands behind the first decision of window 12.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

V = TypeVar("V")

PATTERN = r"^(-1|[0-9]{1,16})(\.[1-9][0-9]{0,8})?$"
MAX_SCANNED = 5000
"""Most entries looked at for one page: one that few entries pass a filter for is short, and names where to go on."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Behind everything numbered up to ``number``; with ``taken``, of that number only behind so many."""

    number: int
    taken: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """From the ``next`` of a page. Raises ValueError for anything else."""
        if re.fullmatch(PATTERN, text) is None:
            raise ValueError(f"cursor: {text!r} is not the next of a page")
        number, _, taken = text.partition(".")
        return cls(int(number), int(taken) if taken else None)

    @property
    def floor(self) -> int:
        """Everything numbered up to here is behind it, whole."""
        return self.number if self.taken is None else self.number - 1

    def __str__(self) -> str:
        return str(self.number) if self.taken is None else f"{self.number}.{self.taken}"


def cut(
    found: Iterable[tuple[int, V | None]], after: Cursor | None, limit: int
) -> tuple[tuple[V, ...], Cursor | None]:
    """Up to ``limit`` entries, and the cursor of the next page (null: that was the last).

    ``found``: number and entry of everything above ``after.floor`` in order, null where a filter left it out.
    """
    items: list[V] = []
    last: int | None = None
    count = 0
    for scanned, (number, repeat, entry) in enumerate(_behind(found, after)):
        if len(items) == limit or scanned == MAX_SCANNED:
            assert last is not None
            return tuple(items), Cursor(last, count if number == last else None)
        last, count = number, repeat
        if entry is not None:
            items.append(entry)
    return tuple(items), None


def _behind(
    found: Iterable[tuple[int, V | None]], after: Cursor | None
) -> Iterator[tuple[int, int, V | None]]:
    """Number, how many of that number so far, entry; without those the cursor stands behind."""
    last, count = None, 0
    for number, entry in found:
        count = count + 1 if number == last else 1
        last = number
        taken = after.taken if after is not None and after.number == number else None
        if taken is None or count > taken:
            yield number, count, entry
