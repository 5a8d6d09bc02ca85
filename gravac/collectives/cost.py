"""What an exchange takes, by the α-β-γ model: a message of S bytes costs α + S/β, work on what it holds γ an element.

α is the latency of a message in seconds, β the bandwidth of a rank's link in bytes/s (Hockney 1994; the collectives'
formulas: Thakur, Rabenseifner and Gropp 2005, Optimization of collective communication operations in MPICH). n ranks,
each with a link of its own that sends and receives at once. Pure.
"""

from dataclasses import dataclass
from math import isfinite

ELEMENT_SECONDS = 3e-9
"""γ: one element added to a tensor at its place, on one core; other work is told in these."""
MESSAGE_SECONDS = 2e-4
"""What packing or unpacking a message takes besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """α and β, equal on all ranks: whatever follows from them must be."""

    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        if not (self.latency_seconds >= 0 and isfinite(self.latency_seconds)):
            raise ValueError(f"latency_seconds={self.latency_seconds} must be finite and not negative")
        if not (self.bytes_per_second > 0 and isfinite(self.bytes_per_second)):
            raise ValueError(f"bytes_per_second={self.bytes_per_second} must be finite and above 0")

    def __str__(self) -> str:
        return f"{1e3 * self.latency_seconds:.3g} ms and {self.bytes_per_second / 1e6:.3g} MB/s"

    def seconds(self, messages: int, nbytes: float) -> float:
        """``messages`` one after the other, ``nbytes`` of them together."""
        return messages * self.latency_seconds + nbytes / self.bytes_per_second


def ring_bytes(nbytes: int, ranks: int) -> int:
    """Bytes each rank sends in a ring all-reduce of ``nbytes``: 2 (n-1)/n S."""
    return 2 * (ranks - 1) * nbytes // ranks


def all_reduce(network: Network, ranks: int, nbytes: int) -> float:
    """Seconds of a ring all-reduce of S bytes: 2(n-1) α + 2 (n-1)/n S/β."""
    return network.seconds(2 * (ranks - 1), 2 * (ranks - 1) / ranks * nbytes)


def all_gather(network: Network, ranks: int, nbytes: int) -> float:
    """Seconds of a ring all-gather of S bytes a rank: (n-1) (α + S/β)."""
    return network.seconds(ranks - 1, (ranks - 1) * nbytes)


def all_to_all(network: Network, ranks: int, nbytes: int) -> float:
    """Seconds of a pairwise all-to-all of S bytes a rank, S/n for each: (n-1) α + (n-1)/n S/β."""
    return network.seconds(ranks - 1, (ranks - 1) / ranks * nbytes)


def broadcast(network: Network, ranks: int, nbytes: int) -> float:
    """Seconds of a binomial tree: ⌈log2 n⌉ (α + S/β)."""
    return network.seconds(depth(ranks), depth(ranks) * nbytes)


def handling(messages: int, elements: float) -> float:
    """Seconds of work of one core on so many messages and, in all, elements. Measured once (benchmarks/collectives.py)
    and not on each machine: it need only tell what is hopeless where the network is fast."""
    return messages * MESSAGE_SECONDS + elements * ELEMENT_SECONDS


def depth(ranks: int) -> int:
    """Levels of a binomial tree: ⌈log2 n⌉."""
    return (ranks - 1).bit_length()


def children(ranks: int, rank: int, root: int) -> int:
    """Ranks that ``rank`` sends to in a binomial tree from ``root``."""
    place = (rank - root) % ranks
    return sum(
        1 for level in range(depth(ranks)) if place % (2 << level) == 0 and place + (1 << level) < ranks
    )
