"""Thousands of simulated ranks report to a real controller: duration of answers, and memory of the controller.

    python lab/benchmarks/fleet.py TRACE                     windows of 16, 1,024 and 10,000 ranks, from TRACE's model
    python lab/benchmarks/fleet.py TRACE --ranks 4096 --rows 256 --windows 500

The reports are those of `gravac whatif`: the model fitted to TRACE on its own network, each rank with its own speed.
The controller is a separate process on core 1, reached by HTTP. Making the reports is not timed.
"""

import argparse
import gzip
import http.client
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).parent))
from load_parts.service import Service, send

from gravac.policies import parse
from gravac.protocol import Decision, JobAnswer, JobSpec, WindowAnswer
from gravac.traces import read_trace
from gravac.whatif import Fleet, Predictor, Recording, Scenario

SERVICE_CORE = 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--ranks", type=int, nargs="*", default=[16, 1024, 10_000])
    parser.add_argument(
        "--rows", type=int, default=1024, help="ranks listed one by one: an agent's rank_rows"
    )
    parser.add_argument("--windows", type=int, default=200)
    parser.add_argument("--policy", default="gravac")
    given = parser.parse_args()
    predictor = Predictor([(Recording.from_trace(read_trace(given.trace)), None)])
    os.sched_setaffinity(0, {0})
    for ranks in given.ranks:
        with tempfile.TemporaryDirectory() as scratch, Service(Path(scratch), SERVICE_CORE) as service:
            print(summary(measure(predictor, service, Path(scratch), ranks, given)), flush=True)


def measure(
    predictor: Predictor, service: Service, folder: Path, ranks: int, given: argparse.Namespace
) -> dict[str, float]:
    """Run one job window by window; each report follows the decision on the window before."""
    recorded = predictor.recording.spec
    spec = recorded.model_copy(
        update={
            "job": "fleet",
            "world_size": ranks,
            "policy": parse(given.policy).spec(),
            "policy_state": None,
            "first_window": 0,
        }
    )
    scenario = Scenario(network=predictor.fit.network, ranks=ranks, compressor=recorded.compressor)
    fleet = Fleet(predictor, scenario, spec, rows=min(ranks, given.rows))
    connection = service.connection()
    idle = service.resident_bytes()
    decision = begin(connection, spec)
    took: list[float] = []
    size, decisions = 0, {decision.cf_candidate}
    for window in range(given.windows):
        report = fleet.report(window, decision).model_dump_json().encode()
        size = len(report)
        began = time.monotonic()
        answer = send(connection, f"/v1/jobs/{spec.job}/windows", report)
        took.append(time.monotonic() - began)
        decision = WindowAnswer.model_validate_json(answer).decision
        decisions.add(decision.cf_candidate)
    began = time.monotonic()
    connection.request("GET", f"/v1/jobs/{spec.job}/ranks")
    connection.getresponse().read()
    page = time.monotonic() - began
    connection.close()
    journal = b"".join(path.read_bytes() for path in folder.rglob("journal.jsonl"))
    cuts = quantiles(took, n=100, method="inclusive")
    return {
        "ranks": ranks,
        "rows": min(ranks, given.rows),
        "windows": given.windows,
        "cfs": len(decisions),
        "report_bytes": size,
        "median_seconds": median(took),
        "p99_seconds": cuts[98],
        "worst_seconds": max(took),
        "ranks_page_seconds": page,
        "grown_bytes": service.resident_bytes() - idle,
        "journal_bytes": len(journal) / given.windows,
        "journal_gzipped_bytes": len(gzip.compress(journal)) / given.windows,
    }


def begin(connection: http.client.HTTPConnection, spec: JobSpec) -> Decision:
    """Register the job; the decision it begins with."""
    return JobAnswer.model_validate_json(
        send(connection, "/v1/jobs", spec.model_dump_json().encode())
    ).decision


def summary(found: dict[str, float]) -> str:
    """The figures in a line."""
    milliseconds = {
        name: f"{1e3 * value:.1f} ms" for name, value in found.items() if name.endswith("_seconds")
    }
    kilobytes = {name: f"{value / 1e3:.1f} kB" for name, value in found.items() if name.endswith("_bytes")}
    return (
        f"{found['ranks']:,.0f} ranks, {found['rows']:,.0f} listed, {found['windows']:.0f} windows, "
        f"{found['cfs']:.0f} CFs: report {kilobytes['report_bytes']}, answered in {milliseconds['median_seconds']} "
        f"(p99 {milliseconds['p99_seconds']}, worst {milliseconds['worst_seconds']}), ranks page "
        f"{milliseconds['ranks_page_seconds']}, memory +{kilobytes['grown_bytes']}, journal "
        f"{kilobytes['journal_bytes']} a window, {kilobytes['journal_gzipped_bytes']} gzipped"
    )


if __name__ == "__main__":
    main()
