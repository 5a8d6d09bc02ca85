"""What must hold after an episode. Each check returns a sentence for everything that does not."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from gravac.protocol import WindowReport
from tools.chaos.journals import Journal
from tools.chaos.launch import TrainingRecord, whole_lines
from tools.chaos.scene import Scene
from tools.chaos.witness import Witness

STEP_SECONDS = 2.0
"""Longest step, apart from the time that the machine itself was late."""
BUSY = 4.0
"""Load per core; above it, all bounds on time grow in proportion."""
CLOSE_SECONDS = 8.0
FRESH_CLOSE_SECONDS = 25.0
"""Longest ``close`` where a controller has to be started, which takes seconds on a busy machine."""
MOST_LINES_A_SECOND = 20
"""Of the training's log."""
_DROPPED = re.compile(r"window (\d+) is dropped")
_LACKS = re.compile(r"the journal of job \S+ lacks (.*)")
_COUNT = re.compile(r"(\d+) windows")
_STAMP = re.compile(r"(?m)^(\d+) [A-Z]+ ")
_ESCAPES = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def announced(log: str) -> tuple[set[int], int]:
    """Return what the journal lacks by the agent's log: windows by number, and how many more."""
    lacks = " ".join(_LACKS.findall(log))
    return {int(number) for number in _DROPPED.findall(log)}, sum(map(int, _COUNT.findall(lacks)))


def windows(training: TrainingRecord, books: Iterable[Journal], acknowledged: set[int]) -> list[str]:
    """Check that every window is journaled once, or its loss announced. ``acknowledged``: first steps of windows."""
    handed_in = [WindowReport.model_validate_json(line) for line in whole_lines(training.launch.handed_in)]
    if not handed_in:
        return []
    name, incarnation = training.launch.name, handed_in[0].incarnation
    found: list[str] = []
    journaled: dict[int, WindowReport] = {}
    gaps: set[int] = set()
    for book in books:
        own = [report for report in book.windows if report.incarnation == incarnation]
        for first_step, times in Counter(report.first_step for report in own).items():
            if times > 1:
                found.append(f"doubled: {name}: the window from step {first_step} is journaled {times} times")
        for report in own:
            journaled[report.first_step] = report
        if own:
            gaps |= {number for gap in book.gaps for number in gap}
    offset = 0
    for report in handed_in:
        there = journaled.pop(report.first_step, None)
        if there is not None:
            offset = there.window - report.window
            if there.model_copy(update={"window": report.window}) != report:
                found.append(f"altered: {name}: window {report.window} is journaled with other content")
    if journaled:
        found.append(f"invented: {name}: {len(journaled)} journaled windows were never handed_in in")
    stepped = {
        report.first_step for book in books for report in book.windows if report.incarnation == incarnation
    }
    missing = [report for report in handed_in if report.first_step not in stepped]
    lost = [report.window for report in missing if report.first_step in acknowledged]
    if lost:
        found.append(f"lost: {name}: windows {lost} were acknowledged and are not in the journal")
    if training.killed == 0:  # it may not have sent the last ones
        last = max((report.window for report in handed_in if report.first_step in stepped), default=-1)
        missing = [report for report in missing if report.window < last]
    dropped, more = announced(training.log())
    unannounced = [
        report.window for report in missing if not {report.window, report.window + offset} & dropped
    ]
    if len(unannounced) > more:
        where = (
            "only the gap in the journal says so"
            if {one + offset for one in unannounced} <= gaps
            else "no log says so"
        )
        found.append(
            f"lost: {name} ({training.outcome}): windows {spans(unannounced)} of {len(handed_in)} were handed in and "
            f"are in no journal; the log announces {more}, {where}"
        )
    return found


