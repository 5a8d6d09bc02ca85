"""``gravac simulate``: trains, tells what the policy did and why, and leaves a trace that replays."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gravac_controller.cli import main
from gravac_lab.cli import simulate as command

SMALL = (
    "--task",
    "logistic:images=digits",
    "--ranks",
    "2",
    "--steps",
    "30",
    "--window",
    "6",
    "--compute",
    "0.001",
)


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, words)])


@pytest.mark.long
def test_a_policy_is_compared_and_its_trace_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a link so slow that 650 parameters take longer than the computation."""
    monkeypatch.setattr(command, "first_name", lambda task: "try")
    monkeypatch.setattr(command, "LATENCY_SECONDS", 1e-5)
    monkeypatch.setenv("GRAVAC_DATA_DIR", str(tmp_path))
    asked = (
        *SMALL,
        "--link",
        "1mbit",
        "--policy",
        "auto:bound=1",
    )
    done = run(*asked, "--against", "topk@10", "--against", "alone", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["elements"], result["compute_seconds"], result["compute_measured"]) == (650, 0.001, False)
    assert [row["name"] for row in result["rows"]] == ["auto:bound=1", "dense", "topk@10", "alone"]
    auto, dense, topk, alone = result["rows"]
    assert dense["payload_bytes"] == 4 * 650
    assert dense["speedup"] == dense["efficiency"] == dense["retained"] == 1.0
    assert dense["step_seconds"] > 0.02 > 0.005 > topk["step_seconds"] > alone["step_seconds"] == 0.001
    assert alone["retained"] == 0.0
    assert [(plan["codec"], plan["cf"]) for plan in topk["plans"]] == [("topk", 10.0)]
    assert auto["plans"][0]["codec"] != "dense"
    assert "trying it" in auto["plans"][0]["reason"]
    assert "trying it" in done.stderr
    assert "step 30 of 30" in done.stderr
    trace = Path(auto["trace"])
    assert trace.is_relative_to(tmp_path)
    checked = CliRunner().invoke(main, ["replay", str(trace), "--check"])
    assert checked.exit_code == 0, checked.output
    report = CliRunner().invoke(main, ["report", str(trace), "-o", str(tmp_path / "report.html")])
    assert report.exit_code == 0, report.output
    again = run(*asked)
    assert again.exit_code == 2
    assert "choose another name" in again.output


@pytest.mark.distributed
def test_what_the_program_refuses_is_said_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAVAC_DATA_DIR", str(tmp_path))
    done = run(*SMALL, "--against", "topkk@10")
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert re.search("topkk.*did you mean.*topk", " ".join(done.output.split())), done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--link", "100mbps"), "'100mbps' is not a bandwidth"),
        (("--link", "1gbit@20"), "give one link from the start"),
        (("--link", "1gbit", "--link", "1mbit@x"), "'x' is not the number of a step"),
        (("--link", "1gbit", "--link", "1mbit@30"), "step 30 is not before the end"),
    ],
)
def test_wrong_options_are_refused_at_once(words: tuple[str, ...], says: str) -> None:
    done = run(*SMALL, *words)
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def row(name: str, points: list[list[float]], payload: float = 400.0) -> dict[str, Any]:
    return {
        "name": name,
        "curve": points,
        "elements": 100,
        "payload_bytes": payload,
        "seconds": points[-1][1] / points[-1][0],
        "plans": [[0, "dense", 1.0, "why"]],
        "trace": None,
    }
