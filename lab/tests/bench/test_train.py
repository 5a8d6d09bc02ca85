"""``gravac bench train``: real ranks on shaped links, and what it says where there are none."""

import dataclasses
import json
import os
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from click.testing import CliRunner

from gravac.protocol import JobSpec
from gravac.traces import read_trace
from gravac_controller.cli import main
from gravac_lab.bench import namespaces
from gravac_lab.bench.train import Benchmark, run


def benchmark(*methods: str) -> Benchmark:
    """A model of 72,000 parameters, whose dense gradient takes 0.23 s at 10 Mbit/s: far above what a step computes."""
    return Benchmark(
        methods=methods, hosts=2, link="10mbit", rounds=2, block=5, warmup=2, width=80, heldout=1, seed=0
    )


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in result["rows"]}


@pytest.mark.distributed
@pytest.mark.alone
@pytest.mark.usefixtures("networks")
def test_two_hosts(tmp_path: Path) -> None:
    """Dense waits for the wire and the agent does not; the interface saw what each says it sent."""
    agent = "agent/topk/residual/static:cf=100"
    result = run(benchmark("dense", agent), tmp_path, lambda line: None)
    found = by_name(result)
    assert not any(row["error"] for row in result["rows"])
    assert not result["emulated"]
    assert result["no_network"] is None
    assert result["seed"] == 0
    dense_bytes = 4 * result["elements"]
    wire_seconds = dense_bytes * 8 / 1e7
    dense, ours = found["dense"], found[agent]
    assert dense["payload_bytes"] == dense["dense_bytes"] == dense_bytes
    assert dense_bytes < dense["sent_bytes"] < 1.15 * dense_bytes
    assert ours["payload_bytes"] < dense_bytes / 50
    assert ours["payload_bytes"] < ours["sent_bytes"] < dense_bytes / 20
    assert dense["seconds"] > 0.8 * wire_seconds
    assert ours["seconds"] < dense["seconds"]
    for row in result["rows"]:
        assert row["steps"] == 10
        assert len(row["step_seconds"]) == 6
        assert row["seconds_quartiles"][0] <= row["seconds"] <= row["seconds_quartiles"][1]
        assert 0 < row["cpu_seconds"] < 10
        assert row["ratio"] is None, "none was not run"
        assert 1 < row["heldout_loss"] < 5.6, "bytes at random cost ln 256 = 5.55"
    assert not [each for each in namespaces.present() if each.startswith(f"gravac-{os.getpid()}-")]


@pytest.mark.distributed
@pytest.mark.usefixtures("networks")
def test_ranks_of_a_host_share_its_link(tmp_path: Path) -> None:
    """Of a ring of four ranks, one passes on to the other host what goes round: 3/2 of the gradient."""
    result = run(dataclasses.replace(benchmark("dense"), each=2, rounds=1), tmp_path, lambda line: None)
    (dense,) = result["rows"]
    assert dense["error"] is None
    assert (result["hosts"], result["ranks_per_host"]) == (2, 2)
    assert 1.5 * dense["dense_bytes"] < dense["sent_bytes"] < 1.15 * 1.5 * dense["dense_bytes"]
    assert dense["seconds"] > 0.8 * 1.5 * dense["dense_bytes"] * 8 / 1e7


@pytest.mark.distributed
@pytest.mark.usefixtures("networks")
def test_links_change_in_mid_run(tmp_path: Path) -> None:
    """The same processes go on: what waited for the wire is quicker, bytes are what they were."""
    change = dataclasses.replace(benchmark("dense"), then="none")
    result = run(change, tmp_path, lambda line: None)
    (before,), (after,) = result["rows"], result["then"]["rows"]
    assert before["error"] is after["error"] is None
    assert after["seconds"] < 0.7 * before["seconds"]
    assert before["payload_bytes"] == after["payload_bytes"]
    assert (before["steps"], after["steps"]) == (5, 10)
    assert before["heldout_loss"] is None
    assert after["heldout_loss"] < 5.6


