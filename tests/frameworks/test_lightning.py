"""gravac in Lightning, with the real package: ``make test-frameworks``."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "lightning", reason="Lightning is not installed: make test-frameworks", exc_type=ImportError
)

from gravac_agent.errors import SetupError
from gravac_agent.integrations.lightning import GravacCallback
from tests.frameworks import launch

Found = list[dict[str, Any]]
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lightning")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    return launch.cases("lightning_cases.py", folder)


@pytest.mark.parametrize("case", ["off", "dense"])
def test_it_is_plain_lightning_bit_for_bit(found: Found, case: str) -> None:
    """Without compression, with Lightning's clipping: a callback that changes a gradient shows here."""
    for rank in found:
        assert rank[case]["digest"] == rank["plain"]["digest"]
        assert rank[case]["losses"] == rank["plain"]["losses"]


@pytest.mark.parametrize("case", ["topk", "accumulated", "nonfinite", "bf16", "fp16", "resumed"])
def test_ranks_stay_equal_and_learn(found: Found, case: str) -> None:
    here, there = (rank[case] for rank in found)
    assert here["digest"] == there["digest"] != found[0]["plain"]["digest"]
    assert here["finite"]
    assert here["state"]["step"] == here["steps"] > 0
    assert here["state"]["cf"] == 10.0
    assert sum(here["losses"][-4:]) < 0.99 * sum(here["losses"][:4])
    assert not here["agent_left"]
    assert here["own_methods"] == []  # the strategy is as it was
    assert here["clip"] == 0.5


@pytest.mark.parametrize(("case", "ended"), [("line", 14), ("fabric", 15)])
def test_the_hook_line_starts_at_the_second_step(found: Found, case: str, ended: int) -> None:
    """The Trainer runs backward inside the optimizer's step, so the last exchange ends after it."""
    here, there = (rank[case] for rank in found)
    assert here["digest"] == there["digest"]
    assert here["agent"] == {"step": ended, "cf": 10.0}


def test_the_loss_is_close_to_dense(found: Found) -> None:
    dense, topk = (sum(found[0][case]["losses"][-4:]) for case in ("plain", "topk"))
    assert topk == pytest.approx(dense, rel=0.05)


def test_a_nonfinite_step_is_skipped_on_all_ranks(found: Found) -> None:
    """Lightning runs backward inside the optimizer's step, after the hooks that come before it."""
    assert [rank["nonfinite"]["state"]["nonfinite"] for rank in found] == [1, 1]


def test_the_scaler_of_float16_is_followed(found: Found) -> None:
    assert 0 < found[0]["fp16"]["state"]["nonfinite"] < 8


def test_a_resumed_training_is_bit_equal(found: Found) -> None:
    """From a checkpoint of two buckets; without the residual, the parameters differ."""
    for rank in found:
        assert rank["resumed"]["files"] == ["gravac-rank0-of-2.pt", "gravac-rank1-of-2.pt"]
        assert rank["resumed"]["buckets"] > 1
        assert rank["resumed"]["digest"] == rank["straight"]["digest"]
        assert rank["resumed_without"]["digest"] != rank["straight"]["digest"]
        assert rank["resumed_without"]["steps"] == 32


def test_an_exception_ends_the_agent_and_the_callback_works_again(found: Found, folder: Path) -> None:
    for rank in found:
        assert rank["failing"] == {"raised": "on purpose", "left": False, "again": 16}
    lines = [
        json.loads(line) for line in (folder / "failing/runs/job/journal.jsonl").read_text().splitlines()
    ]
    assert any("ended by an error in the training" in json.dumps(line) for line in lines)


def test_decision_loss_and_throughput_reach_the_logger(found: Found, folder: Path) -> None:
    rows = list(csv.DictReader((folder / "topk/log/1/metrics.csv").read_text().splitlines()))
    last = rows[-1]
    assert float(last["gravac/cf"]) == float(last["gravac/plan/topk-bf16"]) == 10.0
    assert float(last["gravac/samples_per_second"]) > 0
    assert 0 < float(last["gravac/useful_samples_per_second"]) <= float(last["gravac/samples_per_second"])
    # At step 16 the window of steps 8 to 11 is the last that all ranks have added up, or the one after it.
    mean = [(a + b) / 2 for a, b in zip(*(rank["topk"]["losses"] for rank in found), strict=True)]
    windows = [sum(mean[start : start + 4]) / 4 for start in (8, 12)]
    assert any(float(last["gravac/loss"]) == pytest.approx(window, rel=1e-5) for window in windows)


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(SetupError, match=r"no setting 'compresor' \(did you mean 'compressor'\?\)"):
        GravacCallback(compresor="topk")


def test_the_page_is_true(tmp_path: Path) -> None:
    """The documented diff of the user's script is the example, adds what the page says, and trains."""
    page = launch.Page("lightning")
    assert page.after == (launch.ROOT / "examples/train_lightning.py").read_text()
    assert page.added == [
        "from gravac_agent.integrations.lightning import GravacCallback",
        "callbacks=[GravacCallback()],",
    ]
    assert page.removed == []
    assert page.commands[0] == 'pip install ".[lightning]"  # in a clone of gravac'
    printed = page.run(tmp_path, GRAVAC_POLICY="static:cf=10", GRAVAC_WINDOW="20")
    assert "ended after 192 steps: held topk+bf16 at CF 10" in printed
    assert "page http://" in printed
    (checkpoint,) = tmp_path.glob("lightning_logs/version_0/checkpoints/*.gravac")
    assert len(list(checkpoint.iterdir())) == 2
