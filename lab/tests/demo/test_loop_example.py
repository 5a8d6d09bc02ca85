"""examples/train_loop.py under torchrun: stopped with Ctrl-C and started again, it ends like a run that was not."""

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from gravac.replays.replay import check
from tests.support.ranks.harness import zygotes
from tests.support.warm import WarmPython
from tools.harness.forked import Forked, surroundings

SCRIPT = Path(__file__).parents[3] / "examples/train_loop.py"
STEPS = 60

pytestmark = pytest.mark.distributed


def start(folder: Path, warm: dict[str, str], log: Path) -> Forked:
    settings = {
        "GRAVAC_CONTROLLER": "none",
        "GRAVAC_COLLECTIVE": "gather",  # a measured network differs from run to run
        "GRAVAC_POLICY": "static:cf=10",
        "GRAVAC_WINDOW": "10",
    }
    folder.mkdir(exist_ok=True)
    with log.open("wb") as stream:
        return zygotes()[0].start(
            module="torch.distributed.run",
            argv=("--standalone", "--nproc-per-node", "2", str(SCRIPT), "--steps", str(STEPS)),
            environment=surroundings(**warm, **settings, OMP_NUM_THREADS="1"),
            cwd=str(folder),
            stdout=stream,
        )


def checkpoint(folder: Path, rank: int) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / f"checkpoints/rank{rank}.pt", weights_only=True)
    return state


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


def test_stopped_and_started_again(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    first, second = tmp_path / "first.log", tmp_path / "second.log"
    with WarmPython(tmp_path) as warm:
        run = start(whole, warm, tmp_path / "whole.log")
        assert run.wait(280) == 0, (tmp_path / "whole.log").read_text()
        run = start(stopped, warm, first)
        try:
            until = time.monotonic() + 120
            while "step 20" not in first.read_text():
                assert time.monotonic() < until, first.read_text()
                time.sleep(0.01)
        finally:
            run.send_signal(signal.SIGINT)  # as Ctrl-C: torchrun passes it to the ranks
            code = run.wait(120)
        assert code != 0, "torchrun says that it was interrupted"
        begin = checkpoint(stopped, 0)["step"]
        assert 20 < begin < STEPS
        assert begin == checkpoint(stopped, 1)["step"]
        assert start(stopped, warm, second).wait(280) == 0, second.read_text()

    assert f"step {begin - begin % 20}" not in second.read_text(), "it does not begin again"
    for rank in (0, 1):
        one, two = checkpoint(whole, rank), checkpoint(stopped, rank)
        assert one["step"] == two["step"] == STEPS
        for ours, theirs in zip(one["trainings"], two["trainings"], strict=True):
            for part in ("model", "optimizer", "schedule", "scaler"):
                assert same(ours[part], theirs[part]), part
            residuals = [state["agent"][f"rank{rank}"]["residual"] for state in (ours, theirs)]
            assert same(*residuals)
            assert any(one.abs().sum() > 0 for one in residuals[0].values())
    for job in ("text-large", "text-small"):
        found = check(stopped / "gravac-runs" / job / "journal.jsonl")
        assert found.ok
        assert found.windows == STEPS // 10 + (begin % 10 > 0), "the stop ends a window early"
    losses = [
        float(one) for one in re.findall(r"step \d+ loss (\d\.\d+)", (tmp_path / "whole.log").read_text())
    ]
    assert losses[-1] < losses[0] - 1
