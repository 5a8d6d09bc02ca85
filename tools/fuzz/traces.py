"""Fuzzer of the trace reader: ``python -m tools.fuzz.traces --inputs 1000000`` (minutes, one core).

Seeds are traces of a few lines, of every kind of line. Each input is one of them with a few
alterations: of bytes, of whole tokens (numbers, texts, brackets), of lines, or compressed and then altered. Reading and
replaying it must end, raise nothing but TraceError, and stay within ``--megabytes`` of address space. The test suite
runs a few thousand inputs.
"""

import argparse
import gzip
import io
import random
import re
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from gravac.fold import JobFold
from gravac.policies import parse
from gravac.protocol import End, Event, Override, Spread
from gravac.replays.redecide import redecide
from gravac.replays.replay import check
from gravac.traces import TraceError, TraceRecord, read_trace
from gravac.traces.line import encode
from gravac.traces.parts import Part
from tools.harness.cluster import Cluster, job_spec

TOKEN = re.compile(rb'-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|"[^"]*"|true|false|null|[{}\[\],:]|\n')
ODD = (
    *(b"0", b"-0.0", b"-1", b"1", b"1.0", b"0.999999", b"5e-324", b"1e-300", b"1e300", b"1e309"),
    *(b"1.7976931348623157e308", b"9007199254740992", b"9007199254740993", b"9223372036854775808"),
    *(b"9" * 400, b"0." + b"3" * 400, b"NaN", b"Infinity", b"null", b"true", b'""', b'"a"', b'"\\u0000"'),
    *(b'"\\ud800"', b'"\xff"', b"[]", b"{}", b"[" * 300, b"{", b"]", b",", b":", b"\n", b"\r\n", b"\0"),
    *(b"\xef\xbb\xbf", b'"gravac"', b'"paper"', b'"hold"', b'"fallback"', b'"window"', b'"schema":2'),
)
WHOLE = (b"0", b"1", b"2", b"3", b"4", b"5", b"47", b"50", b"3200", b"1000000", b"9007199254740992")
BROKEN = (
    *(
        b"0.0",
        b"-0.0",
        b"5e-324",
        b"1e-9",
        b"0.05",
        b"0.3",
        b"0.45",
        b"0.9999999",
        b"1.0",
        b"1.0000005",
        b"2.0",
    ),
    *(b"3.0", b"10.0", b"20.0", b"40.0", b"77.7", b"1e9", b"1e15", b"1e300"),
)
"""Replacements for numbers that keep their type: such inputs are read, and reach the policies."""
HANG_SECONDS = 60
TOGETHER = 1000
"""Inputs between two checks of the clock."""


def sealed(*records: TraceRecord) -> bytes:
    """Return a small trace of these records."""
    pieces, digest = [], ""
    for number, record in enumerate(records):
        raw, digest = encode(record, 1.5 + number, digest)
        pieces.append(raw)
    return b"".join(pieces)


def seeds() -> list[bytes]:
    """Return small traces that hold every kind of line."""
    cluster, found = Cluster(), []
    for text in (
        "gravac:ladder=10/20,warmup_windows=1",
        "gravac:variant=paper",
        "static:cf=10",
        "warmup:windows=1",
    ):
        fold = JobFold(job_spec(parse(text).spec()))
        records: list[TraceRecord] = [fold.spec, fold.start_decision]
        for window in range(3):
            times = (1.0, 1.0, 2.0, 2.0)
            spread = Spread(
                **dict.fromkeys(
                    ("step_seconds", "data_wait", "compute", "compress", "communicate", "decompress"), times
                )
            )
            report = cluster.report(window, fold.decision, spread=spread)
            records += [report, fold.decide(report)]
        found += [sealed(*records[:4]), sealed(*records)]
        order = Override(action="pin", cf=3.0, actor="ada", epoch=fold.decision.epoch)
        fold.order(order)
        report = cluster.report(4, fold.decision)
        gap = Event(kind="gap", window=3, message="window 3 was lost")
        ended = End(incarnation="first", windows=5, steps=250, message="closed")
        found.append(sealed(fold.spec, records[1], order, gap, ended))
        spec = fold.spec.model_copy(update={"policy_state": fold.policy_state, "first_window": 3})
        part = Part(number=2, lines=8, digest="0123456789abcdef", summary="{}")
        found.append(sealed(part, spec, fold.decision, order, gap, report, fold.decide(report), ended))
    return found


