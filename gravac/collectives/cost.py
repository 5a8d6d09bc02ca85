"""Predicted seconds of exchanges, by the α-β-γ model: a message of S bytes costs α + S/β, work on an element costs γ.

α is the latency of a message in seconds, β the bandwidth of a rank's link in bytes/s (Hockney 1994; formulas of the
collectives: Thakur, Rabenseifner and Gropp 2005, Optimization of collective communication operations in MPICH). n
ranks, each with its own link that sends and receives at once. Pure functions.
"""

from dataclasses import dataclass
from math import isfinite

ELEMENT_SECONDS = 3e-9
"""γ: adding one element to a tensor at its position, on one core. Other work is counted in these."""
MESSAGE_SECONDS = 2e-4
"""Additional seconds to pack or unpack a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Latency and bandwidth, equal on all ranks, because whatever follows from them must be.

    Args:
        latency_seconds: α.
        bytes_per_second: β.

    Raises:
        ValueError: A number is negative or not finite, or the bandwidth is 0.
    """

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
        """Return the seconds of ``messages`` one after the other that have ``nbytes`` together."""
        return messages * self.latency_seconds + nbytes / self.bytes_per_second


def ring_bytes(nbytes: int, ranks: int) -> int:
    """Return the bytes that each rank sends in a ring all-reduce of ``nbytes``: 2 (n-1)/n S."""
    return 2 * (ranks - 1) * nbytes // ranks


def scatter_bytes(nbytes: int, ranks: int, by_all_reduce: bool) -> int:
    """Return the bytes that each rank sends in a reduce-scatter of S bytes: (n-1)/n S in a ring.

    With ``by_all_reduce`` it is an all-reduce of which each rank keeps its part, as with gloo.
    """
    return ring_bytes(nbytes, ranks) if by_all_reduce else (ranks - 1) * nbytes // ranks


def all_reduce(network: Network, ranks: int, nbytes: int) -> float:
    """Return the seconds of a ring all-reduce of S bytes: 2(n-1) α + 2 (n-1)/n S/β."""
    return network.seconds(2 * (ranks - 1), 2 * (ranks - 1) / ranks * nbytes)


def all_gather(network: Network, ranks: int, nbytes: int) -> float:
    """Return the seconds of a ring all-gather of S bytes per rank: (n-1) (α + S/β)."""
    return network.seconds(ranks - 1, (ranks - 1) * nbytes)


def all_to_all(network: Network, ranks: int, nbytes: int) -> float:
    """Return the seconds of a pairwise all-to-all of S bytes per rank, S/n for each: (n-1) α + (n-1)/n S/β."""
    return network.seconds(ranks - 1, (ranks - 1) / ranks * nbytes)


def broadcast(network: Network, ranks: int, nbytes: int) -> float:
    """Return the seconds of a binomial tree: ⌈log2 n⌉ (α + S/β)."""
    return network.seconds(depth(ranks), depth(ranks) * nbytes)


def handling(messages: int, elements: float) -> float:
    """Return the seconds that one core works on messages and, in all, elements.

    Measured once (lab/benchmarks/collectives.py) and not on each machine: it only has to show what is hopeless on
    a fast network.
    """
    return messages * MESSAGE_SECONDS + elements * ELEMENT_SECONDS


def depth(ranks: int) -> int:
    """Return the levels of a binomial tree: ⌈log2 n⌉."""
    return (ranks - 1).bit_length()


def children(ranks: int, rank: int, root: int) -> int:
    """Return how many ranks ``rank`` sends to in a binomial tree from ``root``, as in gloo's."""
    place = (rank - root) % ranks
    return sum(1 for level in range(depth(ranks)) if place < 1 << level and place + (1 << level) < ranks)
