"""The listening socket. uvicorn itself would end the process without saying why it cannot listen."""

import errno
import socket

SEND_BUFFER_BYTES = 262_144
"""Kernel buffer for a reader that does not read. By default it grows to megabytes each."""

UNREAD_MILLISECONDS = 60_000
"""The kernel drops a connection whose peer accepts no data for this long."""


class ListenError(Exception):
    """Listening on the address failed; the message says why and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """Return a TCP socket that listens on ``host`` and ``port``.

    Args:
        host: Name or address of this machine.
        port: 0 takes a free one.

    Raises:
        ListenError: The address cannot be used.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise ListenError(f"--host {host}: no such address; 127.0.0.1 is this machine") from None
    family = found[0][0]
    try:
        sock = socket.create_server(found[0][4][:2], family=family, backlog=128)
    except OSError as error:
        raise ListenError(_why(error, host, port)) from error
    # Accepted sockets inherit these. Without TCP_NODELAY each answer waits 40 ms for the client's delayed ACK:
    # asyncio sets it only where socket.proto says TCP, and create_server leaves that 0.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MILLISECONDS)
    return sock


def url_of(sock: socket.socket, host: str) -> str:
    """Return the URL of the socket under this name of the host."""
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{shown}:{sock.getsockname()[1]}"


def local_url(sock: socket.socket) -> str:
    """Return the URL for this machine: loopback where the socket listens on all addresses."""
    address = sock.getsockname()[0]
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    return url_of(sock, loopback)


def _why(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use by another program; give another with --port (--port 0 takes a "
            "free one)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs administrator rights; give one above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is not an address of this machine; 127.0.0.1 is, and 0.0.0.0 means all"
    return f"cannot listen on {host} port {port}: {error.strerror}"
