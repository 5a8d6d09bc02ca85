"""``gravac bench encode|multilevel``: every row says what it must, however fast the machine is."""

import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gravac_controller.cli import main
from gravac_lab.cli import commands
from tests.support.measured import bench


@pytest.mark.usefixtures("warm")
def test_encode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(commands.PAIRS, "encode", 3)
    result = bench("encode", "--n", "3e3", "--n", "2_000")
    assert [limit["n"] for limit in result["limits"]] == [3000, 2000]
    stacks = {(row["name"], row["n"], row["cf"]) for row in result["rows"] if row["name"].startswith("topk+")}
    ways = [f"topk+twobit {way}" for way in ("written", "read")]
    assert stacks == set(product(ways, (3000, 2000), (5.0, 16.6)))
    topk = [row for row in result["rows"] if row["name"].startswith("topk") and "+" not in row["name"]]
    names = {"topk", "topk, sizes counted"} if result["kernels"] == "cpu" else {"topk, sizes counted"}
    assert {row["name"] for row in topk} == names
    assert (
        len({(row["name"], row["n"], row["cf"], row["against"]) for row in topk})
        == len(topk)
        == 8 * len(names)
    )
    assert {row["cf"] for row in result["rows"]} == {5.0, 10.0, 16.6, 100.0}
    compiled = [row for row in result["rows"] if row["against"] == "plain torch"]
    assert (len(compiled) > 5) == (result["kernels"] == "cpu")


@pytest.mark.usefixtures("warm")
def test_multilevel(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the curve's error on a real training, which is no matter of time."""
    monkeypatch.setattr(commands, "TRAIN_WIDTH", 32)
    monkeypatch.setattr(commands, "TRAIN_STEPS", 2)
    monkeypatch.setattr(commands, "LEVELS", (10.0, 1000.0))
    monkeypatch.setitem(commands.PAIRS, "multilevel", 3)
    result = bench("multilevel", "--n", "3000")
    by_name: dict[str, list[dict[str, Any]]] = {}
    for each in result["rows"]:
        by_name.setdefault(each["name"], []).append(each)
    for codec in ("topk", "dgc", "redsync", "sidco", "randomk", "blockrandomk"):
        assert "compressing twice" in {each["against"] for each in by_name[f"{codec}, 2 levels"]}
    step = by_name["topk step, 2 levels and the curve"]
    assert {each["against"] for each in step} == {"1 level", "1 level, twice", "torch.topk, twice"}
    assert all((each["cf"], each["second_cf"]) == (10.0, 1000.0) for each in step)
    curves = [each for each in result["rows"] if "gain_error" in each]
    assert len(curves) == 4
    for each in curves:
        assert each["above_truth"] <= 0
        assert 0 < each["gain_error"] < 0.02


def test_links_that_cannot_be_made_are_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of another network would be believed."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = CliRunner().invoke(main, ["bench", "collective", "--link", "100mbit"])
    assert done.exit_code == 1
    assert "links of 100mbit cannot be created here" in done.output


@pytest.mark.parametrize(
    ("does", "expected"),
    [
        ("echo 'no memory left' >&2; exit 3", "measuring failed with code 3: no memory left"),
        ("kill -9 $$", "was ended by signal 9, as when memory runs out: try a smaller --n"),
    ],
)
def test_a_failing_program_is_reported_with_its_last_lines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does: str, expected: str
) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))
    done = CliRunner().invoke(main, ["bench", "encode"])
    assert done.exit_code == 1
    assert expected in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["encode", "--n", "many"], "'many' is not a number of elements; write for example 10000000 or 1e7"),
        (["encode", "--n", "1000.5"], "1000.5 must be a whole number between 1,000 and 2,147,483,647"),
        (["encode", "--n", "nan"], "nan must be a whole number"),
        (["encode", "--n", "1e10"], "1e10 must be a whole number"),
        (["wire", "--codec", "nosuch"], "nosuch"),
        (["hook", "--ranks", "1"], "--ranks"),
        (["collective", "--link", "slow"], "write for example 100mbit"),
    ],
)
def test_wrong_options(words: list[str], expected: str) -> None:
    done = CliRunner().invoke(main, ["bench", *words])
    assert done.exit_code == 2
    assert expected in " ".join(done.output.replace("│", " ").split())
