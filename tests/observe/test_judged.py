"""``gravac observe FILES``: three lines on a terminal, one object for programs, and clear errors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gravac_controller.cli import main
from tests.support.efficiencies import fixed_efficiencies
from tests.support.profiles import RECORDED, Made


@pytest.fixture(autouse=True, scope="module")
def fixed_table() -> Iterator[None]:
    with fixed_efficiencies():
        yield


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["observe", *map(str, words)])


def asked(*words: object) -> dict[str, Any]:
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_three_lines_then_what_they_follow_from(tmp_path: Path) -> None:
    done = run(Made.usual().write(tmp_path))
    assert done.exit_code == 0, done.output
    first, why, following, *rest = done.output.splitlines()
    assert first == (
        "Network or late ranks: 25 % of a step is exposed communication (0.25 ms of 1 ms); how much of it waits for "
        "late ranks is not known."
    )
    assert why.startswith("Why: gradients (all-reduce, 8 ranks, 4 MB, 17.1 GB/s achieved): 0.25 ms, ")
    assert following.startswith("Next: ")
    assert next(line for line in rest if line.startswith("gradients ")).split() == [
        "gradients",
        "all-reduce",
        *["0.25", "ms", "0.16", "ms", "–", "4", "MB", "17.1", "GB/s", "2", "8"],
    ]
    assert any(line.startswith("assumed: codecs encode 95.0 GB/s") for line in rest)
    assert any(line.startswith("not known: how much of the exposed time") for line in rest)


def test_a_record_for_programs(tmp_path: Path) -> None:
    found = asked(Made.usual().write(tmp_path))
    assert (found["kind"], found["severity"]) == ("network or late ranks", "high")
    assert (found["traces"], found["world"], found["steps"]) == (1, 8, 2)
    assert found["exposed_seconds"] == pytest.approx(250e-6)
    (row,) = found["communication"]
    assert (row["pattern"], row["call"], row["ranks"], row["bytes"]) == ("gradients", "all-reduce", 8, 4e6)
    assert row["group"] == list(range(8))
    plans = found["forecast"]["rows"]
    assert plans[0]["plan"] == "dense"
    assert plans[0]["step_seconds"] == pytest.approx(found["step_seconds"])
    assert found["forecast"]["chosen"] in {plan["plan"] for plan in plans}


def test_all_options_count(tmp_path: Path) -> None:
    path = Made.usual().write(tmp_path)
    here = asked(path)["forecast"]
    there = asked(path, "--link", "1gbit,1ms", "--ranks", 16, "--elements", "2e6")["forecast"]
    assert (there["ranks"], there["bits_per_second"], there["latency_seconds"]) == (16, 1e9, 1e-3)
    assert there["step_seconds"] > 10 * here["step_seconds"]
    assert asked(path, "--link", "1gbit")["forecast"]["bits_per_second"] == 1e9
    given = asked(path, "--optimizer", "sgd")["assumed"]
    assert not any("--optimizer" in sentence for sentence in given)
    free, strict = (asked(path, "--link", "10mbit", "--bound", bound)["forecast"] for bound in (1, 0))
    assert free["chosen"] != strict["chosen"]


def test_a_folder_holds_the_traces_of_all_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        Made.usual(rank=rank).write(tmp_path)
    (tmp_path / "notes.txt").write_text("of another kind")
    assert asked(tmp_path)["traces"] == 2
    assert asked(tmp_path, tmp_path / "rank0.json")["traces"] == 2


def test_recorded_traces_of_two_ranks() -> None:
    found = asked(*sorted(RECORDED.glob("late-*.json.gz")))
    assert found["kind"] == "several causes"
    assert found["next"].startswith("find what delays rank 1: it comes ")
    assert found["late_seconds"]["1"] > 10 * found["late_seconds"]["0"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            ("late-0.json",),
            2,
            "late-0.json: there is no such file (did you mean 'late-0.json.gz' or",
        ),
        (
            ("late-0.json.gz", "ddp-0.json.gz"),
            2,
            "all are of rank 0; give one trace of each rank",
        ),
        (("empty",), 2, "empty: no file in this folder ends in .json or .json.gz"),
        (("torn.json.gz",), 2, "torn.json.gz: its compression is broken"),
        (("late-0.json.gz", "--link", "fast"), 2, "'fast' is not a bandwidth"),
        (("late-0.json.gz", "--fail-above", "20"), 2, "'20' is not a percentage (did you mean '20%'?)"),
        (("late-0.json.gz", "--fail-above", ".2"), 2, "'.2' is not a percentage from 0% to 100%; write"),
        (("late-0.json.gz", "--fail-above", "0.2"), 2, "'0.2' is not a percentage (did you mean '20%'?)"),
        (("late-0.json.gz", "--fail-above", "200%"), 2, "'200%' is not a percentage from 0% to 100%"),
    ],
)
def test_errors_say_what_to_do(
    words: tuple[str, ...], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in RECORDED.glob("*-?.json.gz"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "torn.json.gz").write_bytes((RECORDED / "ddp-0.json.gz").read_bytes()[:5000])
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.exit_code == code, done.output
    assert says in " ".join(done.output.split())
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_the_exit_code_says_whether_the_network_takes_too_much(tmp_path: Path) -> None:
    traces = sorted(RECORDED.glob("ddp-*.json.gz"))
    assert [run(*traces, "--fail-above", share).exit_code for share in ("100%", "70%", "60%", "0%")] == [
        0,
        0,
        3,
        3,
    ]
    made = Made.usual(world=1, sizes=False)
    made.events = [each for each in made.events if "nccl" not in each["name"] and "comms" not in each["name"]]
    alone = made.write(tmp_path)
    assert run(alone, "--fail-above", "5%").exit_code == 0, "one rank communicates with nobody"
    asked_elsewhere = run(alone, "--fail-above", "5%", "--ranks", 8, "--link", "1gbit")
    assert asked_elsewhere.exit_code == 4, "the size of its gradient is not known"
    record = json.loads(alone.read_text())
    record.pop("distributedInfo")
    alone.write_text(json.dumps(record))
    done = run(alone, "--fail-above", "5%", "--json")
    assert done.exit_code == 4
    found = json.loads(done.stdout)
    assert (found["kind"], found["severity"], found["exposed_seconds"]) == ("not recognized", "unknown", None)


def test_the_old_spelling_says_what_to_write() -> None:
    late = [str(path) for path in sorted(RECORDED.glob("late-*.json.gz"))]
    old = CliRunner().invoke(main, ["doctor", "--profile", *late])
    assert old.stderr.startswith("note: write gravac observe FILES instead of gravac doctor --profile FILES")
    assert old.stdout == run(*late).stdout
