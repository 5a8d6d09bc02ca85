"""A lock of this process excludes its other parts, and says who holds it."""

import os
from pathlib import Path

import pytest

from gravac.traces.file_lock import FileLock, LockHeld, read_note


def test_a_lock_excludes_other_parts_of_its_process(tmp_path: Path) -> None:
    """Record locks do not. Releasing it again must not release that of the next holder."""
    path = tmp_path / "new" / "lock"
    first = FileLock.take(path)
    first.write_note(url="here")
    with pytest.raises(LockHeld) as held:
        FileLock.take(tmp_path / "new" / ".." / "new" / "lock")
    assert (held.value.ours, held.value.note) == (True, {"pid": os.getpid(), "url": "here"})
    first.release()
    second = FileLock.take(path)
    first.release()
    with pytest.raises(LockHeld):
        FileLock.take(path)
    second.release()


def test_a_note_is_that_of_its_last_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert read_note(path) is None
    lock = FileLock.take(path)
    assert read_note(path) is None, "nothing is written yet"
    lock.write_note(url="a long one, of which nothing may stay")
    lock.write_note(url="b")
    for _ in range(2):  # while it is held, and afterwards
        assert read_note(path) == {"pid": os.getpid(), "url": "b"}
        lock.release()
    for nonsense in ("[]", "4711", "{", '{"url": "' + "x" * 5000 + '"}'):
        path.write_text(nonsense)
        assert read_note(path) is None
