"""Traces as they are read: what is damaged, odd or unbounded in them."""

import gzip
import tracemalloc
from pathlib import Path

import pytest

from gravac_observe.measure import measure
from gravac_observe.traces import ProfileError, read, trace
from gravac_observe.traces.reading import CHUNK_BYTES, EVENTS, MOST_CHARACTERS
from gravac_observe.traces.trace import own_kernels
from tests.support.profiles import Made

EVENT = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}'


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
