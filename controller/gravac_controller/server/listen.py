"""The listening socket, opened by us: uvicorn's own way ends the process without saying why."""

import errno
import socket

SEND_BUFFER_BYTES = 262_144
"""What the kernel holds for a reader that does not read. Left alone it grows to megabytes each."""

UNREAD_MILLISECONDS = 60_000
"""The kernel drops a connection whose peer takes nothing for this long."""


class ListenError(Exception):
    """The address cannot be listened on; the message says why and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A TCP socket that listens on ``host`` and ``port`` (0: any free one). Raises ListenError."""
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
    """Where to reach the socket; ``host`` is written as given, in brackets for IPv6."""
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{shown}:{sock.getsockname()[1]}"


def local_url(sock: socket.socket) -> str:
    """Where this machine reaches the socket: by loopback where it listens everywhere."""
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
