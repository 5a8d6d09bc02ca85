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


def cf_name(cf: float) -> str:
    """``dense`` or ``CF 40``."""
    return "dense" if cf == 1.0 else f"CF {cf:g}"


def number(value: float) -> str:
    """A rate with about three significant digits, without an exponent below a million million."""
    if value >= 99.95 or value == 0:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def gain_text(gain: float) -> str:
    """A gain with two decimals, and with three below 0.1."""
    return f"{gain:.2f}" if gain >= 0.1 else f"{gain:.3f}"


def percent(ratio: float) -> str:
    """A ratio as per cent, with one decimal below 10 unless it is whole."""
    value = ratio * 100
    text = f"{value:.1f}" if value < 10 else f"{value:.0f}"
    return f"{text.removesuffix('.0')} %"
