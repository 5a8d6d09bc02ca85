"""A glance at a journal: what its first and last lines say of the job, without reading those between."""

import mmap
import os
import re
from pathlib import Path

from gravac.protocol import End
from gravac.traces import Line, TraceError
from gravac.traces.line import MAX_LINE_BYTES, decode
from gravac.traces.parts import ACTIVE
from gravac_controller.live.projection import LiveJob
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.models import Totals

_WHOLE = re.compile(r"journal(\.jsonl|\.[0-9]+\.jsonl\.gz)")  # nothing left to repair or compress
_PIECE = 4096


def last_line(folder: Path) -> Line | None:
    """Return the last line of a journal; None where something in it is unfinished. Raises OSError."""
    names = os.listdir(folder)
    if ACTIVE not in names or not all(_WHOLE.fullmatch(name) for name in names if name.startswith("journal")):
        return None
    path = folder / ACTIVE
    with path.open("rb") as file:
        size, piece = file.seek(0, os.SEEK_END), _PIECE
        while True:
            file.seek(max(0, size - piece))
            tail = file.read(piece)
            if not tail.endswith(b"\n"):
                return None
            begins = tail.rfind(b"\n", 0, -1) + 1
            if begins or piece > min(size, MAX_LINE_BYTES):
                break
            piece *= 16
    try:
        return decode(tail[begins:-1], 1, "", str(path))
    except TraceError:
        return None


def glance(path: Path, settings: ControllerSettings) -> LiveJob:
    """Return a job as its last lines show it, good enough for its line in a list. Raises OSError, TraceError.

    The counts are those of the job's end; where it has none, they are those of the last window.
    """
    live = LiveJob(settings)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        second = text.find(b"\n") + 1
        third = text.find(b"\n", second) + 1
        last = (
            text.rfind(b'\n{"kind":"%b",' % kind) + 1 for kind in (b"job", b"window", b"decision", b"end")
        )
        for start in sorted({0, second, third, *last}):
            raw = text[start : text.find(b"\n", start)]
            if raw:
                line = decode(raw, 1, "", str(path))
                live.apply(1, line.time, line.record)
                if isinstance(line.record, End):
                    counted = Totals(windows=line.record.windows, steps=line.record.steps)
    if live.latest is not None:
        report = live.latest.report
        counts, ended = live.counts, live.presence.ended
        counts.totals = counted if ended else Totals(windows=report.window + 1, steps=report.last_step + 1)
        counts.windows, counts.steps = counts.totals.windows, counts.totals.steps
    return live
