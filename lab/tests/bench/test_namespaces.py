"""Namespaces of a killed run are removed, and nothing else; why there are none."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gravac_lab.bench import namespaces
from gravac_lab.bench.namespaces import NetworkUnavailable
from gravac_lab.bench.network import HostNetwork

pytestmark = pytest.mark.distributed


@pytest.mark.usefixtures("networks")
def test_leftovers_of_a_killed_run_are_removed_and_nothing_else() -> None:
    """Killed outright, with hosts up; a living run's hosts and names that are not ours stay."""
    code = (
        "import time; from gravac_lab.bench.network import HostNetwork\n"
        "with HostNetwork(2, 1e8): print('up', flush=True); time.sleep(60)"
    )
    foreign = f"gravacish-{os.getpid()}"
    namespaces.call("ip", "netns", "add", foreign)
    try:
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "up\n"
            left = [each for each in namespaces.present() if each.startswith(f"gravac-{other.pid}-")]
            assert len(left) == 3
            assert not set(left) & set(namespaces.remove_stale()), "it lives"
            other.send_signal(signal.SIGKILL)
            os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
            assert set(left) <= set(namespaces.present()), "a killed process cannot clear up"
            with HostNetwork(1, None):  # not reaped yet: a zombie is dead
                assert not set(left) & set(namespaces.present())
        assert foreign in namespaces.present()
    finally:
        namespaces.remove(foreign)


def test_why_not_without_iproute2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NetworkUnavailable, match=r"command ip is missing .*install iproute2"):
        HostNetwork(2, 1e8).__enter__()


@pytest.mark.usefixtures("networks")
def test_why_not_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NetworkUnavailable, match="needs root"):
        HostNetwork(2, 1e8).__enter__()
