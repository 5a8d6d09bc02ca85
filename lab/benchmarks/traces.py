"""Cost of traces: ``python lab/benchmarks/traces.py`` bytes and time of a window, and the replay of a long trace.

Windows are those of a recorded run, repeated and decided again each time: real numbers, so that compression is
realistic.
"""

import argparse
import gzip
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gravac.fold import JobFold
from gravac.protocol import JobSpec, WindowReport
from gravac.traces import TraceRecord, TraceWriter, read_trace
from gravac.traces.line import encode

STORED = Path(__file__).parents[2] / "tests/traces/mlp-loopback.jsonl.gz"
CHUNK = 1000
"""Windows that are compressed at a time when sizes are measured: a few MB, as a part of a journal has."""


def windows(source: Path, count: int) -> Iterator[tuple[TraceRecord, ...]]:
    """The pieces of a job of ``count`` windows."""
    records = [line.record for line in read_trace(source)]
    spec = next(record for record in records if isinstance(record, JobSpec))
    reports = [record for record in records if isinstance(record, WindowReport)]
    fold = JobFold(spec)
    yield spec, fold.start_decision
    for window, report in zip(range(count), itertools.cycle(reports), strict=False):
        epoch, steps = fold.decision.epoch, report.last_step - report.first_step + 1
        levels = tuple(level.model_copy(update={"epoch": epoch}) for level in report.levels)
        first = window * steps
        places = {"window": window, "first_step": first, "last_step": first + steps - 1, "epoch": epoch}
        following = report.model_copy(update={**places, "levels": levels})
        yield following, fold.decide(following)


def writing(source: Path, folder: Path, count: int) -> tuple[float, float, float]:
    """Median seconds to append a window and its decision, of which in fsync; and mean bytes of the two."""
    syncing, real = [0.0], os.fsync

    def timed(fd: Any) -> None:
        began = time.perf_counter()
        real(fd)
        syncing[0] = time.perf_counter() - began

    path, took, synced = folder / "written.jsonl", [], []
    os.fsync = timed
    try:
        with TraceWriter(path, time.time) as writer:
            for piece in windows(source, count):
                began = time.perf_counter()
                writer.append(*piece)
                took.append(time.perf_counter() - began)
                synced.append(syncing[0])
    finally:
        os.fsync = real
    middle = len(took) // 2
    own = sorted(all_of_it - sync for all_of_it, sync in zip(took, synced, strict=True))[middle]
    return own, sorted(synced)[middle], path.stat().st_size / count


def packed_bytes(source: Path, count: int) -> float:
    """Bytes a window, gzipped as a full part is."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        make(source, Path(file.name), count)
        return len(gzip.compress(Path(file.name).read_bytes(), 6)) / count


def make(source: Path, path: Path, count: int) -> None:
    """Write a trace of ``count`` windows without syncing."""
    digest = ""
    with path.open("wb") as file:
        for number, piece in enumerate(windows(source, count)):
            for record in piece:
                raw, digest = encode(record, 1.7e9 + number, digest)
                file.write(raw)


def replayed(path: Path) -> tuple[dict[str, Any], float, float]:
    """What ``gravac replay --check`` says, and the seconds and CPU seconds it took, from its start to its end."""
    words = [sys.executable, "-m", "gravac_controller", "replay", "--check", "--json", str(path)]
    began, before = time.perf_counter(), _children()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began, _children() - before
    return json.loads(done.stdout), *took


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=100_000, help="of the trace that is replayed")
    parser.add_argument("--trace", type=Path, default=STORED, help="whose windows are used")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own, sync, plain = writing(chosen.trace, folder, CHUNK)
        print(
            f"a window with its decision: {plain:,.0f} bytes, gzipped {packed_bytes(chosen.trace, CHUNK):,.0f}"
        )
        print(f"appending it: {own * 1e6:,.0f} us, and {sync * 1e6:,.0f} us more to sync the disk (medians)")
        path = folder / "long.jsonl"
        print(f"making a trace of {chosen.windows:,} windows …", flush=True)
        make(chosen.trace, path, chosen.windows)
        size = path.stat().st_size / 1e6
        print(f"gravac replay --check of {chosen.windows:,} windows, {size:,.0f} MB:", end=" ", flush=True)
        found, seconds, cpu_seconds = replayed(path)
        if not found["ok"] or found["windows"] != chosen.windows:
            raise SystemExit(f"the trace made is not good: {found['differences'][:1]}")
        print(f"{seconds:.1f} s, {cpu_seconds:.1f} s of CPU time")


if __name__ == "__main__":
    main()
