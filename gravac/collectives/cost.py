"""Predicted seconds of exchanges, by the α-β-γ model: a message of S bytes costs α + S/β, work on an element costs γ.

α is the latency of a message in seconds, β the bandwidth of a link in bytes/s (Hockney 1994; formulas of the
collectives: Thakur, Rabenseifner and Gropp 2005, Optimization of collective communication operations in MPICH). n
ranks, and links that send and receive at once. Each rank has a link, or ranks that follow each other share one. In a
ring one of them sends over it at a time, so that sharing costs nothing. Pure functions.
"""

from dataclasses import dataclass
from math import isfinite

RING_RANKS = 4
"""Most ranks among whom a small sum goes in a ring: doubling takes as many messages there."""
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
        ranks_per_link: Ranks that share a link, as those of a host share its network card.

    Raises:
        ValueError: A number is negative or not finite, or the bandwidth is 0, or nobody has the link.
    """

    latency_seconds: float
    bytes_per_second: float
    ranks_per_link: int = 1

    def __post_init__(self) -> None:
        if not (self.latency_seconds >= 0 and isfinite(self.latency_seconds)):
            raise ValueError(f"latency_seconds={self.latency_seconds} must be finite and not negative")
        if not (self.bytes_per_second > 0 and isfinite(self.bytes_per_second)):
            raise ValueError(f"bytes_per_second={self.bytes_per_second} must be finite and above 0")
        if self.ranks_per_link < 1:
            raise ValueError(f"ranks_per_link={self.ranks_per_link} must be at least 1")

    def __str__(self) -> str:
        shared = f" for {self.ranks_per_link} ranks together" if self.ranks_per_link > 1 else ""
        return f"{1e3 * self.latency_seconds:.3g} ms and {self.bytes_per_second / 1e6:.3g} MB/s{shared}"

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
    """Return the seconds of a pairwise all-to-all of S bytes per rank, S/n for each: (n-1) α + m/n S/β, with the
    messages m that cross a link."""
    return network.seconds(ranks - 1, crossing(network.ranks_per_link, ranks) / ranks * nbytes)


def crossing(ranks_per_link: int, ranks: int) -> int:
    """Return how many messages of an all-to-all cross a link in one direction: n-1, or g (n-g) with g ranks on it.

    Where all ranks are on one host, its link is the memory between them, measured as if each had its own.
    """
    return ranks - 1 if ranks_per_link >= ranks else ranks_per_link * (ranks - ranks_per_link)


def broadcast(network: Network, ranks: int, nbytes: int) -> float:
    """Return the seconds of a binomial tree: ⌈log2 n⌉ (α + S/β). At the levels between hosts, all ranks of one send."""
    shared = network.ranks_per_link if network.ranks_per_link < ranks else 1
    sent = sum(
        min(shared, ranks - (1 << level)) if 1 << level >= shared else 1 for level in range(depth(ranks))
    )
    return network.seconds(depth(ranks), sent * nbytes)


def small_sum_messages(ranks: int) -> int:
    """Return the messages, one after the other, of a sum that is all latency, such as a tick: 2 (n-1) in a ring, and
    log2 n by recursive doubling, with one more on each side where n is no power of two."""
    if ranks <= RING_RANKS:
        return 2 * (ranks - 1)
    doublings = ranks.bit_length() - 1
    return doublings + 2 * (ranks != 1 << doublings)


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
