"""An emulated network inside this machine: a namespace for each host, a bridge, and a shaped link to each host.

The bridge has a separate namespace: it does not appear among the machine's interfaces, the firewall does not apply, and
deleting the namespaces deletes everything. A packet passes two token buckets, one at the sender and one at the
receiver, so several senders to one receiver share its rate, as at a real switch. No delay is added, because many
kernels have ``tbf`` but not ``netem``.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import ClassVar, Self

from gravac_lab.bench import namespaces
from gravac_lab.bench.namespaces import NetworkUnavailable, call

MAX_HOSTS = 250
INTERFACE = "eth0"
"""The one interface of every host."""
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}
_LEAST = 8e3
BURST_SECONDS = 0.001
LEAST_BURST_BYTES = 32 * 1024
QUEUE_SECONDS = 0.05
"""Maximum time of a packet in the queue before it is dropped, as in a router with a fair queue."""


def parse_rate(text: str) -> float | None:
    """``100mbit``, ``2.5gbit``, ``64kbit`` to bits per second; ``none`` to None: a link that is not shaped.

    Raises ValueError that shows the expected form. ``mbps`` is rejected, because ``tc`` reads it as megabytes.
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


def token_bucket(bits_per_second: float, burst_bytes: int | None = None) -> list[str]:
    """The arguments of ``tc`` for a token bucket filter of this rate (tc-tbf(8)).

    ``burst_bytes``: of the bucket; None: a millisecond of traffic, and at least one large packet.
    """
    if burst_bytes is None:
        burst_bytes = max(LEAST_BURST_BYTES, int(bits_per_second / 8 * BURST_SECONDS))
    rate, latency = f"{bits_per_second:.0f}bit", f"{QUEUE_SECONDS * 1000:.0f}ms"
    return ["tbf", "rate", rate, "burst", str(burst_bytes), "latency", latency]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host. ``port``: its interface at the bridge."""

    namespace: str
    address: str
    port: str

    def command(self, words: Sequence[str]) -> list[str]:
        """The words that run a command on this host."""
        return ["ip", "netns", "exec", self.namespace, *words]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a host has sent and received since its creation, all protocols, with bytes including headers."""

    sent_bytes: int
    sent_packets: int
    received_bytes: int


class HostNetwork:
    """``with HostNetwork(4, 1e8) as network:`` four hosts, 100 Mbit/s each way each; None: not shaped.

    ``burst_bytes``: as in ``token_bucket``.

    Raises ValueError for an invalid number of hosts, and NetworkUnavailable (when entered) where the machine does not
    allow it. A killed process leaves its namespaces behind; the next network removes them.
    """

    _serial: ClassVar["count[int]"] = count()

    def __init__(self, hosts: int, bits_per_second: float | None, burst_bytes: int | None = None) -> None:
        if not 1 <= hosts <= MAX_HOSTS:
            raise ValueError(f"hosts={hosts} must be between 1 and {MAX_HOSTS}")
        self._rate, self._burst_bytes = bits_per_second, burst_bytes
        serial, pid = next(self._serial), os.getpid()
        self._bridge = namespaces.name(pid, serial, "bridge")
        self.hosts = tuple(
            Host(
                namespace=namespaces.name(pid, serial, f"host{n}"),
                address=f"10.77.0.{n + 1}",
                port=f"port{n}",
            )
            for n in range(hosts)
        )

    def __enter__(self) -> Self:
        reason = namespaces.obstacle()
        if reason is not None:
            raise NetworkUnavailable(reason)
        namespaces.remove_stale()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def shape(self, bits_per_second: float | None) -> None:
        """Change the rate of every link, also while it is used. No packet is lost unless the queue overflows."""
        for host in self.hosts:
            for namespace, device in ((host.namespace, INTERFACE), (self._bridge, host.port)):
                if bits_per_second is not None:
                    words = token_bucket(bits_per_second, self._burst_bytes)
                    call("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *words)
                elif self._rate is not None:
                    call("tc", "-n", namespace, "qdisc", "delete", "dev", device, "root")
        self._rate = bits_per_second

    def traffic(self) -> list[Traffic]:
        """The bytes that every host has sent and received so far, from the counters of its interface."""
        return [self._traffic(host) for host in self.hosts]

    def _traffic(self, host: Host) -> Traffic:
        (link,) = json.loads(call("ip", "-n", host.namespace, "-s", "-j", "link", "show", "dev", INTERFACE))
        counters = link["stats64"]
        sent = counters["tx"]
        return Traffic(
            sent_bytes=sent["bytes"], sent_packets=sent["packets"], received_bytes=counters["rx"]["bytes"]
        )

    def _build(self) -> None:
        call("ip", "netns", "add", self._bridge)
        call("ip", "-n", self._bridge, "link", "add", "name", "bridge0", "type", "bridge")
        call("ip", "-n", self._bridge, "link", "set", "dev", "bridge0", "up")
        for host in self.hosts:
            inside, outside = ("ip", "-n", host.namespace), ("ip", "-n", self._bridge)
            call("ip", "netns", "add", host.namespace)
            peer = ("peer", "name", INTERFACE, "netns", host.namespace)
            call(*outside, "link", "add", "name", host.port, "type", "veth", *peer)
            call(*outside, "link", "set", "dev", host.port, "master", "bridge0", "up")
            call(*inside, "address", "add", f"{host.address}/24", "dev", INTERFACE)
            call(*inside, "link", "set", "dev", INTERFACE, "up")
            call(*inside, "link", "set", "dev", "lo", "up")  # a host talks to itself over it
        if self._rate is not None:
            self.shape(self._rate)

    def _remove(self) -> None:
        for host in self.hosts:
            namespaces.remove(host.namespace)
        namespaces.remove(self._bridge)
