"""Change any digit in a recorded trace: it is found, or no decision depends on it. For every field of every kind of
line.

The digests find every change. With digests computed again, as a forger would: replay finds every change to a decision;
no decision depends on the fields of ``SILENT``, even when all of them are changed everywhere at once; decisions depend
on every other field, and a change that replay does not find (a last digit, a gain that was not the best) changes no
decision and no reason.
"""

import functools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac.protocol import Decision
from gravac.traces import Line, TraceError, read_trace
from gravac.traces.line import decode, encode
from tests.support.trace_leaves import Replayed, altered, changes, field, leaves, other
from tests.support.traces_made import NOTE

TRACES = sorted((Path(__file__).parents[2] / "traces").glob("*.jsonl*"))
BY_NAME = pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.partition(".")[0])
SILENT = {
    # About the run, for people. What a rule has to know of it is in its settings.
    "for people": (
        *("job.environment", "job.model", "job.settings", "job.link", "job.window_steps"),
        "job.optimizer",  # only ``auto`` reads it
    ),
    "reported, not decided": ("event.kind", "event.message", "event.window", "override.epoch"),
    "after the last decision": ("end",),
    "where a part lies, for who reads it alone": ("part",),
    # Rules read the medians and the samples of settled steps, by CF, and what the window took, as trials have a price.
    # These show where the time went, and to whom.
    "other times": ("window.phases", "window.spread", "window.ranks"),
    # Gains are smoothed by the ranks' gate; the raw sums are there so that other signals can be worked out.
    "raw sums": ("window.levels.*.sums", "window.curve.steps"),
    "bytes, as no rule counts them": (
        *("window.dense_bytes", "window.payload_bytes"),
        *("window.levels.*.dense_bytes", "window.levels.*.payload_bytes"),
    ),
    "quality and faults: shown, and the steps were left out already": (
        *("window.loss", "window.nonfinite_steps", "window.failed_steps"),
    ),
    # Rules ask each level under which decision it ran.
    "of the last step only": ("window.epoch", "window.cf"),
    "for who looks inside a window": ("window.steps",),
}
"""Why no decision depends on a field: those named and all below them. An announced gap (``event.kind``) hides a missing
window whose line is gone too: the chain of digests finds that, and a gap that is not announced is a difference."""
SUMMED = "window.seconds"
"""Decides as a sum over the windows so far, as trials may cost a share of it: one window alone changes no decision."""
NAMES = tuple(name for names in SILENT.values() for name in names)


@functools.cache
def silent(name: str) -> bool:
    return any(name == each or name.startswith(each + ".") for each in NAMES)


@functools.cache
def replayed(path: Path) -> Replayed:
    return Replayed(list(read_trace(path)))


def first_of_each_field(lines: list[Line]) -> dict[str, tuple[int, tuple[str | int, ...], object]]:
    found: dict[str, tuple[int, tuple[str | int, ...], object]] = {}
    for place, line in enumerate(lines):
        for way, value in leaves(line.record.model_dump(mode="json")):
            found.setdefault(field(line.kind, way), (place, way, value))
    return found


@BY_NAME
def test_what_is_not_sealed_anew_is_caught_by_its_digest(path: Path) -> None:
    lines, tried = replayed(path).lines, 0
    for place, way, value in first_of_each_field(lines).values():
        for changed in changes(value):
            line = altered(lines[place], {way: changed})
            if line is not None:
                tried += 1
                before = "" if place == 0 else lines[place - 1].digest
                sealed = encode(line.record, line.time, before)[0]
                raw = sealed[: -len('0123456789abcdef"}\n')] + lines[place].digest.encode() + b'"}'
                with pytest.raises(TraceError, match="was altered after it was written"):
                    decode(raw, line.number, before, "trace", verify=True)
    assert tried > 150


@BY_NAME
def test_every_change_to_any_decision_is_caught_even_sealed_anew(path: Path) -> None:
    trace, tried = replayed(path), 0
    for place, line in enumerate(trace.lines):
        if line.kind == "decision":
            for number, (way, value) in enumerate(leaves(line.record.model_dump(mode="json"))):
                # Each leaf once, in another way at each line.
                found = (altered(line, {way: changed}) for changed in turned(changes(value), place + number))
                forged = next((each for each in found if each is not None), None)
                if forged is not None and forged.record != line.record:
                    tried += 1
                    assert trace.catches(place, forged, later=0), (line.number, field(line.kind, way))
    assert tried > 150


