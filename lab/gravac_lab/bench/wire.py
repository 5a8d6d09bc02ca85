"""Bytes on the wire at a nominal CF: by layout, as packed, and as counted by a network interface."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gravac_lab.bench.network import parse_rate
from gravac_lab.bench.program import measure
from gravac_lab.bench.ranks import Places, Progress, Ranks, on_hosts
from gravac_lab.bench.results import describe_machine
from gravac_lab.bench.train import START_SECONDS

FRAME_BYTES = 14 + 20 + 32
"""Headers of a packet in the counters: Ethernet, IPv4, TCP with timestamps. The kernel counts up to 64 kB as one
packet, which a network card splits, so a real network carries more headers."""
HOSTS = 2
COUNT_BYTES = 4_000_000
"""Minimum amount sent, so that handshakes are negligible."""
MOST_REPEATS = 200
LINK = "1gbit"
"""Link that times are computed for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What to measure. ``pack_up_to``: largest n to compress; ``count_up_to``: largest n to send over a network."""

    codec: str
    n: Sequence[int]
    cf: Sequence[float]
    pack_up_to: int
    count_up_to: int


def measure_wire(sizes: Sizes, scratch: Path, progress: Progress) -> dict[str, Any]:
    """Measure, and return a row for each n and CF.

    ``payload_bytes``: by layout; ``packed_bytes``: as packed; ``wire_cf``: dense bytes / payload bytes.
    ``interface_bytes``: sent by one exchange, from the interface's counter, minus ``FRAME_BYTES`` per packet and minus
    ``gloo_bytes``, which an empty exchange sends too. ``interface_ratio``: that over the payload. None where not
    measured. ``seconds`` and ``baseline`` are computed: the time of payload and dense bytes on ``LINK``.
    Raises ProgramFailed or RanksFailed.
    """
    bits = parse_rate(LINK)
    assert bits is not None
    described = describe_machine()
    options = ["--n", *sizes.n, "--cf", *sizes.cf, "--codec", sizes.codec]
    found = measure("wire", ["layout", *options, "--pairs", 1, "--pack-up-to", sizes.pack_up_to], progress)
    with on_hosts(HOSTS, None, progress) as places:
        counted = None if places.interface is None else _count(sizes, places, scratch, progress)
    rows = []
    for row in found["rows"]:
        dense, payload = 4 * row["n"], row["payload_bytes"]
        sent = None if counted is None else counted.sent.get((row["n"], row["cf"]))
        rows.append(
            {
                "name": sizes.codec,
                "against": "dense float32",
                **row,
                "dense_bytes": dense,
                "wire_cf": dense / payload,
                "interface_bytes": sent,
                "interface_ratio": None if sent is None else sent / payload,
                "seconds": 8 * payload / bits,
                "baseline": 8 * dense / bits,
                "ratio": dense / payload,
                "quartiles": [dense / payload] * 2,
            }
        )
    return {
        "benchmark": "wire",
        "machine": described,
        "link": LINK,
        "no_network": places.no_network,
        "gloo_bytes": None if counted is None else counted.gloo_bytes,
        "rows": rows,
    }


@dataclass(frozen=True, slots=True)
class Counted:
    """Bytes that one exchange sends from a host, without framing, by n and CF; and those of an empty exchange."""

    sent: dict[tuple[int, float], float]
    gloo_bytes: float


def _count(sizes: Sizes, places: Places, scratch: Path, progress: Progress) -> Counted:
    words = [sys.executable, "-m", "gravac_lab.programs.wire", "rank", "--codec", sizes.codec]
    words += ["--interface", str(places.interface)]
    ranks = Ranks(words, places.ranks, places.port(0), scratch / "wire")
    try:
        ranks.ready(START_SECONDS)
        sent, payload = _sent(ranks, 1, 1.0, progress)
        gloo = sent - payload
        wanted = [(n, cf) for n in sizes.n if n <= sizes.count_up_to for cf in sizes.cf]
        return Counted({(n, cf): _sent(ranks, n, cf, progress)[0] - gloo for n, cf in wanted}, gloo)
    finally:
        ranks.close()


def _sent(ranks: Ranks, n: int, cf: float, progress: Progress) -> tuple[float, int]:
    """Bytes that an exchange sends, and those of its payload."""
    nothing = ranks.ask(START_SECONDS, n=n, cf=cf, repeats=0)  # synchronization sends bytes too
    payload = ranks.ask(START_SECONDS, n=n, cf=cf, repeats=1)[0]["payload_bytes"]
    repeats = min(MOST_REPEATS, max(1, COUNT_BYTES // payload))
    counts = ranks.ask(START_SECONDS, n=n, cf=cf, repeats=repeats)
    progress(f"n = {n:,}, CF {cf:g}, sent {repeats} times")
    sent = [
        _without_framing(more) - _without_framing(less) for more, less in zip(counts, nothing, strict=True)
    ]
    return float(sum(sent) / len(sent) / repeats / (HOSTS - 1)), payload


def _without_framing(counted: dict[str, Any]) -> float:
    return float(counted["tx_bytes"] - FRAME_BYTES * counted["tx_packets"])
