"""Full parts are compressed and old ones deleted whatever happens between two threads, or to one file."""

import threading
import time
from pathlib import Path

import pytest

from gravac.traces import parts
from gravac_controller.jobs.journal import Journal
from gravac_controller.settings import ControllerSettings

PATIENCE_SECONDS = 60.0


def fill(folder: Path, number: int) -> Path:
    """Make a full part, as ``begin_part`` leaves it."""
    path = parts.full_part_path(folder, number)
    path.write_bytes(b"x" * 1000)
    return path


def journal(folder: Path, keep_bytes: int = 1 << 20) -> Journal:
    return Journal(folder, ControllerSettings(data_dir=folder, journal_keep_bytes=keep_bytes), time.time)


def plain(folder: Path) -> list[Path]:
    return [path for path in parts.full_parts(folder).values() if path.suffix == ".jsonl"]


def test_a_part_that_becomes_full_meanwhile_is_compressed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other part becomes full, so no later call would handle it."""
    real, compressing, go_on = parts.compress, threading.Event(), threading.Event()

    def slow(path: Path) -> Path:
        compressing.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return real(path)

    monkeypatch.setattr(parts, "compress", slow)
    one = journal(tmp_path)
    fill(tmp_path, 1)
    first = threading.Thread(target=one.tidy)
    first.start()
    assert compressing.wait(PATIENCE_SECONDS)
    fill(tmp_path, 2)
    one.tidy()  # returns immediately: the other thread is busy with it
    assert len(plain(tmp_path)) == 2
    go_on.set()
    first.join(PATIENCE_SECONDS)
    assert not plain(tmp_path)
    assert list(parts.full_parts(tmp_path)) == [1, 2]


def test_a_part_that_cannot_be_compressed_does_not_stop_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not stop others from being deleted either, or a full disk would stay full."""
    real = parts.compress

    def refuse_second(path: Path) -> Path:
        if "000002" in path.name:
            raise OSError(28, "No space left on device")
        return real(path)

    monkeypatch.setattr(parts, "compress", refuse_second)
    for number in (1, 2, 3):
        fill(tmp_path, number)
    journal(tmp_path, keep_bytes=500).tidy()
    assert [path.name for path in parts.full_parts(tmp_path).values()] == ["journal.000003.jsonl.gz"]
    assert "No space left on device" in caplog.text


def test_a_failed_part_is_compressed_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is released after any error."""

    def breaks(_: Path) -> Path:
        raise RuntimeError("a bug")

    one = journal(tmp_path)
    fill(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(parts, "compress", breaks)
        with pytest.raises(RuntimeError):
            one.tidy()
    one.tidy()
    assert not plain(tmp_path)