def spans(numbers: list[int]) -> str:
    """Write numbers as ranges."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("-".join(map(str, span)) for span in found)


def ended(training: TrainingRecord, books: Iterable[Journal]) -> list[str]:
    """Check that an orderly end is in the journal, unless the log announces a loss."""
    if training.outcome != "finished":
        return []
    starts = [note["incarnation"] for note in training.notes(0) if "incarnation" in note]
    if starts and not any(starts[0] in book.ends for book in books) and not _LACKS.search(training.log()):
        return [f"end: {training.launch.name} ended in order, and no journal says so"]
    return []


def equal(training: TrainingRecord) -> list[str]:
    """Check that all ranks have the same parameters, throughout and at the end."""
    seen: dict[int, set[str]] = {}
    for rank in range(training.launch.world):
        for note in training.notes(rank):
            if "fingerprint" in note:
                seen.setdefault(note["step"], set()).add(note["fingerprint"])
    differing = sorted(step for step, prints in seen.items() if len(prints) > 1)
    if differing:
        return [f"ranks differ: {training.launch.name}: from step {differing[0]} of {max(seen)}"]
    return []


def times(training: TrainingRecord, witness: Witness) -> list[str]:
    """Check that steps and the end took no longer than allowed, and that the training ended."""
    found = []
    name = training.launch.name
    for rank in range(training.launch.world):
        notes = training.notes(rank)
        for note in [note for note in notes if "longest" in note][-1:]:
            seconds, step, began = note["longest"]
            late = witness.late(began, began + seconds)
            if seconds - late > STEP_SECONDS * patience(note):
                found.append(
                    f"slow: {name}: step {step} of rank {rank} took {seconds:.2f} s "
                    f"(the machine was late by {late:.2f} s)"
                )
        for note in notes:
            bound = FRESH_CLOSE_SECONDS if training.fresh_controller else CLOSE_SECONDS
            bound *= patience(note)
            if note.get("closing", 0.0) > bound:
                found.append(
                    f"slow: {name}: rank {rank} closed in {note['closing']:.1f} s, more than {bound:g} s"
                )
            if note.get("left"):
                found.append(
                    f"orphan: {name}: rank {rank} closed and left controllers {note['left']} running"
                )
            if note.get("end") == "error" and training.outcome != "killed":
                found.append(f"failed: {name}: rank {rank}: {note['error']}")
    if training.outcome not in ("finished", "killed"):
        found.append(f"failed: {name}: {training.outcome}")
    return found


def patience(note: dict[str, Any]) -> float:
    """Return how many times longer things may take under that load."""
    return max(1.0, float(note.get("busy", 0.0)) / BUSY)


def log(training: TrainingRecord) -> list[str]:
    """Check that the training's log has no control characters, no traceback and no flood of lines."""
    found = []
    for rank in range(training.launch.world):
        text = training.log(rank)
        if match := _ESCAPES.search(text):
            at = text[max(0, match.start() - 60) : match.end() + 20]
            found.append(f"log: {training.launch.name}: rank {rank} logged a control character: {at!r}")
        if training.outcome == "finished" and "Traceback" in text:
            last = text[text.index("Traceback") :].splitlines()
            error = next((line for line in last[1:] if line and not line.startswith(" ")), "")
            found.append(f"log: {training.launch.name}: rank {rank} logged a traceback: {error}")
        seconds = [int(stamp) // 1000 for stamp in _STAMP.findall(text)]
        most = max(Counter(seconds).values(), default=0)
        if most > MOST_LINES_A_SECOND:
            found.append(f"log: {training.launch.name}: rank {rank} logged {most} lines within a second")
    return found


def peers(scene: Scene) -> list[str]:
    """Check that there was no request storm, and that no server saw what it must not."""
    found = []
    for watch in scene.watches:
        found += watch.storms() + watch.leaks(frozenset(scene.tokens))
    return found


def obeyed(training: TrainingRecord) -> list[str]:
    """Check that the ranks sent no CF above their policy's bounds."""
    beyond = sorted(cf for cf in training.cfs if cf > 1000.0)
    return [f"bounds: {training.launch.name} sent at CF {beyond}"] if beyond else []
