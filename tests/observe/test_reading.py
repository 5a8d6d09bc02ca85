"""Traces of PyTorch's profiler are read as a stream; what is broken is refused with a reason."""

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import pytest

from gravac_observe.measure import measure
from gravac_observe.traces import ProfileError, read, trace
from gravac_observe.traces.reading import CHUNK_BYTES, EVENTS, MOST_CHARACTERS, read_events
from gravac_observe.traces.trace import own_kernels
from tests.support.profiles import Made
from tools.fuzz.profiles import attempt, seeds
from tools.fuzz.traces import fuzz

EVENT = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}'


def test_all_values_are_found_however_they_are_written(tmp_path: Path) -> None:
    whole = json.loads(Made.usual().text())
    for name, data in {
        "plain": json.dumps(whole).encode(),
        "spread": json.dumps(whole, indent=3).encode(),
        "packed": gzip.compress(json.dumps(whole, separators=(",", ":")).encode()),
        "events first": json.dumps({EVENTS: whole[EVENTS]} | whole).encode(),
    }.items():
        path = tmp_path / name
        path.write_bytes(data)
        found = list(read_events(path))
        assert [value for key, value in found if key == EVENTS] == whole[EVENTS], name
        assert dict(pair for pair in found if pair[0] != EVENTS) == {
            key: value for key, value in whole.items() if key != EVENTS
        }
    only = tmp_path / "events only"
    only.write_text(json.dumps(whole[EVENTS]))
    assert [value for _, value in read_events(only)] == whole[EVENTS]


def test_values_at_the_edge_of_a_chunk_are_whole(tmp_path: Path) -> None:
    """Every place of the edge within an event, a text of several bytes among them, and within a number at the top."""
    path = tmp_path / "trace.json"
    for shift in range(len(EVENT) + 12):
        head = f'{{"number": 12345, "pad": "{"x" * (CHUNK_BYTES - 60 - shift)}", "µ": 67890, "{EVENTS}": ['
        path.write_text(f"{head}{EVENT},{EVENT.replace('mm', 'µ→ü')}]}}", encoding="utf-8")
        found = [(name, value) for name, value in read_events(path) if name != "pad"]
        assert found[:2] == [("number", 12345), ("µ", 67890)]
        assert [value["name"] for name, value in found if name == EVENTS] == ["aten::mm", "aten::µ→ü"], shift


