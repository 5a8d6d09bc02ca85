"""An emulated network link, which delays the end of each collective as a slow network would.

The agent's exchange thread waits, so this needs no root and slows nothing but gradients. It is for demos and for trying
another network; reports and pages say that it is on.
"""

import re
from dataclasses import dataclass

from gravac.protocol import LinkSpec

_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link by which each rank sends.

    Args:
        bits_per_second: Its rate.
        latency_seconds: Added to each collective.

    Raises:
        ValueError: For a rate or latency out of range.
    """

    bits_per_second: float
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("bits_per_second", "latency_seconds"):
            if not isinstance(value := getattr(self, name), int | float):
                raise ValueError(
                    f"link.{name}={value!r} must be a number, such as 1e8; link='100mbit' is a text"
                )
        if not 0 < self.bits_per_second < float("inf"):
            raise ValueError(f"link.bits_per_second={self.bits_per_second} must be positive and finite")
        if not 0 <= self.latency_seconds < 60:
            raise ValueError(f"link.latency_seconds={self.latency_seconds} must be between 0 and 60")

    def spec(self) -> LinkSpec:
        """Return the record of the link for the journal."""
        return LinkSpec(bits_per_second=self.bits_per_second, latency_seconds=self.latency_seconds)

    def seconds(self, sent_bytes: int) -> float:
        """Return how long a rank takes to send ``sent_bytes``."""
        return self.latency_seconds + sent_bytes * 8 / self.bits_per_second


def parse(text: str) -> Link | None:
    """Parse ``100mbit``, ``1gbit``, ``2.5Gbit`` or ``64kbit``; ``none`` gives None.

    Raises:
        ValueError: For anything else; it says what to write.
    """
    cleaned = text.strip().lower()
    if cleaned in ("", "none"):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg])(?:bits?(?:/s)?|bps)?", cleaned)
    if match is None or float(match[1]) <= 0:
        raise ValueError(
            f"link={text!r} is not a rate{_meant(text.strip())}; write for example 100mbit, 1gbit, or none for the "
            "real network"
        )
    return Link(bits_per_second=float(match[1]) * _UNITS[match[2]])


def _meant(text: str) -> str:
    """Return a hint for a rate in other units: bytes, or a bare number of bits."""
    match = re.fullmatch(
        r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmgt]?)(i?)(b|bytes?|bits?)?(?:/s|ps|/sec)?", text, re.IGNORECASE
    )
    if match is None or float(match[1]) <= 0:
        return ""
    number, unit, binary, what = match.groups()
    in_bytes = bool(binary) or (what or "").lower().startswith("byte") or what == "B"
    power = "kmgt".index(unit.lower()) + 1 if unit else 0
    bits = float(number) * (1024.0 if binary else 1000.0) ** power * (8.0 if in_bytes else 1.0)
    if not unit and not what and bits < 1e3:  # no rate in bits: the unit was forgotten
        return f" (did you mean '{number}mbit'?)"
    name, size = next(((name, size) for name, size in reversed(_UNITS.items()) if bits >= size), ("k", 1e3))
    return f" (did you mean '{bits / size:.6g}{name}bit'?)"


class Pacer:
    """Sends transfers over an emulated link, one after another."""

    def __init__(self, link: Link | None) -> None:
        self.link = link
        self._free_at = 0.0

    def deadline(self, arrived_at: float, sent_bytes: int) -> float:
        """Return when a transfer ends on the emulated link, in monotonic seconds.

        It begins when the link is free and every rank has joined, which is about when the real transfer ended.

        Args:
            arrived_at: When the real transfer ended, in monotonic seconds.
            sent_bytes: Its size.
        """
        if self.link is None:
            return arrived_at
        self._free_at = max(self._free_at, arrived_at) + self.link.seconds(sent_bytes)
        return self._free_at
