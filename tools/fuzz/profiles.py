"""Fuzzer of profiles: ``python -m tools.fuzz.profiles --inputs 10000`` (two minutes, one core).

Seeds are the small traces of ``tests/observe``, and one of a GPU. Each input is one of them, altered as
``tools.fuzz.traces`` does. Reading, measuring and judging it must end, and raise nothing but ProfileError.
"""

import gzip
import json
import tempfile
from functools import cache
from pathlib import Path

from gravac_observe.findings.forecast import Question
from gravac_observe.findings.verdict import AS_RECORDED, judge
from gravac_observe.measure import measure
from gravac_observe.traces import ProfileError, read
from tests.support.profiles import RECORDED, Made
from tools.fuzz import traces

EVERY = 8
"""Of the events of a recorded trace, one in so many is in its seed, and all that this tool is about."""
ELSEWHERE = Question(bits_per_second=1e9, ranks=8, elements=1_000_000)


@cache
def seeds() -> tuple[bytes, ...]:
    """Return small traces of all kinds."""
    return (*(_thinned(path) for path in sorted(RECORDED.glob("*-0.json.gz"))), Made.usual().text().encode())


@cache
def _second() -> bytes:
    return _thinned(RECORDED / "ddp-1.json.gz")


def _thinned(path: Path) -> bytes:
    trace = json.loads(gzip.decompress(path.read_bytes()))
    events = trace["traceEvents"]
    kept = [
        event
        for place, event in enumerate(events)
        if place % EVERY == 0 or event["name"].startswith(("c10d", "gloo", "Profiler", "Optimizer", "FSDP"))
    ]
    return json.dumps(trace | {"traceEvents": kept}).encode()


def attempt(data: bytes, turn: int) -> str:
    """Judge an altered trace, every other time beside one that is whole, or elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("altered", "whole")[: 1 + turn % 2]]
        for path, content in zip(paths, (data, _second()), strict=False):
            path.write_bytes(content)
        try:
            found = judge(
                measure([read(path) for path in paths]), ELSEWHERE if turn % 3 == 0 else AS_RECORDED
            )
        except ProfileError:
            return "refused"
    return f"judged: {found.finding.kind}"


if __name__ == "__main__":
    traces.main(__doc__, seeds, attempt)