def test_memory_does_not_grow_with_the_events(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    large = EVENT.replace("mm", "m" * 5000)
    path.write_text(f'{{"{EVENTS}": [{f"{large}," * 2000}{large}]}}')
    tracemalloc.start()
    count = sum(1 for _ in read_events(path))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 2001
    assert path.stat().st_size > 8 * CHUNK_BYTES
    assert most < 6 * CHUNK_BYTES


REFUSED = {
    "empty": (b"", "is empty"),
    "empty packed": (gzip.compress(b""), "is empty"),
    "text": (b"hello", "no JSON object begins"),
    "torn": (Made.usual().text().encode()[:3000], "is torn, or not JSON"),
    "torn at an event": (f'{{"{EVENTS}": [{EVENT},'.encode(), "ends in the middle: the file is torn"),
    "torn after an event": (f'{{"{EVENTS}": [{EVENT}'.encode(), "neither a comma nor ]"),
    "torn packed": (gzip.compress(Made.usual().text().encode())[:400], "its compression is broken"),
    "damaged packed": (
        gzip.compress(b"x" * 9000)[:20] + b"\0" * 50,
        "its compression is broken|cannot be read",
    ),
    "no colon": (b'{"a" 1}', "no name with a colon"),
    "no name": (b"{1: 2}", "no name with a colon"),
    "more": (b"{} {}", "has text after the end"),
    "deep": (f'{{"{EVENTS}": [{"[" * 200_000}'.encode(), "is nested too deeply"),
    "long number": (f'{{"a": {"9" * 6000}}}'.encode(), "a number is too long"),
    "long value": (b'{"a": "' + b"x" * (MOST_CHARACTERS + 3 * CHUNK_BYTES), "broken, or longer than"),
    "blanks": (b"{" + b" " * (2 * MOST_CHARACTERS), "blanks in a row"),
    "no events": (b"{}", "it has no events"),
    "other events": (
        f'{{"{EVENTS}": [1, null, "x", {{}}, []]}}'.encode(),
        "none of its 5 events is an operator",
    ),
    "no time": (f'{{"{EVENTS}": [{EVENT.replace("1,", "NaN,", 1)}]}}'.encode(), "none of its 1 events"),
    "an instant": (
        f'{{"{EVENTS}": [{EVENT.replace("2,", "0,", 1)}]}}'.encode(),
        "its operators take no time",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_broken_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    data, why = REFUSED[name]
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    with pytest.raises(ProfileError, match=why) as caught:
        measure([read(path)])
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(ProfileError, match="cannot be read"):
            read(path)


@pytest.mark.parametrize("kind", ["FIFO", "device"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json" if kind != "device" else Path("/dev/zero")
    if kind == "FIFO":
        os.mkfifo(path)
    with pytest.raises(ProfileError, match=f"^{path}: cannot be read: it is no regular file") as caught:
        read(path)
    assert "export_chrome_trace" in str(caught.value)


ANY = '{"ph": "X", "cat": "cpu_op", "ts": 1.5, "dur": 1, "tid": '
RANKS = ", ".join(map(str, range(500)))
COSTLY = {
    "calls": f'{ANY}1, "name": "gloo:all_reduce"}}',
    "issues": f'{ANY}1, "name": "c10d::allreduce_"}}',
    "threads": f'{ANY}#, "name": "aten::mm"}}',
    "long threads": f'{ANY}"#{"x" * 2000}", "name": "aten::mm"}}',
    "names": f'{ANY}1, "name": "#{"x" * 2000}"}}',
    "gradients": f'{ANY}1, "name": "torch::autograd::AccumulateGrad"}}',
    "steps": f'{ANY}1, "name": "ProfilerStep#1#"}}',
    "regions": f'{ANY}1, "name": "FSDP::#{"x" * 2000}"}}',
    "devices": '{"ph": "X", "cat": "kernel", "ts": 1.5, "dur": 1, "args": {"device": #}, "name": "gemm"}',
    "kernels": '{"ph": "X", "cat": "kernel", "ts": 1.5, "dur": 1, "args": {"device": 0}, "name": "gemm"}',
    "kernels' names": '{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "args": {}, "name": "#'
    + "x" * 2000
    + '"}',
    "sends": '{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "args": {}, "name": "ncclSendRecv"}',
    "groups": f'{ANY}1, "name": "gloo:a", "args": {{"Process Group Ranks": "[{RANKS}, #]"}}}}',
}


@pytest.mark.parametrize("kind", COSTLY)
def test_what_is_kept_of_events_is_bounded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little of the packed file each of them takes."""
    monkeypatch.setattr(trace, "MOST_BYTES", 2_000_000)
    path = tmp_path / "trace.json.gz"
    with gzip.open(path, "wt", compresslevel=1) as packed:
        packed.write(f'{{"{EVENTS}": [')
        packed.writelines(f"{COSTLY[kind].replace('#', str(1000 + number))}," for number in range(12_000))
        packed.write(f"{EVENT}]}}")
    tracemalloc.start()
    with pytest.raises(ProfileError, match=r"trace.json.gz: .* takes more than 2 MB of memory") as caught:
        read(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2_000_000 + 6 * CHUNK_BYTES
    assert "record fewer steps" in str(caught.value)


def test_a_bomb_ends_at_its_first_characters(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(bytes(100 << 20), 1))
    with pytest.raises(ProfileError, match="no JSON object begins"):
        read(path)


def test_damaged_events_are_left_out_and_counted(tmp_path: Path) -> None:
    made = Made.usual()
    for change in ({"ts": "soon"}, {"dur": -1}, {"name": 7}, {"ts": 1e300}, {"ts": None}, {"dur": True}):
        made.events.append(made.events[0] | change)
    made.events += [[], 3]  # type: ignore[list-item]
    found = measure([read(made.write(tmp_path))])
    assert found.exposed == pytest.approx(250e-6)
    assert "what 8 damaged events were: they are left out" in found.unknown


def test_odd_arguments_say_nothing(tmp_path: Path) -> None:
    made = Made.usual()
    for event in made.events:
        args = event.get("args", {})
        if "Collective name" in args:
            args |= {
                "In msg nelems": "many",
                "Out msg nelems": -5,
                "dtype": ["Float"],
                "Group size": 1e300,
                "Process Group Ranks": "[0, 1, ...]",
                "Input Dims": [[[10**30]], {"a": []}, [-1]],
            }
    (row,) = measure([read(made.write(tmp_path))]).rows
    assert (row.nbytes, row.bandwidth, row.group, row.kind) == (None, None, (), "all-reduce")


def test_own_kernels_are_known_by_their_names() -> None:
    assert {"_count", "_fold", "_pack", "_unpack"} <= own_kernels()


@pytest.mark.long
def test_altered_traces_raise_nothing_undocumented() -> None:
    """``python -m tools.fuzz.profiles --inputs 10000`` is the long one."""
    outcomes = fuzz(1000, seed=1, originals=seeds, attempt=attempt)
    assert sum(outcomes.values()) == 1000
    assert outcomes["refused"] > 100
    assert sum(count for outcome, count in outcomes.items() if outcome.startswith("judged")) > 100
