"""Lines of a byte stream within bounds, for reading traces that nobody vouches for."""

import zlib
from collections.abc import Generator
from typing import BinaryIO

from gravac.traces.line import MAX_LINE_BYTES, TraceError


def raw_lines(
    stream: BinaryIO, path: str, max_bytes: int, notes: list[str], owned: bool
) -> Generator[tuple[bytes, bool], None, None]:
    """Lines without their newline, and whether they had one. Closes an owned stream when done or dropped."""
    total = number = 0
    try:
        while True:
            number += 1
            try:
                raw = stream.readline(MAX_LINE_BYTES + 1)
            except EOFError:
                notes.append(f"the compressed stream ends early, in line {number}: the rest is left out")
                return
            except (OSError, zlib.error) as error:
                raise TraceError(path, number, f"cannot be read: {error}") from None
            total += len(raw)
            if not raw:
                return
            if len(raw) > MAX_LINE_BYTES:
                raise TraceError(path, number, f"is longer than {MAX_LINE_BYTES} bytes")
            if total > max_bytes:
                raise TraceError(path, number, f"the trace is longer than {max_bytes} bytes")
            yield raw.removesuffix(b"\n"), raw.endswith(b"\n")
    finally:
        if owned:
            stream.close()
