"""P1 and P5: the controller may die; training goes on, no window is lost or counted twice."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gravac.protocol import End, JobSpec, WindowReport
from gravac.replays.replay import check
from gravac.traces import read_trace
from gravac_agent.reporting.job_lock import JobLock
from tests.support.ranks.harness import RunRanks
from tools.harness.controller import Controller

pytestmark = pytest.mark.distributed


@pytest.mark.smoke
def test_killed_three_times_no_window_is_lost_or_doubled(run_ranks: RunRanks, tmp_path: Path) -> None:
    one, two = run_ranks("controller_dies", 2, kills=[23, 67, 111], steps=205, window=10)
    assert one["ready"]
    assert len(set(one["killed"])) == 3
    assert one["last_pid"] not in one["killed"]
    assert one["parameters"] == two["parameters"]
    journal = tmp_path / "killed" / "journal.jsonl"
    windows = [line.record for line in read_trace(journal) if isinstance(line.record, WindowReport)]
    assert [window.window for window in windows] == list(range(21))
    assert [window.first_step for window in windows] == list(range(0, 201, 10))
    assert sum(level.steps for window in windows for level in window.levels) == 205
    losses = [window.loss for window in windows]
    assert losses[0] == pytest.approx(sum(range(1, 11)) / 10)
    assert losses[3] == pytest.approx(sum(range(31, 41)) / 10)
    result = check(journal)
    assert result.ok, result.differences
    assert not any(os.path.exists(f"/proc/{pid}") for pid in [*one["killed"], one["last_pid"]])


def test_a_restarted_trainer_continues_its_journal(run_ranks: RunRanks, tmp_path: Path) -> None:
    one, two = run_ranks("same_job_twice", 2)
    assert one == two
    assert one["epochs"][1] >= one["epochs"][0] >= 1
    journal = tmp_path / "twice" / "journal.jsonl"
    windows = [line.record for line in read_trace(journal) if isinstance(line.record, WindowReport)]
    assert [window.window for window in windows] == list(range(10))
    assert len({window.incarnation for window in windows}) == 2
    ends = [line.record for line in read_trace(journal) if isinstance(line.record, End)]
    assert [end.windows for end in ends] == [5, 10]  # of the whole job
    result = check(journal)
    assert result.ok, result.differences


def test_the_name_of_a_live_run_is_refused_on_all_ranks(run_ranks: RunRanks, tmp_path: Path) -> None:
    """gravac 0.1 let a second run go on without a controller and append to the first run's journal at its end."""
    lock = JobLock.acquire(tmp_path, "live")
    assert lock is not None
    try:
        one, two = run_ranks("names_taken", 2, job="live")
    finally:
        lock.release()
    for message in one["messages"] + two["messages"]:
        assert f"job='live' is already running (process {os.getpid()} on" in message
        assert "give this run another job name" in message
    assert not (tmp_path / "live" / "journal.jsonl").exists()
    assert len(set(one["names"])) == 3
    for name in one["names"]:
        assert check(tmp_path / name / "journal.jsonl").ok


def test_a_checkpoint_of_another_policy_is_refused_on_all_ranks(run_ranks: RunRanks) -> None:
    """Also where the state of the one is a valid state of the other. ``dense`` takes any, and sends its residual."""
    for result in run_ranks("resumed_under_another_policy", 2):
        *refused, first, second = result["messages"]
        assert first == second == "dense took it"
        assert result["waits"] == [[7, 1.0, 0.0]] * 2
        assert len(refused) == 6
        for number, message in enumerate(refused):
            saved, loaded = (("static", "gravac"), ("dense", "auto"), ("dense", "static"))[number // 2]
            assert f"policy={loaded!r}: it was saved under policy={saved!r}" in message
            assert "Resume with the policy that it was saved with" in message


@pytest.mark.parametrize("which", ["own", "none", "shared"])
def test_another_training_under_a_known_name_gets_its_own(
    run_ranks: RunRanks, tmp_path: Path, which: str
) -> None:
    """Unless it loads a checkpoint of that job. It is said in the log, and each journal has one training."""
    shared = Controller(tmp_path / "shared") if which == "shared" else None
    address = {"own": "auto", "none": None}.get(which, shared and shared.url)
    try:
        one, two = run_ranks("another_training", 2, controller=address)
    finally:
        if shared is not None:
            shared.stop()
    folder = tmp_path / "shared" if shared else tmp_path
    assert [names[1] for names in one["names"]] == ["same", "same-2", "same"]
    if shared is None:  # known before the first step, to all ranks
        assert [names[0] for names in one["names"]] == [names[0] for names in two["names"]]
    said = [
        text
        for text in one["logged"]
        if "is another training: it trains with SGD, this run with AdamW" in text
    ]
    assert len(said) == 2, one["logged"]
    assert any("job same-2: it goes on as job same, from a checkpoint" in text for text in one["logged"])
    windows: dict[str, list[int]] = {}
    for job in ("same", "same-2"):
        assert check(folder / job / "journal.jsonl").ok
        records = [line.record for line in read_trace(folder / job / "journal.jsonl")]
        assert isinstance(records[-1], End)
        reports = [record for record in records if isinstance(record, WindowReport)]
        assert {report.job for report in reports} == {job}
        windows[job] = [report.window for report in reports]
        used = {spec.optimizer.name for spec in records if isinstance(spec, JobSpec) and spec.optimizer}
        assert used == ({"AdamW", "SGD"} if job == "same" else {"AdamW"})
    assert windows == {"same": [*range(6)], "same-2": [*range(4)]}
    assert not (folder / "same-3").exists()


@pytest.fixture
def black_hole() -> Iterator[str]:
    """Accepts connections and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def accept() -> None:
        try:
            while True:
                kept.append(listener.accept()[0])
        except OSError:
            return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    for connection in kept:
        connection.close()


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["black hole", "refused"])
def test_an_unreachable_controller_costs_no_step(run_ranks: RunRanks, black_hole: str, kind: str) -> None:
    url = black_hole if kind == "black hole" else "http://127.0.0.1:9"
    one, two = run_ranks("controller_missing", 2, url=url, steps=60)
    assert one["parameters"] == two["parameters"]
    assert one["phases"] == two["phases"]  # all ranks go dense at the same step
    assert one["phases"][0] == "hold"
    assert one["phases"][-1] == "fallback"
    assert one["cf"] == 1.0
    assert one["longest"] < 2.0
    assert one["closing"] < 5.0
