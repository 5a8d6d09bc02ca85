"""Words of messages: safe text, paths, numbers, hints for misspelled names, and errors of pydantic in one sentence."""

import os
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import count
from pathlib import Path

from pydantic import ValidationError

from gravac.codec_text import selector_of, split_settings, values_of

_VALUE_CHARACTERS = 80
_ROUNDING = {"nearest": "", "dither": ", dithered", "dither-subtractive": ", subtractive"}
"""Codecs of a few levels, and how they differ in words."""
_ROUNDED = {
    "bf16": "16 bits",
    "fp16": "float16",
    "int8": "8 bits",
    "int4": "4 bits",
    "twobit": "2 bits",
    "blocksign": "signs",
}
"""Codecs of one size, also behind a selector, in words."""
_PREFIXES = ("Value error, ", "Assertion failed, ")
_OUR_WORDS = {
    "Input should be ": "must be ",
    "greater than or equal to ": "at least ",
    "less than or equal to ": "at most ",
    "greater than ": "above ",
    "less than ": "below ",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    ", unable to parse string as an integer": "",
    ", unable to parse string as a number": "",
    ", got a number with a fractional part": "",
}
"""Pydantic's words and ours, in this order."""


def printable(text: str, limit: int | None = None) -> str:
    """Make text from elsewhere safe to show in a terminal, a log line or JSON.

    Args:
        text: anything; may hold escape sequences, line breaks or lone surrogates.
        limit: cut after this number of characters, with an ellipsis; None: never.

    Returns:
        One line. Line breaks and other white space become spaces, other unprintable characters question marks.
    """
    cut = text if limit is None else shortened(text, limit)
    if cut.isprintable():
        return cut
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in cut)


def shortened(text: str, limit: int) -> str:
    """Return the text, cut after ``limit`` characters with an ellipsis."""
    return text if len(text) <= limit else text[:limit] + "…"


def display_path(path: Path | str) -> str:
    """Return a path as a user would type it: relative if it is below the working directory, else absolute."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the working directory is gone
        return str(path)
    return os.path.abspath(path) if relative.startswith(os.pardir) else relative


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Suggest known names for a misspelled one.

    Args:
        name: the misspelled name.
        known: names that exist, without ``prefix``.
        prefix: what ``name`` begins with and ``known`` does not.

    Returns:
        `` (did you mean 'x'?)`` with up to three close names; empty when none is close.
    """
    by_lower = {each.lower(): each for each in known}
    wanted = name.strip().lower().removeprefix(prefix.lower())
    close = [repr(prefix + by_lower[each]) for each in get_close_matches(wanted, by_lower, n=3)]
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def numbered(name: str) -> Iterator[str]:
    """Yield the name of a job, and others for it where that is taken: ``run``, ``run-2``, ``run-3``, …"""
    yield name
    for number in count(2):
        yield f"{name[:60]}-{number}"  # a name has at most 64 characters


def format_cf(value: float) -> str:
    """Format a compression factor: ``dense`` or ``CF 40``."""
    return "dense" if value == 1.0 else f"CF {value:g}"


def format_plan(codec: str, cf: float) -> str:
    """Format a plan as it is set: ``dense`` or ``nearest:levels=7 at CF 10.1``.

    Args:
        codec: Name with settings.
        cf: Compression factor; 1 is dense, whatever the codec.
    """
    return "dense" if cf == 1.0 else f"{printable(codec)} at CF {cf:g}"


def plan_in_words(codec: str, cf: float) -> str:
    """Describe a plan in a few plain words: ``dense``, ``3 levels, Huffman`` or ``largest 1 %, 16 bits``.

    Args:
        codec: Name with settings. One without words of its own is shown as by ``format_plan``.
        cf: Compression factor; 1 is dense, whatever the codec.
    """
    name, rest = split_settings(codec)
    settings = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    coded = ", Huffman" if settings.pop("coding", "digits") == "huffman" else ""
    levels = settings.pop("levels", None)
    if cf == 1.0 or settings or (levels is None) == (name in _ROUNDING):
        return format_plan(codec, cf)
    if name in _ROUNDING:
        return ("signs" if levels == "2" else f"{printable(str(levels))} levels") + _ROUNDING[name] + coded
    selector, values = selector_of(name), values_of(name)
    if selector == "topk" and (not values or values in _ROUNDED):
        return f"largest {100 / cf:.3g} %" + (f", {_ROUNDED[values]}" if values else "")
    return _ROUNDED.get(name) or format_plan(codec, cf)


def format_number(value: float) -> str:
    """Format a rate with about three significant digits, without an exponent below 10¹²."""
    if value >= 99.95 or value == 0:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def format_fewer(times: float) -> str:
    """Format the strength of a plan, dense bytes / bytes handed to collectives: ``123x fewer bytes``."""
    return f"{format_number(times)}x fewer bytes"


def format_seconds(value: float) -> str:
    """Format a duration."""
    return f"{format_number(value)} s" if value >= 1.0 or value == 0.0 else f"{format_number(1e3 * value)} ms"


def format_bytes(count: float) -> str:
    """Format bytes with three digits: 982 B, 4.21 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def format_rate(bits: float) -> str:
    """Format bits a second: 1 Gbit/s."""
    for scale, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= scale:
            return f"{bits / scale:.3g} {unit}"
    return f"{bits:.3g} bit/s"


def format_gain(gain: float) -> str:
    """Format a gain with two decimals, three below 0.1."""
    return f"{gain:.2f}" if gain >= 0.1 else f"{gain:.3f}"


def format_percent(ratio: float) -> str:
    """Format a ratio as per cent: one decimal below 10 unless it is whole."""
    value = ratio * 100
    text = f"{value:.1f}" if value < 10 else f"{value:.0f}"
    return f"{text.removesuffix('.0')} %"


def validator_message(message: str) -> str:
    """Return pydantic's message in our words, and that of one of our own validators without pydantic's prefix."""
    for prefix in _PREFIXES:
        message = message.removeprefix(prefix)
    if not message.startswith("Input should be "):
        return message
    for theirs, ours in _OUR_WORDS.items():
        message = message.replace(theirs, ours)
    return message


def first_problem(error: ValidationError) -> str:
    """Describe the first problem of a validation error.

    Returns:
        ``field: what is wrong (got value)``, a few hundred characters at most.
    """
    problems = error.errors(include_url=False, include_context=False)
    problem = problems[0]
    field = ".".join(str(part) for part in problem["loc"]) or "record"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    message = validator_message(problem["msg"])
    if problem["type"] == "value_error" and not problem["loc"]:
        return f"{message}{more}"
    if problem["type"] == "missing":
        return f"{field}: is missing{more}"
    value = shortened(repr(problem["input"]), _VALUE_CHARACTERS)
    return f"{field}: {message[:1].lower()}{message[1:]} (got {value}){more}"
