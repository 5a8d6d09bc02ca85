"""Names and addresses of servers. Addresses are compared by ``ipaddress``, never as text patterns."""

import functools
import ipaddress
import socket
from urllib.parse import urlsplit

REMEMBERED = 64
"""Parsed Host headers in the cache: most clients send the same one."""


def canonical_host(host: str) -> str:
    """Normalize a host: lower case, no brackets, no final dot, addresses as ``ipaddress`` writes them."""
    bare = host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return bare


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on ``host``."""
    bare = canonical_host(host)
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return bare == "localhost"


def own_name(host: str) -> str:
    """Return the name of a server that listens on ``host``: this machine's name where it listens on all addresses."""
    bare = canonical_host(host)
    return socket.gethostname() if bare in ("0.0.0.0", "::") else bare


@functools.lru_cache(REMEMBERED)
def host_of(header: str) -> str | None:
    """Return the normalized host in a Host header; None for anything that is not host or host:port."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc != header or "@" in header or not parts.hostname:
        return None
    return canonical_host(parts.hostname)
