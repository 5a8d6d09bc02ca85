"""A trace that is copied while it is read: plain, line by line, so that it can be read again from any place on.

The copy stays as it is while the original goes on, turns to a new part, or is deleted.
"""

import io
import zlib
from pathlib import Path
from typing import BinaryIO

from gravac.traces import TraceError, parts

_BOM = b"\xef\xbb\xbf"


class Copied(io.RawIOBase):
    """The trace at ``source`` as a stream of lines, of which ``target`` becomes a copy.

    Gzipped and in parts is fine; neither has a byte order mark or carriage returns. What cannot be read of a
    compressed file that ends early is left out. ``size``: bytes of the source, uncompressed, by its word; 0 unknown.
    Raises TraceError when it cannot be opened, OSError and zlib.error later.
    """

    def __init__(self, source: Path, target: Path) -> None:
        try:
            self._source = (
                parts.open_journal(source) if source.name == parts.ACTIVE else parts.open_part(source)
            )
        except (OSError, zlib.error, EOFError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise TraceError(str(source), None, f"cannot be read: {why}") from None
        self.size = _size(source)
        self._copy: BinaryIO = target.open("xb")
        self._begun = False

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> bytes:
        """The next line, or as much of it as ``size`` bytes; nothing at the end."""
        try:
            raw = self._source.readline(-1 if size is None else size)
        except EOFError:
            return b""
        if not self._begun:
            raw, self._begun = raw.removeprefix(_BOM), True
        if raw.endswith(b"\r\n"):
            raw = raw[:-2] + b"\n"
        self._copy.write(raw)
        return raw

    def sync(self) -> None:
        """Have all that was read in the copy."""
        if not self.closed:
            self._copy.flush()

    def close(self) -> None:
        if not self.closed:
            self._source.close()
            self._copy.close()
        super().close()


def _size(source: Path) -> int:
    """Bytes, uncompressed; 0 where that cannot be told, as of a journal that just turns to a new part."""
    files = [source]
    if source.name == parts.ACTIVE:
        files += parts.full_parts(source.parent).values()
    try:
        return sum(map(parts.plain_size, files))
    except OSError:
        return 0
