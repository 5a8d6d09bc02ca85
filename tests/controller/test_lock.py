"""One data folder has one controller."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gravac.traces.file_lock import read_note
from gravac_controller.lock import LOCK_NAME, DataDirError, DataDirLock


@pytest.mark.distributed
def test_one_data_folder_one_controller(tmp_path: Path) -> None:
    first = DataDirLock(tmp_path / "runs").acquire()
    with pytest.raises(DataDirError, match=r"in use by another controller \(pid \d+\)"):
        DataDirLock(tmp_path / "runs").acquire()
    first.note(url="http://127.0.0.1:1")
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    with pytest.raises(
        DataDirError, match=r"\(pid \d+ at http://127.0.0.1:1\)"
    ):  # reading the note keeps the lock
        DataDirLock(tmp_path / "link").acquire()
    assert read_note(tmp_path / "runs" / LOCK_NAME) == {"pid": os.getpid(), "url": "http://127.0.0.1:1"}
    take = (
        "import pathlib, sys; from gravac_controller.lock import DataDirInUse, DataDirLock\n"
        "try: DataDirLock(pathlib.Path(sys.argv[1])).acquire()\n"
        "except DataDirInUse: print('in use')"
    )
    other = subprocess.run(
        [sys.executable, "-c", take, str(tmp_path / "runs")], capture_output=True, text=True, check=True
    )
    assert other.stdout == "in use\n"
    first.release()
    second = DataDirLock(tmp_path / "runs").acquire()
    second.release()
