"""``gravac bench encode|multilevel|wire|hook|collective``: every row says what it must, however fast the machine is."""

import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gravac_controller.cli import main
from gravac_lab.bench import hook as hooks
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


@pytest.mark.distributed
@pytest.mark.usefixtures("networks")
def test_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layout, packed message and interface agree; with 16-bit values the wire holds what the nominal CF promises."""
    monkeypatch.setattr(commands, "SENT_ELEMENTS", 50_000)
    monkeypatch.setattr(commands, "WIRE_FACTORS", (10.0, 100.0))
    result = bench("wire", "--n", "1e5", "--n", "5e4", "--n", "1e8")
    assert result["no_network"] is None
    for each in result["rows"]:
        assert each["wire_cf"] >= each["cf"]
        assert each["wire_cf"] == each["ratio"] == 4 * each["n"] / each["payload_bytes"]
        assert each["seconds"] == pytest.approx(each["payload_bytes"] * 8 / 1e9)
        assert each["packed_bytes"] == (None if each["n"] == 10**8 else each["payload_bytes"])
        if each["n"] == 50_000:
            assert each["interface_ratio"] == pytest.approx(1.0, abs=0.03)
        else:
            assert each["interface_ratio"] is None
    assert 0 < result["gloo_bytes"] < 1000


@pytest.mark.distributed
@pytest.mark.usefixtures("warm")
def test_wire_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(commands, "WIRE_FACTORS", (10.0,))
    result = bench("wire", "--n", "2000", "--codec", "qsgd:bits=4")
    assert "needs root" in result["no_network"] or "is missing" in result["no_network"]
    assert [each["interface_bytes"] for each in result["rows"]] == [None]


@pytest.mark.distributed
@pytest.mark.usefixtures("warm")
def test_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the methods only: every one needs processes of its own."""
    monkeypatch.setattr(commands, "WIDTH", 8)
    monkeypatch.setitem(commands.PAIRS, "hook", 3)
    monkeypatch.setattr(hooks, "OTHERS", {"topk": hooks.OTHERS["topk"]})
    monkeypatch.setattr(hooks, "WARM_UP", 1)
    monkeypatch.setattr(hooks, "STEPS", 2)
    result = bench("hook")
    (each,) = result["rows"]
    assert each["name"] == "agent, Top-k 1 %"
    assert each["cf"] == 100
    assert each["n"] == result["elements"] > 10_000
    assert each["pairs"] == 3
    assert 0 < each["payload_bytes"] < 4 * each["n"]


@pytest.mark.distributed
@pytest.mark.usefixtures("warm")
def test_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way there is, with what the cost model says of it and of the dense one."""
    monkeypatch.setattr(commands, "EXCHANGED_ELEMENTS", 2000)
    monkeypatch.setattr(commands, "EXCHANGED_FACTORS", (10.0,))
    monkeypatch.setitem(commands.PAIRS, "collective", 3)
    result = bench("collective", "--ranks", "2")
    assert result["network"]["bytes_per_second"] > 0
    assert {each["name"] for each in result["rows"]} == {"gather", "all-reduce", "owners", "shared"}
    assert sum(each["chosen"] for each in result["rows"]) == 1
    for each in result["rows"]:
        assert each["predicted_seconds"] > 0
        assert each["predicted_baseline"] > 0
        assert (each["link_bytes"] >= 8000) == (each["name"] == "all-reduce"), "the others send a tenth"


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
