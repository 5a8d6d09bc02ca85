"""Reads traces of PyTorch's profiler (Kineto) event by event, in bounded memory, plain or gzipped."""

import gzip
import json
import os
import re
import stat
import zlib
from codecs import getincrementaldecoder
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

EVENTS = "traceEvents"
CHUNK_BYTES = 1 << 20
MOST_CHARACTERS = 1 << 22
"""Length of one event, or of one value beside the events. The largest event of a real trace has some thousand."""
IRREGULAR = "cannot be read: it is no regular file; give one that torch.profiler's export_chrome_trace wrote"
_GZIP = b"\x1f\x8b"
_BLANK = re.compile(r"[ \t\r\n]*")
_decode = json.JSONDecoder(strict=False).raw_decode


class ProfileError(ValueError):
    """A file is no profiler trace, or a broken one. The message names the file and what is wrong."""


def read_events(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the values at the top of a trace with their names, and each event under the name ``traceEvents``.

    Raises:
        ProfileError: the file cannot be read, is torn, or is not JSON.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as plain:
            if not stat.S_ISREG(os.fstat(plain.fileno()).st_mode):  # a FIFO would be waited for
                raise ProfileError(f"{path}: {IRREGULAR}")
            packed = plain.read(2) == _GZIP
            plain.seek(0)
            yield from _Text(gzip.GzipFile(fileobj=plain) if packed else plain).top()
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise ProfileError(f"{path}: its compression is broken ({error}); the file is torn") from None
    except _Broken as error:
        raise ProfileError(f"{path}: {error}") from None


class _Broken(Exception):
    """What is wrong, and where."""


class _Text:
    """The text of a file, of which only the part being parsed is in memory."""

    def __init__(self, file: BinaryIO | gzip.GzipFile) -> None:
        self._file, self._utf8 = file, getincrementaldecoder("utf-8")("replace")
        self._text, self._at, self._before, self._ended = "", 0, 0, False

    def top(self) -> Iterator[tuple[str, Any]]:
        """Yield what ``read_events`` yields."""
        first = self._next()
        if first == "[":  # the other form of Chrome's traces: events only
            yield from self._events()
        elif not first:
            raise self._broken("is empty")
        elif first != "{":
            raise self._broken("is not a trace of PyTorch's profiler: no JSON object begins")
        else:
            self._at += 1
            while self._next() != "}":
                name = self._value()
                if not isinstance(name, str) or self._next() != ":":
                    raise self._broken("is not JSON: no name with a colon")
                self._at += 1
                if name == EVENTS and self._next() == "[":
                    yield from self._events()
                else:
                    yield name, self._value()
                self._comma("}")
            self._at += 1
        if self._next():
            raise self._broken("has text after the end of the trace")

    def _events(self) -> Iterator[tuple[str, Any]]:
        self._at += 1
        while self._next() != "]":
            yield EVENTS, self._value()
            self._comma("]")
        self._at += 1

    def _comma(self, end: str) -> None:
        found = self._next()
        if found == ",":
            self._at += 1
        elif found != end:
            raise self._broken(f"is not JSON: neither a comma nor {end}")

    def _next(self) -> str:
        """Return the next character that is not blank, without taking it; empty: the file ends."""
        skipped = 0
        while True:
            blank = _BLANK.match(self._text, self._at)
            skipped += (end := blank.end() if blank else self._at) - self._at
            self._at = end
            if self._at < len(self._text):
                return self._text[self._at]
            if skipped > MOST_CHARACTERS:
                raise self._broken(f"has more than {MOST_CHARACTERS:,} blanks in a row")
            if not self._more():
                return ""

    def _value(self) -> Any:
        """Return the next value, and go behind it."""
        if not self._next():
            raise self._broken("ends in the middle: the file is torn")
        while True:
            try:
                value, end = _decode(self._text, self._at)
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
            except RecursionError:
                raise self._broken("is nested too deeply") from None
            except ValueError as error:
                if self._ended:
                    raise self._broken(f"is torn, or not JSON: {_reason(error)}") from None
            size = len(self._text) - self._at
            if size > MOST_CHARACTERS:
                raise self._broken(
                    f"has a value that is broken, or longer than {MOST_CHARACTERS:,} characters"
                )
            self._more(max(CHUNK_BYTES, size))

    def _more(self, size: int = CHUNK_BYTES) -> bool:
        """Read on, and drop what was parsed. Return whether there was more."""
        data = self._file.read(size)
        self._ended = self._ended or not data
        self._before += self._at
        self._text = self._text[self._at :] + self._utf8.decode(data, final=not data)
        self._at = 0
        return bool(data)

    def _broken(self, what: str) -> _Broken:
        return _Broken(f"{what} (at character {self._before + self._at:,})")


def _reason(error: ValueError) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else "a number is too long"
