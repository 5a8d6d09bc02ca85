"""Traces of PyTorch's profiler are read as a stream; what is broken is refused with a reason."""

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import pytest

from gravac_observe.traces import ProfileError, read
from gravac_observe.traces.reading import CHUNK_BYTES, EVENTS, read_events
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


def test_a_bomb_ends_at_its_first_characters(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(bytes(100 << 20), 1))
    with pytest.raises(ProfileError, match="no JSON object begins"):
        read(path)


@pytest.mark.long
def test_altered_traces_raise_nothing_undocumented() -> None:
    """``python -m tools.fuzz.profiles --inputs 10000`` is the long one."""
    outcomes = fuzz(1000, seed=1, originals=seeds, attempt=attempt)
    assert sum(outcomes.values()) == 1000
    assert outcomes["refused"] > 100
    assert sum(count for outcome, count in outcomes.items() if outcome.startswith("judged")) > 100