def turned(values: list[object], by: int) -> list[object]:
    by %= len(values)
    return values[by:] + values[:by]


@BY_NAME
def test_no_decision_depends_on_silent_fields(path: Path) -> None:
    """All changed at once, in every line, with other times: each decision stays the same, to the byte."""
    trace, changed = replayed(path), 0
    forged = []
    for line in trace.lines:
        ways = {
            way: other(value)
            for way, value in leaves(line.record.model_dump(mode="json"))
            if silent(field(line.kind, way)) and other(value) != value
        }
        twisted = altered(line, ways)
        assert twisted is not None, (line.number, ways)
        forged.append(replace(twisted, time=line.time / 2 - 7.5))
        changed += len(ways)
    Replayed(forged)  # which raises where a decision does not follow
    assert changed > 500


def test_every_other_field_decides() -> None:
    """No field is wrongly called decisive: for each there is a change that replay finds."""
    names: dict[str, list[tuple[Replayed, int, tuple[str | int, ...], object]]] = {}
    for trace in map(replayed, TRACES):
        turning = sorted(range(len(trace.lines)), key=lambda place: quiet(trace.lines, place))
        for place in turning:
            line = trace.lines[place]
            if line.kind != "decision":
                for way, value in leaves(line.record.model_dump(mode="json")):
                    name = field(line.kind, way)
                    if value not in (None, []) and not silent(name) and name != SUMMED:
                        names.setdefault(name, []).append((trace, place, way, value))
    never = [name for name, places in names.items() if not any(map(decides, places))]
    assert never == []
    assert len(names) > 30


def test_a_sum_over_the_windows_decides() -> None:
    trace = replayed(Path(__file__).parents[2] / "traces" / "digits-topk-shaped.jsonl.gz")
    forged = [altered(line, {("seconds",): 0.0}) if line.kind == "window" else line for line in trace.lines]
    with pytest.raises(ValueError, match="does not replay"):
        Replayed([line for line in forged if line is not None])


def quiet(lines: list[Line], place: int) -> bool:
    """A window after which nothing changed: most of its fields could hold anything."""
    following = lines[place + 1].record if place + 1 < len(lines) else None
    return isinstance(following, Decision) and following.rule in (
        "hold",
        "fixed",
        "unusable",
        "pinned",
        "paused",
    )


def decides(leaf: tuple[Replayed, int, tuple[str | int, ...], object]) -> bool:
    """Return whether replay finds some change to that leaf, at once or further on."""
    trace, place, way, value = leaf
    later = None if trace.lines[place].kind != "window" else 1
    forgeries = (altered(trace.lines[place], {way: changed}) for changed in changes(value))
    return any(trace.catches(place, forged, later) for forged in forgeries if forged is not None)


def test_the_stored_traces_are_of_many_kinds() -> None:
    """More than ten from real runs: tasks, codecs, networks, policies, a killed controller, NaN steps, orders,
    parts."""
    specs, kinds, events = [], set(), set()
    for path in TRACES:
        lines = replayed(path).lines
        if lines[0].record.model_dump().get("settings") is not None:  # recorded by record_traces.py
            specs.append((path.name, next(line.record for line in lines if line.kind == "job")))
        kinds |= {line.kind for line in lines}
        events |= {line.record.model_dump()["kind"] for line in lines if line.kind == "event"}
    assert len(specs) >= 10
    assert len({spec.model.name for _, spec in specs}) >= 3  # type: ignore[union-attr]
    assert len({spec.compressor.partition("+")[0] for _, spec in specs}) >= 6  # type: ignore[union-attr]
    assert len({spec.policy.name for _, spec in specs}) >= 3  # type: ignore[union-attr]
    assert {spec.world_size for _, spec in specs} == {2, 4}  # type: ignore[union-attr]
    assert sum("shaped" in name for name, _ in specs) >= 3
    assert {"nonfinite", "fallback", "recovered", "registered"} <= events
    assert kinds == {"job", "window", "decision", "override", "event", "end", "part"}


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e18, max_value=1e18))
def test_any_time_survives(time: float) -> None:
    raw, digest = encode(NOTE, time, "abc")
    line = decode(raw.rstrip(b"\n"), 1, "abc", "x")
    assert line.intact
    assert line.digest == digest
    assert line.time == round(time, 6)
