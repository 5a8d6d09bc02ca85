"""Rates of links: what people write, bits per second, what ``tc`` is told."""

import re

_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}
_LEAST = 8e3
BURST_SECONDS = 0.001
LEAST_BURST_BYTES = 32 * 1024
QUEUE_SECONDS = 0.05
"""Longest a packet waits in front of a link before it is dropped: a router with a fair queue."""


def parse(text: str) -> float | None:
    """``100mbit``, ``2.5gbit``, ``64kbit`` to bits a second; ``none`` to None: a link as fast as the machine.

    Raises ValueError naming the value and the form expected. ``mbps`` is refused: to ``tc`` it means megabytes.
    """
    cleaned = text.strip().lower()
    if cleaned == "none":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg])bit(?:/s)?", cleaned)
    bits = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if bits < _LEAST:
        raise ValueError(
            f"link={text!r} is not a rate of at least 8kbit; write for example 100mbit, 1gbit, or none"
        )
    return bits


def token_bucket(bits_per_second: float) -> list[str]:
    """The words of a token bucket filter of this rate (tc-tbf(8)).

    The bucket holds a millisecond of the rate, and at least one large packet: what an idle link lets through at once.
    """
    burst_bytes = max(LEAST_BURST_BYTES, int(bits_per_second / 8 * BURST_SECONDS))
    rate, latency = f"{bits_per_second:.0f}bit", f"{QUEUE_SECONDS * 1000:.0f}ms"
    return ["tbf", "rate", rate, "burst", str(burst_bytes), "latency", latency]
