"""gravac in Hugging Face's Trainer, with the real package: ``make test-frameworks``."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "transformers", reason="Transformers is not installed: make test-frameworks", exc_type=ImportError
)

from gravac_agent.errors import SetupError
from gravac_agent.integrations.transformers import GravacCallback
from tests.frameworks import launch

Found = list[dict[str, Any]]
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transformers")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    return launch.cases("transformers_cases.py", folder)


@pytest.mark.parametrize("case", ["off", "dense"])
def test_it_is_the_plain_trainer_bit_for_bit(found: Found, case: str) -> None:
    """Without compression, with the trainer's clipping: a callback that changes a gradient shows here."""
    for rank in found:
        assert rank[case]["digest"] == rank["plain"]["digest"]
        assert rank[case]["losses"] == rank["plain"]["losses"]


@pytest.mark.parametrize("case", ["topk", "accumulated", "nonfinite", "bf16", "resumed"])
def test_ranks_stay_equal_and_learn(found: Found, case: str) -> None:
    here, there = (rank[case] for rank in found)
    assert here["digest"] == there["digest"] != found[0]["plain"]["digest"]
    assert here["finite"]
    assert here["state"]["step"] == here["steps"] > 0
    assert here["state"]["cf"] == 10.0
    assert here["losses"][-1] < 0.99 * here["losses"][0]
    assert not here["agent_left"]
    assert here["clip"] == 0.5  # the arguments are as they were


def test_the_loss_is_close_to_dense(found: Found) -> None:
    dense, topk = (found[0][case]["losses"][-1] for case in ("plain", "topk"))
    assert topk == pytest.approx(dense, rel=0.05)


def test_a_nonfinite_step_is_skipped_on_all_ranks(found: Found) -> None:
    assert [rank["nonfinite"]["state"]["nonfinite"] for rank in found] == [1, 1]


def test_a_resumed_training_is_bit_equal(found: Found) -> None:
    """From a checkpoint of two buckets; without the residual, the parameters differ."""
    for rank in found:
        assert rank["resumed"]["files"] == ["gravac-rank0-of-2.pt", "gravac-rank1-of-2.pt"]
        assert rank["resumed"]["buckets"] > 1
        assert rank["resumed"]["saved_clip"] == 0.5
        assert rank["resumed"]["digest"] == rank["straight"]["digest"]
        assert rank["resumed_without"]["digest"] != rank["straight"]["digest"]
        assert rank["resumed_without"]["steps"] == 32


def test_a_failed_training_ends_its_agent_when_the_next_one_begins(found: Found, folder: Path) -> None:
    """The trainer tells no callback of an exception."""
    for rank in found:
        assert rank["failing"] == {"raised": "on purpose", "left": False, "again": 16}
    assert "ended by an error in the training" in (folder / "failing/runs/job/journal.jsonl").read_text()


def test_decision_loss_and_throughput_reach_the_logger(found: Found) -> None:
    """All ranks log, so that a trainer whose ``log`` exchanges something does not hang."""
    lines, others = ([line for line in rank["topk"]["history"] if "gravac/cf" in line] for rank in found)
    assert [line["step"] for line in lines] == [line["step"] for line in others] == [4, 8, 12, 16]
    assert lines[-1]["gravac/cf"] == lines[-1]["gravac/plan/topk-bf16"] == others[-1]["gravac/cf"] == 10.0
    assert 0 < lines[-1]["gravac/useful_samples_per_second"] <= lines[-1]["gravac/samples_per_second"]
    # The trainer's own loss is the mean over ranks and 4 steps too: the agent got each step's loss, and no other.
    assert any(
        lines[-1]["gravac/loss"] == pytest.approx(loss, rel=1e-5) for loss in found[0]["topk"]["losses"][2:]
    )


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(SetupError, match=r"no setting 'compresor' \(did you mean 'compressor'\?\)"):
        GravacCallback(compresor="topk")


def test_the_page_is_true(tmp_path: Path) -> None:
    """The documented diff of the user's script is the example, adds what the page says, and trains."""
    page = launch.Page("transformers")
    assert page.after == (launch.ROOT / "examples/train_transformers.py").read_text()
    assert page.added == [
        "from gravac_agent.integrations.transformers import GravacCallback",
        "trainer.add_callback(GravacCallback())",
    ]
    assert page.removed == []
    assert page.commands[0] == 'pip install ".[transformers]"  # in a clone of gravac'
    printed = page.run(tmp_path, GRAVAC_POLICY="static:cf=10", GRAVAC_WINDOW="20")
    assert "ended after 100 steps: held topk+bf16 at CF 10" in printed
    assert "page http://" in printed
    states = [json.loads(path.read_text()) for path in tmp_path.glob("gpt2-bytes/*/trainer_state.json")]
    assert any("gravac/cf" in line for state in states for line in state["log_history"])
    assert len(list(tmp_path.glob("gpt2-bytes/checkpoint-100/gravac-rank*"))) == 2
