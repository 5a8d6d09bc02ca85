"""Options with units, or lists of them: bandwidths, latencies, percentages, numbers of ranks and elements, CFs."""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import click

from gravac.policies.auto.plans import read as read_plan

T = TypeVar("T")
MOST_RANKS = 100_000
LEAST_ELEMENTS, MOST_ELEMENTS = 1000, 2**31 - 1
MOST_VALUES = 64
"""Most values of one option."""
_RATES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_LEAST_RATE = 1e3


def bandwidth(text: str) -> float:
    """``1Gbit``, ``100M``, ``2.5gbit/s`` to bits a second. Raises ValueError that shows the expected form."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:bit)?(?:/s)?", text.strip().lower())
    bits = float(match[1]) * _RATES[match[2]] if match else 0.0
    if not _LEAST_RATE <= bits <= 1e15:
        raise ValueError(
            f"{text!r} is not a bandwidth from 1kbit to 1000Tbit; write for example 100Mbit or 10G"
        )
    return bits


def latency(text: str) -> float:
    """``50us``, ``0.2ms``, ``1s`` to seconds. Raises ValueError that shows the expected form."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|ms|us|µs|ns)", text.strip().lower())
    seconds = float(match[1]) * _TIMES[match[2]] if match else -1.0
    if not 0.0 <= seconds <= 10.0:
        raise ValueError(f"{text!r} is not a latency from 0s to 10s; write for example 50us or 0.2ms")
    return seconds


def ranks(text: str) -> list[int]:
    """``64``, or ``2..1024``: doubled from the first up to the last. Raises ValueError that shows the expected form."""
    match = re.fullmatch(r"(\d{1,6})(?:\.\.(\d{1,6}))?", text.strip())
    first = int(match[1]) if match else 0
    last = int(match[2] or first) if match else 0
    if not 1 <= first <= last <= MOST_RANKS:
        raise ValueError(
            f"{text!r} is not a number of ranks from 1 to {MOST_RANKS}; write for example 64 or 2..1024"
        )
    found = [first]
    while 2 * found[-1] <= last:
        found.append(2 * found[-1])
    return found if found[-1] == last else [*found, last]


def elements(text: str, most: int = MOST_ELEMENTS) -> int:
    """``10000000``, ``10_000_000``, ``1e7``, ``350m`` or ``7b``. Raises ValueError that shows the expected form."""
    match = re.fullmatch(r"(.+?)([kmb]?)", text.strip().lower().replace("_", ""))
    try:
        count = float(match[1]) * _COUNTS[match[2]] if match else float(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a number of elements; write for example 10000000 or 1e7, 350m or 7b"
        ) from None
    if not LEAST_ELEMENTS <= count <= most or count != int(count):
        raise ValueError(f"{text} must be a whole number between {LEAST_ELEMENTS:,} and {most:,}")
    return int(count)


def listed(
    read: Callable[[str], T | list[T]],
) -> Callable[[click.Context, click.Parameter, str | None], list[T] | None]:
    """Return the callback of an option with values separated by commas; None stays None."""

    return single(lambda text: _each(read, text.split(",")))


def percentage(text: str) -> float:
    """``20%`` to 0.2. Raises ValueError that shows the expected form."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    number = float(match[1]) if match else -1.0
    if not 0.0 <= number <= 100.0:
        raise ValueError(f"{text!r} is not a percentage from 0% to 100%; write for example 20%")
    if not (match and match[2]):
        meant = 100.0 * number if number < 1.0 else number
        raise ValueError(f"{text!r} is not a percentage (did you mean '{meant:g}%'?)")
    return number / 100.0


def single(read: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str | None], T | None]:
    """Return the callback of an option with one value; None stays None."""
    return lambda context, option, text: None if text is None else _read(read, text)


def network(text: str) -> tuple[float, float | None]:
    """``200Mbit`` or ``200Mbit,50us``: bit/s, and seconds or None. Raises ValueError that shows the expected form."""
    rate, comma, delay = text.partition(",")
    return bandwidth(rate), latency(delay) if comma else None


def networks(text: str) -> tuple[list[float], float | None]:
    """``100M,1G`` or ``100M,1G,50us``: bit/s, and seconds or None. Raises ValueError that shows the expected form."""
    *rates, last = text.split(",")
    if rates and re.search(r"[^/]s\s*$", last):
        return _each(bandwidth, rates), latency(last)
    return _each(bandwidth, [*rates, last]), None


def codecs(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Return the callback of an option with codecs separated by slashes, each with or without ``@`` and a CF."""
    found = () if text is None else tuple(dict.fromkeys(part.strip() for part in text.split("/")))
    if len(found) > MOST_VALUES:
        raise click.BadParameter(f"{text!r} has {len(found)} values; give at most {MOST_VALUES}")
    for part in found:
        if "@" in part or not part:
            _read(read_plan, part)
    return found


def _each(read: Callable[[str], T | list[T]], texts: Sequence[str]) -> list[T]:
    """Return each value once. Raises ValueError where there are too many."""
    found: list[T] = []
    for text in texts:
        value = read(text)
        found += [one for one in (value if isinstance(value, list) else [value]) if one not in found]
    if len(found) > MOST_VALUES:
        raise ValueError(f"{','.join(texts)!r} has {len(found)} values; give at most {MOST_VALUES}")
    return found


def _read(read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
