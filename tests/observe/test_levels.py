"""Which calls stay within a machine and which cross to others, by the ranks of their groups and the hosts of traces."""

import json
from html import unescape
from pathlib import Path

import pytest

from gravac_observe.findings.verdict import judge
from gravac_observe.measure import Measurement, measure
from gravac_observe.page import figures, page
from gravac_observe.traces import read
from tests.support.profiles import Made, of

INSIDE, BETWEEN = "inside a machine", "between machines"


def made(
    rank: int, inside: float = 60.0, between: float = 240.0, agent: bool = False, **settings: object
) -> Made:
    """A step of 1 ms of HSDP on two hosts of two ranks: of each bucket a reduce-scatter, then an all-reduce."""
    found = Made(rank=rank, world=4, **settings)  # type: ignore[arg-type]
    found.about = {"host": f"node{rank // 2}"} | ({"framework": "agent"} if agent else {})
    found.step(0, 0.0, 1000.0)
    found.compute(60.0, 300.0)
    found.backward(100.0, 500.0)
    first = rank - rank % 2
    found.call("_reduce_scatter_base", 400.0, inside, 500_000, (first, first + 1))
    found.call("allreduce", 400.0 + inside, between, 250_000, (rank % 2, rank % 2 + 2))
    return found


def four(folder: Path, **settings: object) -> Measurement:
    return of(folder, *(made(rank, **settings) for rank in range(4)))  # type: ignore[arg-type]


def test_each_call_is_on_one_of_both_levels(tmp_path: Path) -> None:
    found = four(tmp_path)
    rows = {(row.kind, row.level): row for row in found.rows}
    assert set(rows) == {("reduce-scatter", INSIDE), ("all-reduce", BETWEEN)}
    assert found.levels == {BETWEEN: pytest.approx(240e-6), INSIDE: pytest.approx(60e-6)}
    assert found.hosts == ("node0", "node1")
    record = found.record()
    assert record["level_seconds"] == found.levels
    assert {row["level"] for row in record["communication"]} == {INSIDE, BETWEEN}


def test_calls_of_one_size_are_kept_apart(tmp_path: Path) -> None:
    """Groups of two ranks within a host, and of two hosts."""
    traces = [made(rank) for rank in range(4)]
    for rank, trace in enumerate(traces):
        first = rank - rank % 2
        trace.call("allreduce", 750.0, 100.0, 250_000, (first, first + 1))
    found = of(tmp_path, *traces)
    assert sorted(row.level for row in found.rows if row.kind == "all-reduce") == [BETWEEN, INSIDE]


def test_the_verdict_names_the_level_that_waits(tmp_path: Path) -> None:
    found = judge(four(tmp_path))
    assert found.finding.sentence == (
        "Network between machines: 30 % of a step is exposed communication (0.3 ms of 1 ms): 0.24 ms between "
        "machines, 0.06 ms inside a machine."
    )
    assert "gradients between replicas (HSDP) (all-reduce between machines, 2 ranks, " in found.finding.why
    assert "gradients (reduce-scatter inside a machine, 2 ranks, " in found.finding.why
    other = judge(four(tmp_path, inside=250.0, between=20.0))
    assert other.finding.sentence.startswith("Network inside a machine: 27 % of a step")
    said = unescape(page([("job", found)]))
    assert '<th class="word">Link</th>' in said
    assert "between machines" in said
    shown = dict(figures(found))
    assert (shown["Exposed between machines"], shown["Exposed inside a machine"]) == ("0.24 ms", "0.06 ms")


def test_an_agent_whose_ranks_of_a_host_wait_hears_what_helps(tmp_path: Path) -> None:
    inside = judge(four(tmp_path, inside=250.0, between=20.0, agent=True)).finding.action
    assert (
        "; what the ranks of a machine send each other is not compressed, and not sent with levels='flat'"
        in inside
    )
    assert "levels" not in judge(four(tmp_path, agent=True)).finding.action


def test_the_host_that_torchs_profiler_names_counts_too(tmp_path: Path) -> None:
    paths = []
    for rank in range(4):
        trace = made(rank)
        trace.about = {}
        head = json.loads(trace.text()) | {"host_name": f"node{rank // 2}"}
        path = tmp_path / f"rank{rank}.json"
        path.write_text(json.dumps(head))
        paths.append(path)
    assert set(measure([read(path) for path in paths]).levels) == {INSIDE, BETWEEN}


@pytest.mark.parametrize("what", ["no groups", "a rank without a trace", "no hosts", "one host"])
def test_what_is_not_recorded_is_not_said(what: str, tmp_path: Path) -> None:
    traces = [made(rank, sizes=what != "no groups") for rank in range(4)]
    if what == "a rank without a trace":
        traces = [traces[0], traces[3]]
    for trace in traces:
        if what in ("no hosts", "one host"):
            trace.about = {"host": "node0"} if what == "one host" else {}
    found = judge(of(tmp_path, *traces))
    assert found.measurement.levels == {}
    assert found.measurement.record()["level_seconds"] is None
    network = "Network or late ranks" if what == "a rank without a trace" else "Network"
    assert found.finding.sentence.startswith(f"{network}: 30 % of a step")
    said = any(line.startswith("which calls stay within a machine") for line in found.unknown)
    assert said == (what in ("no groups", "a rank without a trace"))
    assert "Link</th>" not in page([("job", found)])


def test_a_group_of_which_two_hosts_are_known_crosses(tmp_path: Path) -> None:
    """Of many ranks only some record."""
    traces = [made(rank) for rank in (0, 2)]
    found = of(tmp_path, *traces)
    assert {row.kind: row.level for row in found.rows} == {"all-reduce": BETWEEN, "reduce-scatter": ""}
