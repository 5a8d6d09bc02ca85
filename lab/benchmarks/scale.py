"""A small real job with many ranks on one machine: what its start, its ticks and its windows take, and what it sends.

    python -m lab.benchmarks.scale                            2 to 64 ranks on 2 to 8 hosts; needs root, ip and tc
    python -m lab.benchmarks.scale --ranks 16 --levels host   the ranks of each host divide buckets
    python -m lab.benchmarks.scale --out scale.jsonl          appends a line for each number of ranks
    python -m lab.benchmarks.scale table scale.jsonl          prints the tables of such lines

Each host is a network namespace of this machine, whose link is not shaped. All ranks share its cores, so the seconds
are those of a crowded machine: bytes and messages are what a cluster has, too.
"""

import argparse
import json
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from types import TracebackType
from typing import Any, Self

from gravac.collectives import Network
from gravac.collectives.cost import RING_RANKS
from gravac.predict.exchange import volume
from gravac_lab.bench.member import NAMESPACE
from gravac_lab.bench.network import INTERFACE, HostNetwork
from gravac_lab.bench.wire import FRAME_BYTES
from tools.harness.forked import Forked, Zygote, surroundings

SECONDS = 600.0
"""Longest wait for the answers of all ranks."""
MOST_HOSTS = 8
STEPS, TICKS, EXCHANGES = 24, 20, 3
NUMEL = 1 << 18
WAYS = (
    ("all-reduce", "topk+twobit", 16.6),
    ("gather", "topk+twobit", 16.6),
    ("owners", "topk+twobit", 16.6),
    ("shared", "topk+nearest:levels=15", 14.5),
    ("compressed-all-reduce", "nearest:levels=15", 7.5),
)
"""Collectives whose bytes are counted, with a codec and a CF of each."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What to run: ``levels`` and ``policy`` as in ``Agent``."""

    ranks: int
    levels: str
    policy: str

    @property
    def hosts(self) -> int:
        return min(MOST_HOSTS, self.ranks)

    @property
    def ranks_per_host(self) -> int:
        return self.ranks // self.hosts


