"""Trackio, in a run of its own and in one of the program."""

from pathlib import Path

import pytest

from tests.agent.sinks.test_base import expected, train

pytestmark = [
    pytest.mark.usefixtures("world_of_one"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.mark.parametrize("own", [False, True])
def test_trackio(own: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    from trackio import sqlite_storage

    monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", tmp_path / "trackio")
    if own:
        run = trackio.init("mine", name="job", embed=False, auto_log_gpu=False, auto_log_cpu=False)
        windows, decisions = train(run)
        run.finish()
    else:
        windows, decisions = train("trackio:project=mine")
    rows = sqlite_storage.SQLiteStorage.get_logs("mine", "job")
    losses = [(row["gravac/step"], row["gravac/loss"]) for row in rows if "gravac/loss" in row]
    assert losses == expected(windows, "gravac/loss")
    assert [row["gravac/reason"] for row in rows if "gravac/reason" in row] == [
        each.reason for each in decisions
    ]
