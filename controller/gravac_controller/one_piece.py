"""An answer leaves in one piece: uvicorn writes head and body apart, which wakes the client twice."""

import asyncio
from typing import Any

HELD_BYTES = 4096
"""A longer piece goes at once."""


class OnePiece:
    """A transport that holds a short piece back until the next one, or until the loop turns.

    Never more than one piece is held, so what a slow reader leaves unread is known, as before, one piece later at most.
    All else is the transport's own.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send soon, in order."""
        if not data:
            return
        if self._held or len(data) > HELD_BYTES:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        else:
            self._held = data
            self._loop.call_soon(self._let_go)

    def close(self) -> None:
        """Close when all is sent."""
        self._let_go()
        self._transport.close()

    def _let_go(self) -> None:
        held, self._held = self._held, b""
        if held:
            self._transport.write(held)
