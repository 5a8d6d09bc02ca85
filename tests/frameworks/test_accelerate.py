"""gravac with Accelerate, with the real package: ``make test-frameworks``."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "accelerate", reason="Accelerate is not installed: make test-frameworks", exc_type=ImportError
)

from tests.frameworks import launch

Found = list[dict[str, Any]]
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launch.cases("accelerate_cases.py", tmp_path_factory.mktemp("accelerate"))


@pytest.mark.parametrize(
    ("case", "plain"), [("off", "plain"), ("dense", "plain"), ("accumulated_dense", "accumulated_plain")]
)
def test_without_compression_it_is_plain_accelerate_bit_for_bit(found: Found, case: str, plain: str) -> None:
    for rank in found:
        assert rank[case]["digest"] == rank[plain]["digest"]
        assert rank[case]["losses"] == rank[plain]["losses"]


def learned(found: Found, case: str) -> float:
    """Return by how much the loss of the last batches is below that of the first, on both ranks."""
    return sum(sum(rank[case]["losses"][:4]) - sum(rank[case]["losses"][-4:]) for rank in found)


@pytest.mark.parametrize(
    ("case", "plain", "steps"),
    [("topk", "plain", 16), ("accumulated", "accumulated_plain", 8), ("resumed", "plain", 32)],
)
def test_ranks_stay_equal_and_learn(found: Found, case: str, plain: str, steps: int) -> None:
    """Accumulated: half as many steps as batches, so the wrapper's own hooks would count wrong."""
    here, there = (rank[case] for rank in found)
    assert here["digest"] == there["digest"] != found[0]["plain"]["digest"]
    assert (here["step"], here["cf"]) == (steps, 10.0)
    assert here["buckets"] > 1
    assert learned(found, case) > 0.75 * learned(found, plain) > 0.0


@pytest.mark.parametrize(("case", "steps"), [("line", 15), ("line_accumulated", 7)])
def test_the_hook_line_starts_at_the_second_step(found: Found, case: str, steps: int) -> None:
    here, there = (rank[case] for rank in found)
    assert here["digest"] == there["digest"] != found[0]["plain"]["digest"]
    assert (here["step"], here["cf"]) == (steps, 10.0)


def test_a_resumed_training_is_bit_equal(found: Found) -> None:
    assert [rank["resumed"]["digest"] for rank in found] == [rank["straight"]["digest"] for rank in found]


def test_the_page_is_true(tmp_path: Path) -> None:
    """The documented diff of the user's script is the example, adds what the page says, and trains."""
    page = launch.Page("accelerate")
    assert page.after == (launch.ROOT / "examples/train_accelerate.py").read_text()
    assert [line for line in page.added if line] == [
        "from gravac import Agent",
        "with Agent(model, optimizer) as agent:",
        "agent.log(loss=loss)",
    ]
    assert page.removed == []
    assert page.commands[0] == 'pip install ".[accelerate]"  # in a clone of gravac'
    printed = page.run(tmp_path, GRAVAC_POLICY="static:cf=10", GRAVAC_WINDOW="20")
    assert "ended after 96 steps: held topk+bf16 at CF 10" in printed
    assert "page http://" in printed
