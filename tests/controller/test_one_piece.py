"""Head and body of an answer go out together; nothing is lost, swapped, or kept for longer than a turn of the loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gravac_controller.one_piece import HELD_BYTES, OnePiece

LONG = b"x" * (HELD_BYTES + 1)


class Wire:
    """A transport that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.told.append(data)

    def close(self) -> None:
        self.told.append("close")

    def is_closing(self) -> bool:
        return "close" in self.told


async def _turn() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ([b"head", b"body"], [b"headbody"]),
        ([b"head", b"", b"body"], [b"headbody"]),
        ([b"head", LONG], [b"head" + LONG]),
        ([LONG, b"end"], [LONG, b"end"]),
        ([b"head"], [b"head"]),
        ([b"head", _turn, b"event"], [b"head", b"event"]),
        ([b"head", b"body", b"second"], [b"headbody", b"second"]),
        ([b"head", "close"], [b"head", "close"]),
        ([b"head", b"body", "close"], [b"headbody", "close"]),
    ],
)
def test_what_goes_out(what: list[Any], told: list[bytes | str]) -> None:
    async def main() -> list[bytes | str]:
        wire = Wire()
        one: Any = OnePiece(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
        for step in what:
            if isinstance(step, bytes):
                one.write(step)
            elif isinstance(step, str):
                one.close()
            else:
                turn: Callable[[], Awaitable[None]] = step
                await turn()
        await _turn()
        assert one.is_closing() == ("close" in what)
        return wire.told

    assert asyncio.run(main()) == told
