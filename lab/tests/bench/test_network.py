"""Networks inside this machine: they come, limit, count and go, also after a crash."""

import os
import socket
import subprocess
import sys
import time

import pytest

from gravac_lab.bench import namespaces
from gravac_lab.bench.network import Host, HostNetwork, parse_rate

pytestmark = pytest.mark.distributed
SENDER = """
import socket, sys, time
wire = socket.create_connection((sys.argv[1], 5000), timeout=10)
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    wire.sendall(bytes(65536))
"""
RECEIVER = """
import socket, sys, time
with socket.create_server((sys.argv[1], 5000)) as listener:
    print("ready", flush=True)
    wire, _ = listener.accept()
took, begun = 0, None
while part := wire.recv(1 << 16):
    begun = begun or time.monotonic()
    took += len(part)
print(took, time.monotonic() - begun, flush=True)
"""


def mine(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(f"gravac-{os.getpid()}-")]


def transfer(sender: Host, receiver: Host, seconds: float) -> tuple[int, float]:
    """Bytes received over TCP, and the seconds it took."""
    python = (sys.executable, "-c")
    with subprocess.Popen(
        receiver.command([*python, RECEIVER, receiver.address]), stdout=subprocess.PIPE, text=True
    ) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "ready\n"
        words = [*python, SENDER, receiver.address, str(seconds)]
        subprocess.run(sender.command(words), check=True, timeout=30)
        took, passed = listening.stdout.readline().split()
    return int(took), float(passed)


@pytest.mark.usefixtures("networks")
def test_namespaces_come_and_go() -> None:
    before = {name for _, name in socket.if_nameindex()}
    with HostNetwork(3, None) as network, HostNetwork(2, None) as other:
        assert len(mine(namespaces.present())) == 3 + 1 + 2 + 1
        assert {name for _, name in socket.if_nameindex()} == before, "nothing on the machine's own network"
        assert not {host.namespace for host in network.hosts} & {host.namespace for host in other.hosts}
    assert not mine(namespaces.present())


@pytest.mark.usefixtures("networks")
def test_a_failing_body_leaves_nothing() -> None:
    with pytest.raises(ZeroDivisionError), HostNetwork(2, 1e8):
        raise ZeroDivisionError
    assert not mine(namespaces.present())


@pytest.mark.alone
@pytest.mark.usefixtures("networks")
def test_a_shaped_link_limits_and_counts() -> None:
    """Two seconds at 100 Mbit/s, then a fifth of it in mid-run; the counters see what was sent, and little more."""
    with HostNetwork(2, 1e8) as network:
        one, two = network.hosts
        took, seconds = transfer(one, two, 2.0)
        assert took * 8 / seconds == pytest.approx(1e8, rel=0.15)
        sent, received = network.traffic()
        assert took < sent.sent_bytes < 1.1 * took
        assert took < received.received_bytes < 1.1 * took
        assert sent.received_bytes < 0.1 * took, "acknowledgements only"
        network.shape(2e7)
        took, seconds = transfer(two, one, 1.0)
        assert took * 8 / seconds == pytest.approx(2e7, rel=0.25)
        network.shape(None)
        took, seconds = transfer(one, two, 0.3)
        assert took * 8 / seconds > 2e8


@pytest.mark.alone
@pytest.mark.usefixtures("networks")
def test_many_senders_share_the_receivers_link() -> None:
    """The way in is shaped as well as the way out: two hosts to one get 100 Mbit/s together, not each."""
    with HostNetwork(3, 1e8) as network:
        target, *sources = network.hosts
        code = RECEIVER.replace("(sys.argv[1], 5000)", "(sys.argv[1], int(sys.argv[2]))")
        receivers = []
        for port in (5001, 5002):
            words = [sys.executable, "-c", code, target.address, str(port)]
            receivers.append(subprocess.Popen(target.command(words), stdout=subprocess.PIPE, text=True))
        for receiver in receivers:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "ready\n"
        begun = time.monotonic()
        senders = []
        for source, port in zip(sources, (5001, 5002), strict=True):
            text = SENDER.replace("5000", str(port))
            words = [sys.executable, "-c", text, target.address, "1.5"]
            senders.append(subprocess.Popen(source.command(words)))
        took = 0
        for sender in senders:
            assert sender.wait(30) == 0
        for receiver in receivers:
            assert receiver.stdout is not None
            took += int(receiver.stdout.readline().split()[0])
            assert receiver.wait(10) == 0
            receiver.stdout.close()
        passed = time.monotonic() - begun
    assert took * 8 / passed < 1.15e8


@pytest.mark.parametrize(
    ("text", "bits"), [("100mbit", 1e8), (" 2.5 Gbit/s ", 2.5e9), ("64kbit", 6.4e4), ("none", None)]
)
def test_rates(text: str, bits: float | None) -> None:
    assert parse_rate(text) == bits


@pytest.mark.parametrize("text", ["100mbps", "fast", "", "0mbit", "1kbit", "-1gbit", "nan"])
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"link=.*write for example 100mbit"):
        parse_rate(text)


@pytest.mark.parametrize("hosts", [0, 251])
def test_too_many_hosts(hosts: int) -> None:
    with pytest.raises(ValueError, match=f"hosts={hosts} must be between 1 and 250"):
        HostNetwork(hosts, None)
