"""A job's name is locked while its run lives, and no longer."""

import subprocess
import sys
from pathlib import Path

import pytest

from gravac_agent import SetupError
from gravac_agent.reporting.job_lock import JobLock


@pytest.mark.distributed
def test_a_name_is_free_when_its_run_has_ended_or_died(tmp_path: Path) -> None:
    lock = JobLock.acquire(tmp_path, "live")
    assert lock is not None
    with pytest.raises(SetupError, match="has an open Agent in this process already"):
        JobLock.acquire(tmp_path, "live")
    lock.release()
    holds = (
        "import pathlib, sys; from gravac_agent.reporting.job_lock import JobLock\n"
        "lock = JobLock.acquire(pathlib.Path(sys.argv[1]), 'live'); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holds, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"held\n"
        with pytest.raises(SetupError, match=f"process {run.pid} on"):
            JobLock.acquire(tmp_path, "live")
        run.kill()
        run.wait()
    again = JobLock.acquire(tmp_path, "live")
    assert again is not None
    again.release()
    again.release()
    blocked = tmp_path / "file"
    blocked.touch()
    assert JobLock.acquire(blocked, "live") is None  # no folder, so no journal that two could write
