"""Two hosts whose own names resolve to loopback, as Debian installs them: gloo fails there, and the cure is named."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gravac_agent.network import hosts
from gravac_lab.bench.network import Host, HostNetwork

pytestmark = pytest.mark.distributed
CONNECTING = """
from datetime import timedelta
import torch, torch.distributed as dist
import gravac_agent
dist.init_process_group("gloo", timeout=timedelta(seconds=100))
dist.all_reduce(torch.ones(1))
print("connected", flush=True)
"""
CURE = "Set GLOO_SOCKET_IFNAME=eth0 on this machine (docs/multi-host.md)"


@pytest.fixture
def debian(networks: None) -> Iterator[list[Host]]:
    with HostNetwork(2, None) as network, ExitStack() as files:
        for number, host in enumerate(network.hosts):
            folder = Path("/etc/netns", host.namespace)
            folder.mkdir(parents=True)
            files.callback(shutil.rmtree, folder)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 box{number}\n")
        yield list(network.hosts)


def run(on: list[Host], folder: Path, together: bool, **more: str) -> list[tuple[str, str]]:
    """A rank on each host, started as torchrun would: output and errors of each rank. ``together``: all are to
    end; else the others are killed when the first has."""
    ranks, until = [], time.monotonic() + 200
    try:
        for rank, host in enumerate(on):
            environment = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
            environment |= {"MASTER_ADDR": on[0].address, "MASTER_PORT": "29500"}
            environment |= {"OMP_NUM_THREADS": "1"}
            name = ["unshare", "--uts", "sh", "-c", f'hostname box{rank} && exec "$@"', "sh"]
            with (folder / f"out{rank}").open("w") as out, (folder / f"errors{rank}").open("w") as errors:
                words = host.command([*name, sys.executable, "-c", CONNECTING])
                ranks.append(
                    subprocess.Popen(words, env=os.environ | environment | more, stdout=out, stderr=errors)
                )
        over = all if together else any
        while not over(rank.poll() is not None for rank in ranks) and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return [
        ((folder / f"out{rank}").read_text(), (folder / f"errors{rank}").read_text())
        for rank in range(len(on))
    ]


def test_a_name_that_is_loopback_is_warned_of_and_cured(debian: list[Host], tmp_path: Path) -> None:
    found = run(debian, tmp_path, together=False)
    for rank, (out, errors) in enumerate(found):
        assert "connected" not in out
        assert (
            f"box{rank}, resolves to 127.0.1.1: gloo would listen there, and other machines cannot reach it"
            in errors
        )
        assert CURE in errors
    assert any("Connection refused, remote=[127.0.1.1]" in errors for _, errors in found)  # as the page says
    for out, errors in run(debian, tmp_path, together=True, GLOO_SOCKET_IFNAME="eth0"):
        assert "connected" in out, errors
        assert "cannot reach it" not in errors


def test_nothing_is_said_on_one_machine_or_with_an_interface(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(0, 0, 0, "", ("127.0.1.1", 0))])
    for environment in (
        {},
        {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"},
        {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "two"},
        {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "eth0"},
    ):
        with monkeypatch.context() as patch:
            for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME"):
                patch.delenv(name, raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            hosts.warn_of_loopback()
    assert not caplog.records
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    hosts.warn_of_loopback()
    assert "GLOO_SOCKET_IFNAME" in caplog.text