def test_links_that_are_not_ours_cannot_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    words = ["--link", "10mbit/1gbit", "--steps", "4", "--block", "2", "--warmup", "1"]
    done = CliRunner().invoke(main, ["bench", "train", *words])
    assert done.exit_code == 2
    assert "links cannot change to 1gbit during the run: no emulated network" in done.output
    done = CliRunner().invoke(main, ["bench", "train", "--link", "10mbit/1gbit", "--steps", "4"])
    assert "two links need two rounds: --steps 8" in done.output


@pytest.mark.distributed
@pytest.mark.usefixtures("warm")
def test_without_root_the_agent_paces_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said aloud and marked; PyTorch's own hooks, which nothing would hold back, are refused one by one."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("gravac_lab.cli.train.WIDTH", 80)
    words = ["--link", "10mbit", "--steps", "5", "--block", "5", "--warmup", "2"]
    command = ["bench", "train", *words, "--heldout", "1", "--methods", "dense fp16", "--json"]
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    assert done.exit_code == 1, "fp16 was left out"
    assert done.stdout, done.stderr
    result = json.loads(done.stdout)
    found = by_name(result)
    assert result["emulated"]
    assert "needs root" in result["no_network"] or "is missing" in result["no_network"]
    assert "No emulated network" in done.stderr
    assert "EMULATED links of 10mbit" in done.stderr
    dense = found["dense"]
    assert dense["error"] is None
    assert dense["emulated"]
    assert dense["sent_bytes"] is None
    assert dense["payload_bytes"] == dense["dense_bytes"]
    assert dense["seconds"] > 0.8 * dense["dense_bytes"] * 8 / 1e7
    assert "an emulated link slows only the agent" in found["fp16"]["error"]
    assert found["fp16"]["seconds"] is None


@pytest.mark.distributed
@pytest.mark.usefixtures("warm")
def test_another_task_and_its_kept_journals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    words = [
        "bench",
        "train",
        "--link",
        "100mbit",
        "--steps",
        "24",
        "--block",
        "24",
        "--warmup",
        "2",
        "--json",
    ]
    words += ["--task", "gpt:size=0.3m,text=python,heldout=32", "--methods", "none agent"]
    keep = ["--keep", str(tmp_path / "kept")]
    done = CliRunner().invoke(main, [*words, *keep], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["task"], result["width"]) == ("gpt:size=0.3m,text=python,heldout=32", None)
    assert result["elements"] < 400_000, "the LSTM of the default has 3.5 million"
    for row in result["rows"]:
        (steps, seconds, loss), *more = row["curve"]
        assert not more, "one round"
        assert (steps, loss) == (24, row["heldout_loss"])
        assert seconds == pytest.approx(24 * fmean(row["step_seconds"]))
    journal = tmp_path / "kept" / "method1" / "bench" / "journal.jsonl"
    job = next(iter(read_trace(journal))).record
    assert isinstance(job, JobSpec)
    assert job.optimizer_kind == "adam"
    done = CliRunner().invoke(main, [*words, *keep])
    assert done.exit_code == 2
    assert "is not empty; give a new folder" in done.output
    done = CliRunner().invoke(main, ["bench", "train", "--task", "gtp", "--methods", "none", "--steps", "4"])
    assert done.exit_code == 1
    assert "did you mean 'gpt'" in done.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--link", "fast"], "write for example 100mbit"),
        (["--methods", "dense gossip"], "'gossip' is not one of"),
        (["--methods", "dense dense"], "each method once"),
        (["--block", "3", "--warmup", "3"], "must be below the steps of a block, 3"),
        (["--hosts", "1"], "2 to 64 hosts"),
        (["--hosts", "2x"], "2x4 with four ranks each"),
    ],
)
def test_wrong_options(words: list[str], expected: str) -> None:
    done = CliRunner().invoke(main, ["bench", "train", *words])
    assert done.exit_code == 2
    assert expected in " ".join(done.output.split())
