"""One line of a trace (a job's journal is its trace): how it is written, read and sealed. No I/O.

    {"kind":"window","schema":1,"time":1712.5,"body":{…},"digest":"9f86d081884c7d65"}

``digest`` is the first 16 hex digits of SHA-256 over the previous line's digest and this line's bytes before
``,"digest":``. So the lines form a chain, which shows that a line was altered, removed, added or moved. The chain
guards against accidents and careless editing, not against a forger, who could compute all digests again. ``time`` (Unix
seconds) is for people; no decision depends on it.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import ValidationError

from gravac.protocol import SCHEMA, Decision, End, Event, JobSpec, Override, WindowReport
from gravac.traces.parts import Part
from gravac.wording import first_problem

TraceRecord = Part | JobSpec | WindowReport | Decision | Override | Event | End
KINDS: dict[str, type[TraceRecord]] = {
    "job": JobSpec,
    "window": WindowReport,
    "decision": Decision,
    "override": Override,
    "event": Event,
    "end": End,
    "part": Part,
}
"""Model of each kind of line. A new kind needs a model in ``gravac.protocol`` and an entry here."""

Recognize = Callable[[str, bytes], TraceRecord | None]
"""Returns the record for a kind and the bytes of a body, if the caller already holds it; None: parse the body."""

_KIND_OF = {model: kind for kind, model in KINDS.items()}
MAX_LINE_BYTES = 1 << 20
_HEAD = re.compile(
    rb'\{"kind":"([a-z_]{1,32})","schema":([0-9]{1,9}),"time":(-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[+-][0-9]{1,3})?),"body":'
)
_TAIL = re.compile(rb',"digest":"([0-9a-f]{16})"\}')
_TAIL_BYTES = len(b',"digest":"0123456789abcdef"}')


class TraceError(ValueError):
    """A trace cannot be read or written.

    Attributes:
        path: The file.
        line: Number of the line, from 1; None when the problem is with the file.
        message: What is wrong.
    """

    def __init__(self, path: str, line: int | None, message: str) -> None:
        super().__init__(f"{path}{'' if line is None else f' line {line}'}: {message}")
        self.path, self.line, self.message = path, line, message


# Not frozen: that makes construction four times as slow, and a long trace has hundreds of thousands of lines.
@dataclass(slots=True)
class Line:
    """A line of a trace.

    Attributes:
        number: Place of the line, from 1, counted through all parts.
        kind: Kind of record, a key of ``KINDS``.
        time: Unix seconds.
        record: The record itself.
        digest: Digest that the line carries.
        expected: Digest that its bytes give.
        body: The record's JSON as written, which saves serializing it again to compare. Empty when the line was not
            read from a file.
    """

    number: int
    kind: str
    time: float
    record: TraceRecord
    digest: str
    expected: str
    body: bytes = field(default=b"", compare=False, repr=False)

    @property
    def intact(self) -> bool:
        """Whether the line is unchanged since it was written."""
        return self.digest == self.expected


def kind_of(record: TraceRecord) -> str:
    """Return the kind of line that a record is written as."""
    return _KIND_OF[type(record)]


def altered(digest: str, expected: str) -> str:
    """Return the message for a line whose digest is wrong."""
    return f"was altered after it was written (digest {digest}, expected {expected})"


def encode(record: TraceRecord, time: float, previous_digest: str) -> tuple[bytes, str]:
    """Write one line.

    Args:
        record: Body of the line.
        time: Unix seconds.
        previous_digest: Digest of the line before; empty for the first.

    Returns:
        The line, newline included, and its digest.

    Raises:
        ValueError: ``time`` is not finite, or the line is longer than ``MAX_LINE_BYTES``.
    """
    if not math.isfinite(time):
        raise ValueError(f"time: must be finite, got {time!r}")
    stamp = json.dumps(round(time, 6))
    head = f'{{"kind":"{kind_of(record)}","schema":{SCHEMA},"time":{stamp},"body":'
    sealed = (head + record.model_dump_json()).encode()
    digest = seal(previous_digest, sealed)
    line = sealed + f',"digest":"{digest}"}}\n'.encode()
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a trace line of {len(line)} bytes ({kind_of(record)}); at most {MAX_LINE_BYTES}")
    return line, digest


def seal(previous_digest: str, sealed: bytes) -> str:
    """Return the digest of a line's bytes before ``,"digest":``, chained to the line before ("" for the first)."""
    return hashlib.sha256(previous_digest.encode() + sealed).hexdigest()[:16]


def split(raw: bytes) -> tuple[bytes, str] | None:
    """Return a line's sealed bytes and the digest it carries; None when the line has no end."""
    tail = _TAIL.fullmatch(raw[-_TAIL_BYTES:])
    return None if tail is None else (raw[:-_TAIL_BYTES], tail[1].decode())


def decode(
    raw: bytes,
    number: int,
    previous_digest: str,
    path: str,
    verify: bool = False,
    recognize: Recognize | None = None,
) -> Line:
    """Read one line.

    Args:
        raw: The line without its newline.
        number: Number of the line, from 1.
        previous_digest: Digest of the line before; empty for the first.
        path: The file, for messages.
        verify: Raise TraceError for a wrong digest. Without it, see ``Line.intact``.
        recognize: Returns the record of a body that the caller already holds.

    Returns:
        The line.

    Raises:
        TraceError: The line is not a record of this schema. The message names the field.
    """
    parts = split(raw)
    if parts is None:
        raise TraceError(path, number, 'not a trace line: it does not end in ,"digest":"<16 hex digits>"}')
    sealed, digest = parts
    expected = seal(previous_digest, sealed)
    if verify and digest != expected:
        raise TraceError(path, number, altered(digest, expected))
    head = _HEAD.match(sealed)
    if head is None:
        raise TraceError(path, number, 'not a trace line: it does not begin {"kind":…,"schema":…,"time":…')
    kind, schema = head[1].decode(), int(head[2])
    if schema != SCHEMA:
        newer = "; a newer gravac wrote it" if schema > SCHEMA else ""
        message = f"schema: this gravac reads version {SCHEMA}, the line has {schema}{newer}"
        raise TraceError(path, number, message)
    if kind not in KINDS:
        raise TraceError(path, number, f"kind: must be one of {', '.join(KINDS)}, got {kind!r}")
    body = sealed[head.end() :]
    record = None if recognize is None else recognize(kind, body)
    if record is None:
        try:
            record = KINDS[kind].model_validate_json(body)
        except ValidationError as error:
            raise TraceError(path, number, _fault(kind, error)) from None
    return Line(number, kind, float(head[3]), record, digest, expected, body)


def _fault(kind: str, error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    if problem["type"] == "json_invalid":  # its "at line 1" is of the body, not of the trace
        why = str(problem["ctx"]["error"]).replace(" at line 1 column ", " at its character ")
        return f"{kind}: its body is not JSON: {why}"
    return f"{kind}.{first_problem(error)}"
