"""SIGKILL at random moments while windows stream in: no acknowledged window is lost or journaled twice."""

import threading
from pathlib import Path

import pytest

from tests.support.killing import Sender, kill_again_and_again, progress

pytestmark = pytest.mark.distributed

KILLS = 10


def test_kills_lose_and_repeat_no_window(tmp_path: Path) -> None:
    """``python -m tests.support.killing --kills 100`` is the long one."""
    tally = kill_again_and_again(tmp_path / "runs", KILLS)
    assert tally.windows > 3 * KILLS
    assert tally.retries > 0
    assert tally.parts > 3


def test_a_sender_that_ends_says_why() -> None:
    """A thread of the helper that ended with an exception looked like a controller that does not answer."""

    class Nonsense:
        def ask(self, *_: object) -> tuple[int, bytes]:
            return 200, b"<html>"

    sender = Sender("one", lambda: Nonsense(), threading.Event())
    sender.start()
    with pytest.raises(AssertionError, match="Invalid JSON"):
        progress([sender], 1)
    sender.join()
