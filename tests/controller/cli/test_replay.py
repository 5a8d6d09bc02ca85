"""``gravac replay``: what it says and how it exits."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gravac.traces import read_trace
from gravac.traces.line import encode
from gravac_controller.cli import main
from tests.support.traces_made import make


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    make(path, "gravac", windows=6)
    return path


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["replay", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_good_trace(trace: Path) -> None:
    code, output = run(trace, "--check")
    assert code == 0
    assert "the same 7 decisions from 6 windows" in output


def test_a_folder_is_its_journal(trace: Path) -> None:
    """As `export`, `report`, `status` and `ui` take it."""
    for arguments in (["--check"], [], ["--policy", "gravac"]):
        assert run(trace.parent, *arguments)[1].replace(str(trace.parent), "") == run(trace, *arguments)[
            1
        ].replace(str(trace.parent), "")
    code, output = run(trace.parent.parent)
    assert code == 2
    assert "journal.jsonl" in output


def test_decisions_are_shown_with_their_reasons(trace: Path) -> None:
    code, output = run(trace)
    assert code == 0
    assert "start" in output
    for line in read_trace(trace):
        if line.kind == "decision":
            assert line.record.rule in output
    assert "Dense baseline" in output


def test_json_of_both(trace: Path) -> None:
    _, output = run(trace, "--check", "--json")
    found = json.loads(output)
    assert found["ok"] is True
    assert (found["windows"], found["decisions"], found["differences"]) == (6, 7, [])
    _, output = run(trace, "--json")
    rows = json.loads(output)["rows"]
    assert [row["window"] for row in rows] == [-1, 0, 1, 2, 3, 4, 5]
    assert all(row["same"] and row["recorded"] == row["replayed"] for row in rows)


def test_one_number_altered_names_its_window(trace: Path) -> None:
    lines = trace.read_bytes().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if b'"window":3,' in line and b'"kind":"window"' in line)
    lines[number] = lines[number].replace(b'"samples":', b'"samples":1', 1)
    trace.write_bytes(b"".join(lines))
    code, output = run(trace, "--check")
    assert code == 1
    assert "First at window 3" in output
    code, output = run(trace, "--check", "--json")
    assert code == 1
    assert json.loads(output)["differences"][0]["window"] == 3


def test_a_forged_decision_is_shown_beside_the_right_one(trace: Path, tmp_path: Path) -> None:
    """Sealed again, so only repeating the decision can find it."""
    forged, digest = tmp_path / "forged.jsonl", ""
    pieces = []
    for line in read_trace(trace):
        record = line.record
        if line.kind == "decision" and record.window == 2:
            record = record.model_copy(update={"cf_candidate": 77.0})
        raw, digest = encode(record, line.time, digest)
        pieces.append(raw)
    forged.write_bytes(b"".join(pieces))
    code, output = run(forged)
    assert code == 1
    assert "RECORDED: CF 77" in " ".join(output.split())
    code, output = run(forged, "--check")
    assert code == 1
    assert "window 2" in output


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_no_such_file(tmp_path: Path, options: tuple[str, ...]) -> None:
    code, output = run(tmp_path / "absent.jsonl", *options)
    assert code == 2
    assert "no file and no job" in output


def test_not_a_trace_cannot_move_the_cursor(tmp_path: Path) -> None:
    path = tmp_path / "odd\x1b[2J.jsonl"
    path.write_bytes(b"\x1b[31mnonsense\n")
    code, output = run(path)
    assert code == 2
    assert "line 1" in output
    assert "\x1b" not in output


def test_another_setting_is_shown_side_by_side(trace: Path) -> None:
    code, output = run(trace, "--policy", "gravac:epsilon=0.5")
    text = " ".join(output.split())
    assert code == 1
    assert "recorded gravac: epsilon=0.3" in text
    assert "other gravac: epsilon=0.5" in text
    assert "but because of ε the ranks send" in text
    assert "from here on, the windows were measured under the recorded decisions" in text
    assert "not at those of the other policy" in text


def test_another_policy_as_json(trace: Path) -> None:
    code, output = run(trace, "--policy", "static:cf=20", "--json")
    found = json.loads(output)
    assert code == 1
    assert (found["policy"]["name"], found["policy"]["settings"]["cf"]) == ("static", 20.0)
    assert found["first_difference"] == -1
    assert found["windows"] == 6
    assert "first difference in what is sent follows the start" in found["caution"]
    assert all(one["other"]["cf_candidate"] == 20.0 for one in found["differing"])
    assert all(one["recorded"]["reason"] for one in found["differing"])


def test_the_same_settings_differ_nowhere(trace: Path) -> None:
    code, output = run(trace, "--policy", "gravac:epsilon=0.3")
    assert code == 0
    assert "0 decisions differ in 6 windows" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "gravac:epsilon"), "must be written setting=value"),
        (("--policy", "gravac:epsilno=1"), "has no setting 'epsilno'"),
        (("--policy", "best"), "policy='best' is unknown"),
        (("--policy", "dense", "--check"), "omit --policy"),
    ],
)
def test_wrong_rules_are_told(trace: Path, arguments: tuple[str, ...], words: str) -> None:
    code, output = run(trace, *arguments)
    assert code == 2
    assert words in output


@pytest.mark.parametrize("command", ["replay", "doctor", "whatif", "report", "export", "ui"])
def test_a_job_is_found_in_the_folder_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Every command that takes the name of a job. A wrong name shows where they looked, and needs no answer of them."""
    make(tmp_path / "elsewhere/mine/journal.jsonl", "gravac", windows=6)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRAVAC_DATA_DIR", str(tmp_path / "elsewhere"))
    result = CliRunner().invoke(main, [command, "mne"])
    assert result.exit_code == 2
    assert "no job 'mne' (did you mean 'mine'?); jobs in " in result.output.replace("\n", " ")
    assert f"{tmp_path / 'elsewhere'}: mine" in result.output.replace("\n", " ")
    if command not in ("report", "export", "ui"):
        assert CliRunner().invoke(main, [command, "mine"]).exit_code == 0
