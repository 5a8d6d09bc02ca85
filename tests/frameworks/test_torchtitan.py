"""A loop in torchtitan's manner, with the real package's model and FSDP2 setup: ``make test-frameworks``."""

import re
from pathlib import Path

import pytest

pytest.importorskip(
    "torchtitan", reason="torchtitan is not installed: make test-frameworks", exc_type=ImportError
)

from tests.frameworks import launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


def test_the_page_is_true(tmp_path: Path) -> None:
    """The documented diff of the user's script is the example, adds what the page says, and trains."""
    page = launch.Page("torchtitan")
    assert page.after == (launch.ROOT / "examples/train_torchtitan.py").read_text()
    assert [line for line in page.added if line] == [
        "from gravac import Agent",
        "with Agent(model, optimizer) as agent:",
        "agent.clip_grad_norm_(1.0)",
        "agent.log(loss=loss * ranks)",
    ]
    assert page.removed == ["torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"]
    assert page.commands[0] == 'pip install ".[torchtitan]"  # in a clone of gravac'
    printed = page.run(tmp_path, GRAVAC_POLICY="static:cf=10", GRAVAC_WINDOW="20")
    assert "ended after 100 steps: held topk+bf16 at CF 10" in printed
    assert "page http://" in printed
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", printed)]
    assert len(losses) == 5
    assert losses[-1] < 0.6 * losses[0]
