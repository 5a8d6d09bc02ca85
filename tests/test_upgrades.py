"""Traces of every older schema are read and replay; a line that does not fit its schema gets one clear error."""

import gzip
import json
from pathlib import Path

import pytest

from gravac.protocol import SCHEMA, Decision, JobSpec, WindowReport, quantiles
from gravac.traces import TraceError, read_trace
from gravac.traces.replay import check
from gravac.traces.upgrades import UPGRADES

TRACES = Path(__file__).parent / "traces"
OLD = {
    1: TRACES / "schema-1.jsonl.gz",
    2: TRACES / "mlp-ruled-out.jsonl.gz",
    3: TRACES / "mlp-steps.jsonl.gz",
    4: TRACES / "mlp-greedy.jsonl.gz",
}


def lines(path: Path) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).splitlines(keepends=True)


def test_every_old_version_has_a_step_and_an_example() -> None:
    assert set(UPGRADES) == set(OLD) == set(range(1, SCHEMA))


@pytest.mark.parametrize("version", OLD)
def test_an_old_trace_is_read_and_replays(version: int) -> None:
    assert {json.loads(line)["schema"] for line in lines(OLD[version])} == {version}
    found = check(OLD[version])
    assert found.ok, found.differences
    assert found.windows >= 20


def test_version_1_windows_get_their_spread() -> None:
    raw = [json.loads(line) for line in lines(OLD[1])]
    upgraded = [line.record for line in read_trace(OLD[1])]
    assert len(raw) == len(upgraded)
    windows = 0
    for was, now in zip(raw, upgraded, strict=True):
        if isinstance(now, WindowReport):
            windows += 1
            first, second = sorted(row["phases"]["communicate"] for row in was["body"]["ranks"])
            assert now.spread is not None
            assert now.spread.communicate == tuple(
                round(value, 6) for value in (first, first, second, second)
            )
            assert now.model_dump(mode="json", exclude={"spread"}, exclude_unset=True) == was["body"]
        elif isinstance(now, JobSpec):
            assert (now.settings, now.environment.revision, now.optimizer) == (None, None, None)


def test_version_2_windows_list_no_steps() -> None:
    windows = [line.record for line in read_trace(OLD[2]) if isinstance(line.record, WindowReport)]
    assert {each.steps for each in windows} == {None}
    assert all(each.spread is not None for each in windows), "what version 2 has stays"


def test_version_3_decisions_send_with_the_jobs_compressor() -> None:
    """What version 4 added is unknown in older lines, never a value that somebody could take for measured."""
    records = [line.record for line in read_trace(OLD[3])]
    decisions = [each for each in records if isinstance(each, Decision)]
    levels = [level for each in records if isinstance(each, WindowReport) for level in each.levels]
    assert {(each.codec, each.window_steps) for each in decisions} == {(None, None)}
    assert {each.codec for each in levels} == {None}
    assert {each.sums.progress_steps for each in levels} == {0}
    assert {each.optimizer for each in records if isinstance(each, JobSpec)} == {None}
    assert any(each.steps for each in records if isinstance(each, WindowReport)), "what version 3 has stays"


def test_in_version_4_every_codec_takes_any_cf_and_models_are_not_told_apart() -> None:
    spec = next(line.record for line in read_trace(OLD[4]) if isinstance(line.record, JobSpec))
    assert (spec.sizes, spec.model.digest) == ((), None)
    assert spec.reached("nearest:levels=39", 20.0) == 20.0
    assert (
        spec.differs(spec.model_copy(update={"model": spec.model.model_copy(update={"digest": "x"})})) == ""
    )
    assert spec.optimizer is not None, "what version 4 has stays"


def test_quantiles_are_values_that_are_there() -> None:
    assert quantiles([3.0]) == (3.0, 3.0, 3.0, 3.0)
    assert quantiles([float(number) for number in range(100, 0, -1)]) == (1.0, 50.0, 90.0, 100.0)
    assert quantiles([0.1234567, 5.0, 1.0]) == (0.123457, 1.0, 5.0, 5.0)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"ranks":[{', b'"ranks":{"a":[{', "line 3: window"),
        (b'"compute":', b'"computed":', r"line 3: window\.phases\.compute: is missing"),
        (b'"phases":{"data_wait"', b'"phases":{"waiting"', "line 3: window.phases.data_wait: is missing"),
        (b'"ranks":[{"rank":0', b'"ranks":[7,{"rank":0', r"line 3: window.ranks.0: .*object.*\(got 7\)"),
        (b'"ranks":[{', b'"range":[{', "line 3: window.ranks: is missing"),
        (b'"body":{', b'"body":[{', "line 3: window"),
        (b'"samples":', b'"samples":1' + b"0" * 400 + b',"more":', "line 3: window.samples"),
        (b'"loss":', b'"loss":' + b"[" * 5000, "line 3: window"),
        (b'"loss":', b'"loss":NaN,"more":', "line 3: window"),
    ],
)
def test_what_is_not_of_its_version_is_named(tmp_path: Path, old: bytes, new: bytes, words: str) -> None:
    pieces = [line for line in lines(OLD[1]) if b'"kind":"event"' not in line[:20]]
    assert old in pieces[2]
    pieces[2] = pieces[2].replace(old, new, 1)
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"".join(pieces))
    with pytest.raises(TraceError, match=words) as caught:
        list(read_trace(path, verify=False))
    assert len(str(caught.value)) < 700


def test_a_step_that_cannot_be_taken_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where today's schema would accept the line, it must fit its own."""

    def stumbles(kind: str, body: dict[str, object]) -> dict[str, object]:
        return {"gone": body["gone"]}

    monkeypatch.setitem(UPGRADES, 1, stumbles)
    with pytest.raises(TraceError, match=r"line 1: job: does not fit schema version 1 \(KeyError: 'gone'\)"):
        list(read_trace(OLD[1]))
