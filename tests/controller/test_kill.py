"""SIGKILL at random moments while windows stream in: nothing acknowledged is lost, nothing is doubled."""

from pathlib import Path

from controller.killing import kill_again_and_again

KILLS = 10


def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    """``python -m controller.killing --kills 100`` is the long one."""
    tally = kill_again_and_again(tmp_path / "runs", KILLS)
    assert tally.windows > 3 * KILLS
    assert tally.retries > 0
    assert tally.parts > 3
