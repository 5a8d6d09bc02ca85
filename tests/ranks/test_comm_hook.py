"""``model.register_comm_hook(*gravac.hook())``: what it stands for, to the bit, in a program that never ends it."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gravac
from gravac.protocol import End, JobSpec, WindowReport
from gravac.traces import read_trace
from tests.support import ranks

PROGRAM = Path(ranks.__file__).with_name("one_line.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def trained(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    folder.mkdir(exist_ok=True)
    command = [*TORCHRUN, str(PROGRAM), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.distributed
@pytest.mark.parametrize("more", [[], ["--compiled"]], ids=["eager", "compiled"])
def test_from_the_second_step_it_is_an_agent_to_the_bit(tmp_path: Path, more: list[str]) -> None:
    agent, plain = trained(tmp_path / "agent", "agent", *more), trained(tmp_path / "plain", "plain", *more)
    assert agent.returncode == plain.returncode == 0, agent.stderr + plain.stderr
    assert agent.stdout.count("\n") == 14
    assert agent.stdout.splitlines()[:2] == plain.stdout.splitlines()[:2], "the first step is dense"
    assert agent.stdout != plain.stdout
    for how in ("line",) if more else ("line", "given"):
        found = trained(tmp_path / how, how, *more)
        assert found.returncode == 0, found.stderr
        assert found.stdout == agent.stdout, found.stderr
        assert "WARNING" not in found.stderr
    if not more:
        disabled = trained(tmp_path / "disabled", "disabled")
        assert disabled.stdout == plain.stdout, disabled.stderr
        assert not (tmp_path / "disabled" / "gravac-runs").exists()


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("end", "windows", "message"),
    [
        pytest.param("kept", [5, 5], "finished", id="with its groups"),
        pytest.param("late", [5, 5], "finished", id="before rank 0"),
        pytest.param("destroyed", [5, 5], "finished", id="without"),
        pytest.param("raised", [5, 5], "ended by an error in the training", id="by an error"),
    ],
)
def test_it_ends_with_the_process_and_says_how(
    tmp_path: Path, end: str, windows: list[int], message: str
) -> None:
    found = trained(tmp_path, "line", f"--end={end}")
    assert found.returncode == (1 if end == "raised" else 0), found.stderr
    (journal,) = (tmp_path / "gravac-runs").glob("*/journal.jsonl")
    with read_trace(journal) as lines:
        records = [line.record for line in lines]
    assert [one.last_step - one.first_step + 1 for one in records if isinstance(one, WindowReport)] == windows
    assert isinstance(records[-1], End)
    assert (records[-1].message, records[-1].steps) == (message, 13)
    assert "gravac ERROR" not in found.stderr, "no rank waits for another one"
    assert "resumes" not in found.stderr, "the one step before was the hook's own"
    assert re.search(
        r"ended (by an error in the training )?after 13 steps: held topk\+twobit at CF 16", found.stderr
    )


@pytest.mark.distributed
def test_without_an_agent_it_averages_over_the_ranks_of_the_module(tmp_path: Path) -> None:
    plain, disabled = (trained(tmp_path, how, "--alone", "--steps=3") for how in ("plain", "disabled"))
    assert plain.stdout.count("\n") == 3
    assert disabled.stdout == plain.stdout, disabled.stderr


@pytest.mark.distributed
def test_one_hook_is_for_one_module(tmp_path: Path) -> None:
    found = trained(tmp_path, "twice")
    assert found.returncode == 1
    assert "SetupError: this hook is registered on another DDP module" in found.stderr


@pytest.mark.distributed
def test_a_codec_alone_leaves_the_factor_to_the_policy(tmp_path: Path) -> None:
    found = trained(tmp_path, "line", "--plan=topk+bf16")
    (journal,) = (tmp_path / "gravac-runs").glob("*/journal.jsonl")
    with read_trace(journal) as lines:
        spec = next(line.record for line in lines if isinstance(line.record, JobSpec))
    assert (spec.policy.name, spec.compressor) == ("auto", "topk+bf16"), found.stderr


@pytest.mark.distributed
def test_an_optimizer_that_is_never_seen_is_asked_for(tmp_path: Path) -> None:
    found = trained(tmp_path, "unseen", "--steps=52")
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("saw no optimizer step the module's parameters in 50 backwards") == 2, (
        "of each rank once"
    )


def test_wrong_use() -> None:
    wrong: list[tuple[str | None, dict[str, Any], str]] = [
        ("topk@x", {}, "cf"),
        ("tokp@10", {}, "did you mean 'topk'"),
        ("topk@10", {"policy": "auto"}, r"gravac.hook\('topk@10', policy=…\) names policy twice"),
        (None, {"windw": 3}, "gravac.hook has no setting 'windw' \\(did you mean 'window'"),
        (None, {"window": 0}, "window=0"),
    ]
    for plan, settings, said in wrong:
        with pytest.raises(gravac.SetupError, match=said):
            gravac.hook(plan, **settings)