class Crowd:
    """The ranks of a job, forked from processes that have imported all that they need."""

    def __init__(self, network: HostNetwork, ranks: int) -> None:
        self._zygote = Zygote("torch._dynamo", "torch.distributed", "gravac_lab.bench.member")
        self._answers: list[queue.SimpleQueue[bytes]] = []
        self._ranks: list[Forked] = []
        common = surroundings(
            MASTER_ADDR=network.hosts[0].address,
            MASTER_PORT="29500",
            WORLD_SIZE=str(ranks),
            OMP_NUM_THREADS="1",
            GLOO_SOCKET_IFNAME=INTERFACE,
            **{name: os.environ[name] for name in ("TORCH_GLOO_LAZY_INIT",) if name in os.environ},
        )
        for rank in range(ranks):
            host = network.hosts[rank * len(network.hosts) // ranks]
            made = self._zygote.start(
                function="gravac_lab.bench.member:main",
                arguments={},
                environment=common | {"RANK": str(rank), NAMESPACE: host.namespace},
                stdin=-1,
                stderr=2,
            )
            self._ranks.append(made)
            self._answers.append(queue.SimpleQueue())
            threading.Thread(target=self._read, args=(made, self._answers[-1]), daemon=True).start()

    def ready(self) -> list[dict[str, Any]]:
        """Return the first line of each rank."""
        until = time.monotonic() + SECONDS
        lines = [each.get(timeout=max(0.0, until - time.monotonic())) for each in self._answers]
        if dead := [rank for rank, line in enumerate(lines) if not line]:
            raise RuntimeError(f"ranks {dead[:8]} have ended; what they said is above")
        return [json.loads(line) for line in lines]

    def ask(self, do: str, **given: Any) -> list[dict[str, Any]]:
        """Let each rank do something, and return their answers."""
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(json.dumps({"do": do, **given}).encode() + b"\n")
            rank.stdin.flush()
        return self.ready()

    def _read(self, rank: Forked, answers: "queue.SimpleQueue[bytes]") -> None:
        assert rank.stdout is not None
        for line in rank.stdout:
            answers.put(line)
        answers.put(b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for rank in self._ranks:
            if rank.stdin is not None:
                rank.stdin.close()
        until = time.monotonic() + 20
        while any(rank.poll() is None for rank in self._ranks) and time.monotonic() < until:
            time.sleep(0.05)
        for rank in self._ranks:
            rank.kill()
            rank.wait()
        self._zygote.close()


class Counted:
    """Bytes that each host has sent, without framing, while entered."""

    def __init__(self, network: HostNetwork) -> None:
        self._network = network

    def __enter__(self) -> Self:
        self._before = self._network.traffic()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        pairs = zip(self._network.traffic(), self._before, strict=True)
        self.sent = [
            after.sent_bytes - before.sent_bytes - FRAME_BYTES * (after.sent_packets - before.sent_packets)
            for after, before in pairs
        ]


def run(chosen: Chosen) -> dict[str, Any]:
    """Run a job and return what it took."""
    with (
        tempfile.TemporaryDirectory() as folder,
        HostNetwork(chosen.hosts, None) as network,
        Crowd(network, chosen.ranks) as crowd,
    ):
        connected = max(each["seconds"] for each in crowd.ready())
        with Counted(network) as start:
            started = crowd.ask("start", folder=folder, policy=chosen.policy, levels=chosen.levels)
        steps = crowd.ask("train", steps=STEPS)
        shown = crowd.ask("page")[0]
        held = crowd.ask("look")
        sums = {name: _repeated(network, crowd, name, TICKS) for name in ("tick", "ring")}
        ways = {
            collective: _exchanged(network, crowd, chosen, collective, codec, cf)
            for collective, codec, cf in WAYS
        }
        crowd.ask("close")
    return {
        **asdict(chosen),
        "hosts": chosen.hosts,
        "connect_seconds": connected,
        "start_seconds": max(each["seconds"] for each in started),
        "start_bytes": mean(start.sent) / chosen.ranks_per_host,
        "step_seconds": steps[0]["seconds"],
        "memory": held[0]["memory"],
        "memory_of_others": mean(each["memory"]["pss"] for each in held[1:]),
        "sockets": held[0]["sockets"],
        "tick_messages": _messages_of_a_tick(chosen.ranks),
        **sums,
        **shown,
        "ways": ways,
    }


def _messages_of_a_tick(ranks: int) -> int:
    """Return how many messages of a tick a rank sends one after the other; there are 2, 4, 8, … ranks."""
    return 2 * (ranks - 1) if ranks <= RING_RANKS else ranks.bit_length() - 1


def _repeated(network: HostNetwork, crowd: Crowd, name: str, repeats: int) -> dict[str, float]:
    crowd.ask(name, repeats=1)
    with Counted(network) as counted:
        found = crowd.ask(name, repeats=repeats)
    return {
        "seconds": max(each["seconds"] for each in found),
        "bytes": found[0]["bytes"],
        "sent": mean(counted.sent) / repeats,
    }


def _exchanged(
    network: HostNetwork, crowd: Crowd, chosen: Chosen, collective: str, codec: str, cf: float
) -> dict[str, float]:
    """Return the bytes on a host's link, counted and by the formula."""
    given = {"codec": codec, "cf": cf, "collective": collective, "numel": NUMEL}
    crowd.ask("exchange", **given, repeats=1)
    with Counted(network) as counted:
        found = crowd.ask("exchange", **given, repeats=EXCHANGES)
    shared = Network(latency_seconds=0.0, bytes_per_second=1.0, ranks_per_link=chosen.ranks_per_host)
    expected = volume(codec, NUMEL, cf, chosen.ranks, shared, collective)
    return {
        "seconds": max(each["seconds"] for each in found),
        "sent": mean(counted.sent) / EXCHANGES,
        "formula": expected.link_bytes,
        "messages": expected.messages * chosen.ranks_per_host,
    }


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """Return what each number of ranks took, as tables of Markdown."""
    lines = [
        "| ranks | hosts | connect | start | kB a rank sends in the start | tick (gloo's ring) | messages of a tick "
        "| rank 0: memory, sockets | controller | kB of a window in the journal | rows: page, metrics |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        controller = row["controller_memory"]
        figures = (
            row["ranks"],
            f"{row['hosts']} × {row['ranks'] // row['hosts']}",
            f"{row['connect_seconds']:.1f} s",
            f"{row['start_seconds']:.1f} s",
            f"{row['start_bytes'] / 1e3:.0f}",
            f"{1e3 * row['tick']['seconds']:.1f} ms ({1e3 * row['ring']['seconds']:.1f})",
            f"{row['tick_messages']} ({2 * (row['ranks'] - 1)})",
            f"{row['memory']['rss'] / 1e6:.0f} MB, {row['sockets']}",
            "–" if controller is None else f"{controller['rss'] / 1e6:.0f} MB",
            f"{row['journal_bytes'] / 1e3:.1f}",
            f"{row['rows']}, {row['metrics_rows']}",
        )
        lines.append(f"| {' | '.join(map(str, figures))} |")
    lines += ["", f"| ranks | {' | '.join(name for name, _, _ in WAYS)} |", "|---:|" + "---:|" * len(WAYS)]
    for row in rows:
        cells = [
            f"{row['ways'][name]['sent'] / 1e3:.1f} ({row['ways'][name]['formula'] / 1e3:.1f})"
            for name, _, _ in WAYS
        ]
        lines.append(f"| {row['ranks']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", nargs="*", help="table FILE: prints the tables of a file that --out wrote")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--levels", default="flat")
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.table:
        print(tables([json.loads(line) for line in Path(given.table[-1]).read_text().splitlines()]))
        return
    if wrong := [ranks for ranks in given.ranks if ranks < 2 or ranks & (ranks - 1)]:
        parser.error(f"--ranks {wrong[0]}: give a power of two, such as 16")
    rows = []
    for ranks in given.ranks:
        rows.append(run(Chosen(ranks, given.levels, given.policy)))
        print(f"{ranks} ranks: done", file=sys.stderr)
        if given.out is not None:
            with given.out.open("a") as out:
                out.write(json.dumps(rows[-1]) + "\n")
    print(tables(rows))


if __name__ == "__main__":
    main()
