"""Load tests: the overhead of readers for a job, the latency of windows, and the memory of the controller.

    python lab/benchmarks/load.py looking     50 scrapes/s, 50 streams, 200 GET/s during a 2-rank job: its median step
    python lab/benchmarks/load.py posting     windows of 100 jobs: latency of the answers
    python lab/benchmarks/load.py memory      100,000 windows of one job: resident memory over time

Ranks run on core 0, the controller and the load on core 1. ``--seconds``, ``--windows`` … make a run shorter.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).parent))
from load_parts.jobs import SimulatedJob
from load_parts.posting import post, sync_alone
from load_parts.readers import Readers
from load_parts.service import Service

RANKS_CORE, SERVICE_CORE = 0, 1
SETTLE_SECONDS = 5.0
WINDOW_BYTES = 4000
"""Approximate size of a window with its decision in the journal."""
WATCH_RATE = 20.0
"""Syncs per second of another file while windows are posted: if both stall, it is the disk."""


def looking(folder: Path, *, seconds: float, rounds: int, scrapes: float, gets: float, streams: int) -> None:
    """Alternate blocks without and with load, and compare each pair."""
    job, out = "looked-at", folder / "steps.json"
    with Service(folder, SERVICE_CORE) as service:
        ranks = _start_ranks(service.url, job, 2 * rounds * seconds + 3 * SETTLE_SECONDS, out)
        try:
            _await_job(service, job)
            time.sleep(SETTLE_SECONDS)
            blocks: list[tuple[float, float]] = []
            for number in range(2 * rounds):
                began = time.monotonic()
                if number % 2:
                    with Readers(service, job, scrapes=scrapes, gets=gets, streams=streams) as readers:
                        time.sleep(seconds)
                    rates = {
                        name: round(count / readers.seconds, 1) for name, count in readers.counts.items()
                    }
                    print(f"load, a second: {rates}", flush=True)
                else:
                    time.sleep(seconds)
                blocks.append((began, time.monotonic()))
        finally:
            for rank in ranks:
                rank.wait(300)
    ended = json.loads(out.read_text())
    steps = [(end, end - begin) for begin, end in pairwise(ended)]
    medians = [median(took for end, took in steps if low < end < high) for low, high in blocks]
    ratios = sorted(loaded / quiet for quiet, loaded in zip(medians[::2], medians[1::2], strict=True))
    quiet, loaded = median(medians[::2]), median(medians[1::2])
    print(
        f"median step {1000 * quiet:.2f} ms without load, {1000 * loaded:.2f} ms with it; "
        f"ratio of pairs {median(ratios):.4f} ({ratios[0]:.4f} to {ratios[-1]:.4f}, {rounds} pairs); "
        "wanted: at most 1.02"
    )


def posting(folder: Path, *, seconds: float, jobs: int, per_second: float) -> None:
    """Post ``per_second`` windows a second for each job, evenly spread: see ``load_parts/posting.py``."""
    os.sched_setaffinity(0, {RANKS_CORE})
    rate = jobs * per_second
    alone = sync_alone(
        folder, files=jobs, each_bytes=WINDOW_BYTES, count=round(min(10, seconds) * rate), per_second=rate
    )
    cuts = quantiles(alone, n=1000, method="inclusive")
    print(
        f"the disk alone, {WINDOW_BYTES} bytes appended and synced as often: median {1000 * cuts[499]:.2f} ms, "
        f"p90 {1000 * cuts[899]:.2f} ms, p99 {1000 * cuts[989]:.2f} ms",
        flush=True,
    )
    with Service(folder, SERVICE_CORE) as service:
        simulated = [SimulatedJob(service, f"job-{number:03}") for number in range(jobs)]
        for one in simulated:
            one.close()
        began = service.cpu_seconds()
        with ThreadPoolExecutor(1) as pool:
            beside = pool.submit(
                sync_alone,
                folder,
                files=1,
                each_bytes=1,
                count=round(seconds * WATCH_RATE),
                per_second=WATCH_RATE,
            )
            posted = post(service, simulated, seconds=seconds, per_second=per_second)
            disk = beside.result()
        cpu = (service.cpu_seconds() - began) / len(posted.took)
    cuts, late = (
        quantiles(posted.took, n=1000, method="inclusive"),
        quantiles(posted.late, n=100, method="inclusive"),
    )
    print(
        f"the disk meanwhile, one byte appended to another file and synced {WATCH_RATE:g} times a second: median "
        f"{1000 * median(disk):.2f} ms, worst {1000 * max(disk):.1f} ms"
    )
    print(
        f"{len(posted.took)} windows of {jobs} jobs at {len(posted.took) / seconds:.0f} a second: median "
        f"{1000 * cuts[499]:.2f} ms, p90 {1000 * cuts[899]:.2f} ms, p99 {1000 * cuts[989]:.2f} ms, worst "
        f"{1000 * max(posted.took):.1f} ms; wanted: p99 under 5 ms. {1000 * cpu:.2f} ms of the controller's CPU a "
        f"window; sent late by {1000 * late[98]:.2f} ms at the 99th percentile"
    )


def memory(folder: Path, *, windows: int) -> None:
    """Post windows of one job as fast as they are answered. The first tenth fills the history in memory."""
    os.sched_setaffinity(0, {RANKS_CORE})
    with Service(folder, SERVICE_CORE) as service:
        job, began = SimulatedJob(service, "long"), time.monotonic()
        sizes: list[int] = []
        for number in range(1, windows + 1):
            job.report()
            if number % max(1, windows // 10) == 0:
                sizes.append(service.resident_bytes())
                print(f"{number:>7} windows: {sizes[-1] / 1e6:.1f} MB", flush=True)
        job.close()
    rate = windows / (time.monotonic() - began)
    print(
        f"{rate:.0f} windows a second; growth after the first tenth: {(sizes[-1] - sizes[0]) / 1e6:+.1f} MB"
    )


def _start_ranks(url: str, job: str, seconds: float, out: Path) -> list[subprocess.Popen[bytes]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    program = Path(__file__).parent / "load_parts" / "rank.py"
    ranks = []
    for rank in range(2):
        environment = {**os.environ, **shared, "RANK": str(rank)}
        command = [sys.executable, str(program), url, job, str(seconds), str(out)]
        ranks.append(subprocess.Popen(command, env=environment))
        os.sched_setaffinity(ranks[-1].pid, {RANKS_CORE})
    os.sched_setaffinity(0, {SERVICE_CORE})  # this process makes the load
    return ranks


def _await_job(service: Service, job: str) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        connection = service.connection()
        connection.request("GET", f"/v1/jobs/{job}")
        status = connection.getresponse().status
        connection.close()
        if status == 200:
            return
        threading.Event().wait(0.2)
    raise SystemExit("the job did not register within 120 s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("looking", "posting", "memory"))
    parser.add_argument(
        "--seconds", type=float, help="of a block (looking, 60) or in all (posting, 60)", default=60.0
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="looking: pairs of blocks without and with load"
    )
    parser.add_argument("--scrapes", type=float, default=50.0, help="looking: a second")
    parser.add_argument("--gets", type=float, default=200.0, help="looking: a second")
    parser.add_argument("--streams", type=int, default=50, help="looking: open at once")
    parser.add_argument("--jobs", type=int, default=100, help="posting")
    parser.add_argument("--per-second", type=float, default=1.0, help="posting: windows a second of each job")
    parser.add_argument("--windows", type=int, default=100_000, help="memory")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if given.what == "looking":
            looking(
                folder,
                seconds=given.seconds,
                rounds=given.rounds,
                scrapes=given.scrapes,
                gets=given.gets,
                streams=given.streams,
            )
        elif given.what == "posting":
            posting(folder, seconds=given.seconds, jobs=given.jobs, per_second=given.per_second)
        else:
            memory(folder, windows=given.windows)


if __name__ == "__main__":
    main()
