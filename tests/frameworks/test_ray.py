"""gravac in Ray Train, with the real package: ``make test-frameworks``."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: make test-frameworks", exc_type=ImportError)

from tests.frameworks import launch

Found = list[dict[str, Any]]
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launch.cases("ray_cases.py", tmp_path_factory.mktemp("ray"), [sys.executable])


def test_without_compression_it_is_plain_ddp_bit_for_bit(found: Found) -> None:
    for rank in found:
        assert rank["dense"]["digest"] == rank["plain"]["digest"]
        assert rank["dense"]["losses"] == rank["plain"]["losses"]


def test_ranks_stay_equal_and_learn(found: Found) -> None:
    here, there = (rank["topk"] for rank in found)
    assert here["digest"] == there["digest"] != found[0]["plain"]["digest"]
    assert (here["step"], here["cf"]) == (16, 10.0)
    assert here["buckets"] > 1
    assert sum(here["losses"][-4:]) < 0.99 * sum(here["losses"][:4])


def test_the_job_has_the_name_of_the_experiment(found: Found) -> None:
    """Not that of the script, which is default_worker in all workers."""
    assert re.fullmatch(r"my-experiment-\d{8}-\d{6}-[0-9a-f]{4}", found[0]["topk"]["job"])


def test_the_page_is_true(tmp_path: Path) -> None:
    """The documented diff of the user's script is the example, adds what the page says, and trains."""
    page = launch.Page("ray")
    assert page.after == (launch.ROOT / "examples/train_ray.py").read_text()
    assert [line for line in page.added if line] == [
        "from gravac import Agent",
        "with Agent(model, optimizer):",
    ]
    assert page.removed == []
    assert page.commands[0] == 'pip install ".[ray]"  # in a clone of gravac'
    surroundings = {
        "GRAVAC_DATA_DIR": str(tmp_path / "runs"),
        "GRAVAC_CONTROLLER": "none",
        "HOME": str(tmp_path),
    }
    page.run(tmp_path, GRAVAC_POLICY="static:cf=10", GRAVAC_WINDOW="20", **surroundings, **launch.RAY)
    (journal,) = (tmp_path / "runs").glob("classifier-*/journal.jsonl")
    assert '"steps":192' in journal.read_text()
