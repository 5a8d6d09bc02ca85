"""Where ranks run: on hosts of a network of our own, or side by side on this machine; each on a core."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from gravac_controller.bench.namespaces import NetworkUnavailable
from gravac_controller.bench.network import INTERFACE, Network
from gravac_controller.bench.ranks import Place

FIRST_PORT = 29600
Tell = Callable[[str], None]
"""Gets a line about how it goes, now and then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """A place for each rank. ``no_network``: why they are side by side on this machine; None: each has a host."""

    ranks: list[Place]
    no_network: str | None
    shape: Callable[[float | None], None] | None = None
    """Gives every link another rate, bits a second, also while ranks talk; None: there are no links of our own."""

    def port(self, number: int) -> int | None:
        """Where the ``number``-th group of ranks meets; None: wherever is free, for others are on this machine too."""
        return FIRST_PORT + number if self.no_network is None else None

    @property
    def interface(self) -> str | None:
        """Whose counters tell the bytes of one rank; None: no interface is a rank's own."""
        return INTERFACE if self.no_network is None else None


def side_by_side(count: int, why: str, tell: Tell) -> Places:
    """On this machine's loopback."""
    here = Place(address="127.0.0.1", interface="lo", core=None, wrap=list)
    return Places(ranks=[replace(here, core=core) for core in _cores(count, tell)], no_network=why)


@contextmanager
def on_hosts(count: int, bits_per_second: float | None, tell: Tell) -> Iterator[Places]:
    """On hosts with links of that rate (None: not shaped); where no network can be made, side by side."""
    with ExitStack() as stack:
        try:
            network = stack.enter_context(Network(count, bits_per_second))
        except NetworkUnavailable as error:
            tell(f"No network of our own: {error}.")
            yield side_by_side(count, str(error), tell)
            return
        ranks = [
            Place(address=host.address, interface=INTERFACE, core=core, wrap=host.command)
            for host, core in zip(network.hosts, _cores(count, tell), strict=True)
        ]
        yield Places(ranks=ranks, no_network=None, shape=network.shape)


def _cores(count: int, tell: Tell) -> list[int | None]:
    """A core a rank, so that ranks do not take turns on one while another idles."""
    if shutil.which("taskset") is None:
        tell("Ranks are not pinned to cores: the command taskset is missing (Debian: util-linux).")
        return [None] * count
    usable = sorted(os.sched_getaffinity(0))
    if count > len(usable):
        tell(f"{count} ranks share {len(usable)} cores: step times are those of an overloaded machine.")
    return [usable[rank % len(usable)] for rank in range(count)]
