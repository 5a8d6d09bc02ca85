"""A sink has a thread of its own: one that hangs or raises stops nothing."""

import logging
import threading
import time

import pytest
import torch

from gravac_agent.sinks import feed
from tests.agent.sinks.test_base import Listed, train

pytestmark = [
    pytest.mark.usefixtures("world_of_one"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def test_rows_that_come_quickly_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "PAUSE_SECONDS", 60.0)
    sink = Listed()
    windows, _ = train(sink, steps=40)
    assert len([row for row in sink.rows if row.figures]) == len(windows) == 10
    assert sink.writes <= 2  # the first rows, and what is left at the end


def test_a_sink_that_hangs_delays_nothing_and_what_it_lacks_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()
    monkeypatch.setattr(feed, "CLOSE_SECONDS", 0.3)
    monkeypatch.setattr(feed, "MOST_ROWS", 4)
    hanging, well = Listed(), Listed()
    hanging.act = released.wait  # type: ignore[misc, assignment]
    began = time.monotonic()
    train([hanging, well], steps=40, window=2)
    assert time.monotonic() - began < 10.0
    assert len([row for row in well.rows if row.figures]) == 20 or "sink listed takes no rows" in caplog.text
    lacking = [record.getMessage() for record in caplog.records if "lacks" in record.getMessage()]
    assert any("it did not end within 0.3 s" in line for line in lacking)
    # 20 windows and 21 decisions, of which none was written.
    assert any(line.startswith("sink listed lacks 41 rows") for line in lacking), lacking
    released.set()


def test_a_sink_that_raises_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feed, "RETRY_SECONDS", 0.02)
    sink = Listed()
    sink.act = lambda: torch.zeros(2).view(3)  # type: ignore[misc, assignment]
    plain = train("none")[0][-1].loss
    with caplog.at_level(logging.WARNING):
        windows, _ = train(sink, job="job", data_dir="gravac-runs")
    assert windows[-1].loss == plain
    failed = [record.getMessage() for record in caplog.records if "sink listed failed" in record.getMessage()]
    assert len(failed) == 1
    assert "training goes on" in failed[0]
    assert "sink listed lacks" in caplog.text


def test_a_sink_that_raises_at_the_end_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Ends(Listed):
        def close(self) -> None:
            raise OSError("the disk is full")

    train(Ends())
    (failed,) = [record.getMessage() for record in caplog.records if "disk is full" in record.getMessage()]
    assert failed == "sink listed failed at the end of the training: OSError: the disk is full"
