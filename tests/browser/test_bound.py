"""The batch bound on the page: as last measured, beside the batch in use; when it is unknown, why."""

import pytest

from gravac.protocol import LevelSums
from tests.support.browser import shows
from tools.harness.chromium import READY, OpenPage, Tab
from tools.harness.controller import Controller
from tools.harness.recorded import RecordedJob
from tools.harness.sinks import Http

pytestmark = pytest.mark.browser

TILE = "[data-fact=bound]"


def level(recorded: RecordedJob, mean_sq: float) -> LevelSums:
    """The job's next level as if its steps were plainly dense. ``mean_sq``: of a step, whose ranks sum to 2."""
    (found,) = recorded.report().levels
    steps = recorded.window_steps
    means = {"mean_steps": steps, "mean_sq": mean_sq * steps, "mean_gradient_sq": 2.0 * steps}
    return found.model_copy(update={"sums": found.sums.model_copy(update=means)})


def tile(tab: Tab) -> tuple[str, str]:
    """Value and note."""
    return tab.text(f"{TILE} dd"), tab.text(f"{TILE} .note")


def test_the_last_measured_bound_stays_beside_the_batch(shared: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(shared), job="known")
    recorded.until("hold")
    recorded.play(3)
    tab = open_page(f"{shared.url}/#job=known")
    tab.wait(READY)
    assert tab.text(f"{TILE} dt") == "Batch bound B_S"
    assert tile(tab) == ("≈ 1,200", "samples (your global batch: 64), measured in window 1")
    help_text = tab.page.locator(TILE).get_attribute("title")
    assert help_text is not None
    for words in ("Beyond it, larger batches stop paying off", "add workers", "make steps cheaper"):
        assert words in help_text
    assert tab.page.locator(f"{TILE} .sr").text_content() == help_text, "for those who have no pointer"
    # A fallback measures again: 2 ranks of 32 samples, |G|² = 0.5, S = 16 samples.
    window = recorded.window
    recorded.play(phase="fallback", cf=1.0, levels=(level(recorded, 0.75),))
    shows(tab, f"{TILE} dd", "≈ 33")
    assert tile(tab)[1] == f"samples (your global batch: 64), measured in window {window}"


@pytest.mark.parametrize("why", ["alone", "uncounted", "never-dense", "drowned"])
def test_unknown_says_why(shared: Controller, open_page: OpenPage, why: str) -> None:
    recorded = RecordedJob(Http(shared), job=why, world_size=1 if why == "alone" else 2)
    changes: dict[str, dict[str, object]] = {
        "alone": {},
        "uncounted": {"samples": 0},
        "never-dense": {"levels": ()},
        "drowned": {"levels": (level(recorded, 0.25),)},
    }
    recorded.play(1, **changes[why])
    tab = open_page(f"{shared.url}/#job={why}")
    tab.wait(READY)
    assert tile(tab) == (
        "–",
        {
            "alone": "needs at least two ranks",
            "uncounted": "the trainer's batch size is unknown; pass it to agent.log(samples=…)",
            "never-dense": "not measured: only windows of uncompressed gradients show it (warm-up, fallback)",
            "drowned": "too noisy to measure: probably far above your global batch (64)",
        }[why],
    )
