"""Traces of other machines reach rank 0 through the job's store, or its folder, without a collective."""

import gzip
import json
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from gravac_observe.record import delivery
from gravac_observe.record.delivery import COMPLETE, SENT, TOKEN, Delivery, recording


@pytest.fixture
def store() -> dist.TCPStore:
    return dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20)
    )


def made(folder: Path, rank: int, store: dist.TCPStore | None, size: int = 1000) -> Delivery:
    folder.mkdir(exist_ok=True)
    trace = folder / f"rank{rank}.json"
    trace.write_text(json.dumps({"rank": rank, "filling": [hash(number) for number in range(size)]}))
    return Delivery(trace, rank, 3, None if store is None else store.clone(), folder, judges=False)


def test_through_the_folder_and_through_the_store(
    tmp_path: Path, store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "PIECE", 5000)
    home, near, far = tmp_path / "home", tmp_path / "near", tmp_path / "far"
    first = made(home, 0, store)
    first.start()
    second = made(near, 1, store)
    second.start()
    second.join(20)
    (home / TOKEN).unlink()  # another machine does not see it
    third = made(far, 2, store, 20_000)
    third.start()
    third.join(20)
    first.join(20)
    assert sorted(each.name for each in home.iterdir()) == [
        COMPLETE,
        *(f"rank{rank}.json.gz" for rank in range(3)),
    ]
    ranks = [
        json.loads(gzip.decompress((home / f"rank{rank}.json.gz").read_bytes()))["rank"] for rank in range(3)
    ]
    assert ranks == [0, 1, 2]
    assert [each.name for each in near.iterdir()] == [each.name for each in far.iterdir()] == [SENT]
    assert store.num_keys() <= 4, "the pieces are gone from the store"


def test_what_is_missing_is_said(
    tmp_path: Path, store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(delivery, "SECONDS", 1.0)
    monkeypatch.setattr(delivery, "MOST_BYTES", 10)
    home, far = tmp_path / "home", tmp_path / "far"
    first = made(home, 0, store)
    first.start()
    until = time.monotonic() + 20
    while not store.check([f"{first._prefix}home"]) and time.monotonic() < until:
        time.sleep(0.01)
    (home / TOKEN).unlink()
    second, alone = made(far, 1, store), made(far, 2, None)
    for each in (second, alone):
        each.start()
    for each in (first, second, alone):
        each.join(20)
    said = capsys.readouterr().err
    assert "no trace of rank 1: " in said
    assert f"it lies at {__import__('socket').gethostname()}:{far}/rank1.json.gz" in said
    assert "no trace of these ranks, which recorded no step of an optimizer in time: 2" in said
    assert "the trace of rank 2 lies at " in said
    assert (home / COMPLETE).exists()


def test_of_many_ranks_some_record() -> None:
    assert list(recording(3)) == [0, 1, 2]
    assert len(recording(1000)) <= 64
    assert list(recording(128))[:3] == [0, 2, 4]


def test_a_trace_that_nobody_takes_is_kept(
    tmp_path: Path, store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(delivery, "SECONDS", 0.5)
    late = made(tmp_path / "far", 1, store)
    store.set(f"{late._prefix}home", json.dumps({"folder": "/elsewhere", "token": "of rank 0"}))
    late.start()
    late.join(20)
    assert (tmp_path / "far" / "rank1.json.gz").exists()
    assert "rank 0 did not take it in time" in capsys.readouterr().err


def test_a_folder_that_is_complete_already_keeps_the_trace(tmp_path: Path, store: dist.TCPStore) -> None:
    """Rank 0 may see a trace in its folder before the rank that wrote it has seen that this is the folder."""
    home = tmp_path / "home"
    first, second = (
        Delivery(made(home, rank, None)._trace, rank, 2, store.clone(), home, False) for rank in (0, 1)
    )
    (home / "rank1.json.gz").write_bytes(gzip.compress(b"{}"))
    first.start()
    first.join(20)
    assert (home / COMPLETE).exists()
    second.start()
    second.join(20)
    assert (home / "rank1.json.gz").exists()
    assert not (home / SENT).exists()


def test_a_trace_in_the_folder_of_rank_0_needs_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which goes away with rank 0, that may end first."""
    alone = made(tmp_path / "home", 1, None)
    (tmp_path / "home" / TOKEN).touch()
    alone.start()
    alone.join(20)
    assert capsys.readouterr().err == ""
    assert sorted(each.name for each in (tmp_path / "home").iterdir()) == [TOKEN, "rank1.json.gz"]
