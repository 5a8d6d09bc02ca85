"""Which ranks share a link, and whether other machines can reach this one at the address where gloo listens.

gloo listens at the address that the host's name resolves to, unless GLOO_SOCKET_IFNAME names an interface. A fresh
Debian resolves it to 127.0.1.1. Then ``init_process_group`` fails on some ranks ("connectFullMesh failed ... Connection
refused, remote=[127.0.1.1]") and the others wait. That is before an Agent exists, so the check runs at the import.
"""

import fcntl
import ipaddress
import logging
import os
import socket
import struct

log = logging.getLogger("gravac.agent")

_SIOCGIFADDR = 0x8915
"""Linux: an interface's IPv4 address."""


def warn_of_loopback() -> None:
    """Log a warning if torchrun started this process on one of several machines and gloo would listen on loopback.

    Never raises.
    """
    try:
        several = int(os.environ["WORLD_SIZE"]) > int(os.environ["LOCAL_WORLD_SIZE"])
        problem = loopback_problem(os.environ.get("MASTER_ADDR", "")) if several else None
    except (KeyError, ValueError, OSError):
        return
    if problem is not None:
        log.warning(problem)


def link_name() -> str:
    """Return a name of what this process reaches the network by: its machine's, and that of its network namespace."""
    try:
        namespace = os.stat("/proc/thread-self/ns/net").st_ino
    except OSError:  # not on Linux
        namespace = 0
    return f"{socket.gethostname()} {namespace}"


def loopback_problem(master: str) -> str | None:
    """Return what is wrong and what to do, in a sentence; None when nothing is wrong.

    Args:
        master: Address of rank 0's machine.
    """
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return None
    name = socket.gethostname()
    try:
        address = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except socket.gaierror:
        address = ""
    if address and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return None
    where = f"resolves to {address}" if address else "does not resolve"
    return (
        f"the name of this machine, {name}, {where}: gloo would listen there, and other machines cannot reach it. Set "
        f"GLOO_SOCKET_IFNAME={_interface(master) or 'eth0'} on this machine (docs/multi-host.md)"
    )


def _interface(master: str) -> str | None:
    """Return the interface on the route to ``master``; None where it is not known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master, 9))  # sends nothing
            own = probe.getsockname()[0]
        except OSError:
            return None
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            if socket.inet_ntoa(found[20:24]) == own and name != "lo":
                return name
    return None
