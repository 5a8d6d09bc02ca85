"""A trace that is copied while it is read, uncompressed and line by line, so that it can be read again from any offset.

The copy does not change while the original grows, starts a new part, or is deleted.
"""

import io
import zlib
from pathlib import Path
from typing import BinaryIO

from gravac.traces import TraceError, parts

_BOM = b"\xef\xbb\xbf"


class CopyingReader(io.RawIOBase):
    """The lines of the trace at ``source``, which are copied to ``target``.

    The source may be gzipped or in parts. Byte order marks and carriage returns are removed. Where a compressed file
    ends early, the rest is left out. ``size``: uncompressed bytes of the source as it states them; 0 if unknown.

    Raises:
        TraceError: The source cannot be opened. Reading may raise OSError and zlib.error.
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
        """Return the next line, at most ``size`` bytes of it; empty at the end."""
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
        """Flush everything read so far to the copy."""
        if not self.closed:
            self._copy.flush()

    def close(self) -> None:
        if not self.closed:
            self._source.close()
            self._copy.close()
        super().close()


def _size(source: Path) -> int:
    """Return the uncompressed bytes; 0 where they are unknown, as while a journal starts a new part."""
    files = [source]
    if source.name == parts.ACTIVE:
        files += parts.full_parts(source.parent).values()
    try:
        return sum(map(parts.plain_size, files))
    except OSError:
        return 0
