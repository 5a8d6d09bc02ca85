"""Words for messages that people read: safe to print, and with a hint where a name is misspelled."""

from collections.abc import Iterable
from difflib import get_close_matches


def printable(text: str) -> str:
    """The text without control characters, which could rewrite a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def meant(name: str, known: Iterable[str], prefix: str = "") -> str:
    """`` (did you mean 'x'?)`` with the known names closest to ``name``, which begin with ``prefix`` as it does.

    Empty when none is close.
    """
    by_lower = {each.lower(): each for each in known}
    wanted = name.strip().lower().removeprefix(prefix.lower())
    close = [repr(prefix + by_lower[each]) for each in get_close_matches(wanted, by_lower, n=3)]
    return f" (did you mean {' or '.join(close)}?)" if close else ""
