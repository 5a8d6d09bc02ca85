"""An emulated network link: completion of a collective is held back as a slow wire would.

Pacing happens in the agent's exchange thread, so it needs no root and slows nothing but gradients. It is for demos
and for trying a network one does not have; reports and pages say that it is on.
"""

import re
from dataclasses import dataclass

from gravac.protocol import LinkSpec

_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Each rank's way out: ``bits_per_second`` and a fixed ``latency_seconds`` per collective."""

    bits_per_second: float
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.bits_per_second < float("inf"):
            raise ValueError(f"link.bits_per_second={self.bits_per_second} must be positive and finite")
        if not 0 <= self.latency_seconds < 60:
            raise ValueError(f"link.latency_seconds={self.latency_seconds} must be between 0 and 60")

    def spec(self) -> LinkSpec:
        return LinkSpec(bits_per_second=self.bits_per_second, latency_seconds=self.latency_seconds)

    def seconds(self, sent_bytes: int) -> float:
        """Time on the wire for ``sent_bytes`` bytes leaving one rank."""
        return self.latency_seconds + sent_bytes * 8 / self.bits_per_second


def parse(text: str) -> Link | None:
    """``"100mbit"``, ``"1gbit"``, ``"2.5Gbit"``, ``"64kbit"`` to a link, ``"none"`` to None.

    Raises ValueError naming the value and the form expected.
    """
    cleaned = text.strip().lower()
    if cleaned in ("", "none"):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg])(?:bits?(?:/s)?|bps)?", cleaned)
    if match is None or float(match[1]) <= 0:
        raise ValueError(
            f"link={text!r} is not a rate; write for example 100mbit, 1gbit, or none for the real network"
        )
    return Link(bits_per_second=float(match[1]) * _UNITS[match[2]])


class Pacer:
    """The link as a serial resource: one transfer after another."""

    def __init__(self, link: Link | None) -> None:
        self.link = link
        self._free_at = 0.0

    def deadline(self, arrived_at: float, sent_bytes: int) -> float:
        """When a transfer of ``sent_bytes`` is over that really finished at ``arrived_at`` (monotonic seconds).

        It starts when the link is free and every rank has joined, which is about when the real, fast exchange ended.
        """
        if self.link is None:
            return arrived_at
        self._free_at = max(self._free_at, arrived_at) + self.link.seconds(sent_bytes)
        return self._free_at
