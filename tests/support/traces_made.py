"""Small traces made by running a policy on the simulated cluster."""

from collections.abc import Iterable
from pathlib import Path

from gravac.fold import JobFold
from gravac.policies import Policy, parse
from gravac.protocol import End, Event
from gravac.traces import TraceRecord, TraceWriter
from tools.harness.cluster import Cluster, job_spec
from tools.harness.plan_world import Job, World

NOTE = Event(kind="note", window=None, message="hello")


class Ticker:
    """A clock that returns 1000.5, 1001.5, …"""

    def __init__(self) -> None:
        self.time = 999.5

    def __call__(self) -> float:
        self.time += 1
        return self.time


def records(policy: Policy, windows: int, cluster: Cluster | None = None) -> list[tuple[TraceRecord, ...]]:
    """Return the journal of a job: each tuple is written in one piece."""
    cluster = cluster or Cluster()
    fold = JobFold(job_spec(policy.spec()))
    pieces: list[tuple[TraceRecord, ...]] = [(fold.spec, fold.start_decision)]
    for window in range(windows):
        report = cluster.report(window, fold.decision)
        pieces.append((report, fold.decide(report)))
    pieces.append((Event(kind="note", window=windows - 1, message="all well"),))
    pieces.append((End(incarnation="first", windows=windows, steps=50 * windows, message="closed"),))
    return pieces


def write(path: Path, pieces: Iterable[tuple[TraceRecord, ...]]) -> bytes:
    with TraceWriter(path, Ticker()) as writer:
        for piece in pieces:
            writer.append(*piece)
    return path.read_bytes()


def make(path: Path, policy: str = "gravac", windows: int = 7) -> bytes:
    return write(path, records(parse(policy), windows))


def make_of_world(path: Path, world: World, windows: int) -> bytes:
    """Write the trace of the default policy in a world of its plans."""
    job = Job(world)
    job.windows(windows)
    answered = zip(job.reports, job.decisions[1:], strict=True)
    return write(path, [(job.fold.spec, job.decisions[0]), *answered])
