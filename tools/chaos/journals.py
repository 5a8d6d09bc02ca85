"""Reads the journals of an episode, and checks each by itself."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from gravac.protocol import Decision, End, Event, WindowReport
from gravac.replays.replay import check
from gravac.traces import TraceError, parts, read_trace

MOST_CF = 1000.0
"""Largest CF of the policies used here."""
_RANGE = re.compile(r"windows (\d+) to (\d+)")
_TAIL_BYTES = 1 << 16


@dataclass
class Journal:
    """The journal of one job. ``ends``: incarnations that ended."""

    path: Path
    windows: list[WindowReport] = field(default_factory=list)
    gaps: list[range] = field(default_factory=list)
    ends: set[str] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def journals(data_dir: Path) -> list[Journal]:
    """Read and check all journals of a folder."""
    return [examined(path) for path in sorted(data_dir.glob(f"*/{parts.ACTIVE}"))]


def examined(path: Path) -> Journal:
    """Read a journal and check it: no window twice, no unexplained gap, decisions that follow and stay in bounds."""
    found = Journal(path)
    where = f"journal of {path.parent.name}"
    expected, epoch, recovered = 0, 0, False
    try:
        for line in read_trace(path):
            record = line.record
            if isinstance(record, WindowReport):
                if record.window < expected:
                    found.wrong.append(f"doubled: {where}: window {record.window} at line {line.number}")
                elif record.window > expected:
                    missing = range(expected, record.window)
                    if missing not in found.gaps:
                        found.wrong.append(
                            f"gap: {where}: windows {missing} are missing, and no event says so"
                        )
                expected = max(expected, record.window + 1)
                found.windows.append(record)
            elif isinstance(record, Decision):
                if max(record.cf_candidate, record.cf_minimum) > MOST_CF or record.phase == "fallback":
                    found.wrong.append(f"bounds: {where}: line {line.number} decides {record.model_dump()}")
                if record.epoch > epoch + 1:
                    found.wrong.append(
                        f"epochs: {where}: line {line.number} jumps from {epoch} to {record.epoch}"
                    )
                epoch = record.epoch
            elif isinstance(record, Event):
                found.events.append(record)
                if record.kind == "recovered" and recovered:
                    found.wrong.append(
                        f"doubled: {where}: line {line.number} repeats that the controller is back"
                    )
                recovered = record.kind == "recovered" or (
                    recovered and record.kind not in ("fallback", "restarted")
                )
                if record.kind == "gap" and (numbers := _RANGE.search(record.message)):
                    found.gaps.append(range(int(numbers[1]), int(numbers[2]) + 1))
                    expected = (
                        max(expected, found.gaps[-1].stop)
                        if _continues(found.gaps[-1], expected)
                        else expected
                    )
            elif isinstance(record, End):
                found.ends.add(record.incarnation)
    except TraceError as error:
        found.wrong.append(f"unreadable: {where}: {error}")
    replayed = check(path)
    if not replayed.ok:
        found.wrong.append(f"replay: {where}: {replayed.differences[0].message}")
    return found


def _continues(gap: range, expected: int) -> bool:
    return gap.start <= expected <= gap.stop


def latest(data_dir: Path, incarnation: str) -> tuple[int, set[int]]:
    """Return how far the journal is for one incarnation of the trainer.

    Returns:
        First step of its newest journaled window (-1: none), and the epochs of the newest decisions.
    """
    newest, epochs = -1, set()
    for path in data_dir.glob(f"*/{parts.ACTIVE}"):
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            for raw in file.read().split(b"\n"):
                try:
                    line = json.loads(raw)
                    kind, body = line["kind"], line["body"]
                except (ValueError, TypeError, KeyError):
                    continue
                if kind == "window" and body["incarnation"] == incarnation:
                    newest = max(newest, body["first_step"])
                elif kind == "decision":
                    epochs.add(body["epoch"])
    return newest, epochs