class Alterer:
    """Endless inputs, determined by ``seed``."""

    def __init__(self, seed: int, originals: Sequence[bytes]) -> None:
        self._random = random.Random(seed)
        self._seeds = []
        for data in originals:
            spans = [match.span() for match in TOKEN.finditer(data)]
            self._seeds.append((data, spans, [span for span in spans if data[span[0]] in b"-0123456789"]))

    def next(self) -> bytes:
        pick = self._random
        data, tokens, numbers = pick.choice(self._seeds)
        changed = bytearray(data)
        if pick.random() < 0.5:
            for begin, end in sorted(pick.choices(numbers, k=pick.choice((1, 1, 2, 3))), reverse=True):
                changed[begin:end] = pick.choice(BROKEN if b"." in data[begin:end] else WHOLE)
            return bytes(changed)
        spans = sorted(pick.choices(tokens, k=pick.choice((1, 1, 1, 2, 3))), reverse=True)
        for begin, end in spans:
            kind = pick.random()
            if kind < 0.6:
                changed[begin:end] = pick.choice(ODD)
            elif kind < 0.7:
                changed[begin:end] = data[slice(*pick.choice(tokens))]
            elif kind < 0.8:
                changed[begin : begin + 1] = pick.randbytes(1)  # a place may come twice, and be gone by then
            elif kind < 0.9:
                del changed[begin : begin + pick.randrange(1, 200)]
            else:
                changed[begin:begin] = data[begin : begin + pick.randrange(1, 400)]
        if pick.random() < 0.05:
            lines = bytes(changed).splitlines(keepends=True)
            pick.shuffle(lines)
            changed = bytearray(b"".join(lines))
        if pick.random() < 0.05:
            changed = bytearray(gzip.compress(changed, 1))
            changed[pick.randrange(len(changed))] ^= 1 << pick.randrange(8)
        return bytes(changed)


def attempt(data: bytes, turn: int) -> str:
    """Read, check or redecide, in turn, and return the outcome. Raises anything that is not documented."""
    if turn % 3 == 0:
        stream = gzip.GzipFile(fileobj=io.BytesIO(data)) if data[:2] == b"\x1f\x8b" else io.BytesIO(data)
        try:
            for _ in read_trace(stream, verify=turn % 2 == 0):  # type: ignore[arg-type]
                pass
        except TraceError:
            return "refused"
        return "read"
    if turn % 3 == 1:
        return "checked, good" if check(io.BytesIO(data)).ok else "checked, bad"
    try:
        redecide(read_trace(io.BytesIO(data), verify=False), "gravac:epsilon=0.4")
    except TraceError:
        return "not redecided"
    return "redecided"


def fuzz(
    inputs: int,
    seed: int,
    watch: Callable[[], object] | None = None,
    originals: Callable[[], Sequence[bytes]] = seeds,
    attempt: Callable[[bytes, int], str] = attempt,
) -> Counter[str]:
    """Return the number of outcomes by kind. ``watch`` is called from time to time.

    Raises:
        SystemExit: an input raised what it must not; the input is saved in a file.
    """
    alterer, outcomes = Alterer(seed, originals()), Counter[str]()
    for number in range(inputs):
        data = alterer.next()
        try:
            outcomes[attempt(data, number)] += 1
        except Exception as error:
            saved = Path(f"fuzz-{seed}-{number}.bin").absolute()
            saved.write_bytes(data)
            what = f"{type(error).__name__}: {error}"
            raise SystemExit(f"input {number} of seed {seed}: {what}; saved in {saved}") from error
        if watch is not None and number % TOGETHER == 0:
            watch()
    return outcomes


def main(
    about: str | None = __doc__,
    originals: Callable[[], Sequence[bytes]] = seeds,
    attempt: Callable[[bytes, int], str] = attempt,
) -> None:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--megabytes", type=int, default=128, help="address space beyond what the imports took"
    )
    chosen = parser.parse_args()
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = used + (chosen.megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    began = time.monotonic()
    watch = lambda: signal.alarm(HANG_SECONDS)  # noqa: E731 - it ends a hang
    outcomes = fuzz(chosen.inputs, chosen.seed, watch, originals, attempt)
    took = time.monotonic() - began
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{chosen.inputs:,} inputs in {took:.0f} s, {chosen.inputs / took:,.0f} a second, {largest:.0f} MB at most"
    )
    for outcome, count in outcomes.most_common():
        print(f"  {count:>9,}  {outcome}")


if __name__ == "__main__":
    main()
