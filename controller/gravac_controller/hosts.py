"""Names and addresses of servers, as names and ``ipaddress`` objects, never as patterns."""

import functools
import ipaddress
import socket
from urllib.parse import urlsplit

REMEMBERED = 64
"""Host headers whose meaning is remembered: most clients send one and the same."""


def canonical_host(host: str) -> str:
    """A host name or address in one form: lower case, no brackets, no final dot, addresses as ipaddress has them."""
    bare = host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return bare


def is_loopback(host: str) -> bool:
    """Whether listening on ``host`` reaches only this machine."""
    bare = canonical_host(host)
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return bare == "localhost"


def own_name(host: str) -> str:
    """The name under which a server listening on ``host`` is called: this machine's where it listens everywhere."""
    bare = canonical_host(host)
    return socket.gethostname() if bare in ("0.0.0.0", "::") else bare


@functools.lru_cache(REMEMBERED)
def host_of(header: str) -> str | None:
    """The host in a Host header, canonical; null for anything that is not host or host:port."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc != header or "@" in header or not parts.hostname:
        return None
    return canonical_host(parts.hostname)
