"""The screen of ``gravac status --watch`` shows both levels of links."""

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from gravac.protocol import WindowReport
from gravac.traces import read_trace
from gravac.wording import format_bytes
from gravac_controller.cli.screen import screen
from gravac_controller.cli.source import FromTrace
from tests.controller.cli.test_explain import run
from tests.support.efficiencies import fixed_efficiencies
from tools.harness.builders import two_hosts
from tools.harness.recorded import RecordedJob
from tools.harness.sinks import Disk

pytestmark = pytest.mark.distributed


@pytest.fixture(autouse=True, scope="module")
def fixed_table() -> Iterator[None]:
    with fixed_efficiencies():
        yield


TRACE = str(Path(__file__).parents[2] / "traces/first-light.jsonl")


def test_both_levels_of_links_are_shown(tmp_path: Path) -> None:
    hosts = two_hosts()
    journal, disk = tmp_path / "demo" / "journal.jsonl", Disk()
    RecordedJob(disk, policy="auto", world_size=4, hosts=hosts).play(3)
    disk.write(tmp_path, time.time)
    report = next(
        line.record for line in reversed(list(read_trace(journal))) if isinstance(line.record, WindowReport)
    )
    assert report.inside is not None
    waits = {"between": report.phases.communicate - report.inside.seconds, "inside": report.inside.seconds}
    sent = {"between": report.payload_bytes, "inside": report.inside.sent_bytes}
    (shown,) = json.loads(run("status", str(journal), "--json"))["jobs"]
    for level in ("between", "inside"):
        assert shown["links"][level]["seconds"] == pytest.approx(waits[level] / 20)
        assert shown["links"][level]["bytes"] == pytest.approx(sent[level] / 20)
    between, inside = (
        f"{format_bytes(sent[level] / 20)} and {waits[level] / 20 * 1000:.0f} ms"
        for level in ("between", "inside")
    )
    said = f"between hosts {between} a step, inside hosts {inside}: steps wait longer between hosts"
    assert said in run("status", str(journal))
    waited = f"{waits['between'] / 20 * 1000:.0f} ms between hosts, {waits['inside'] / 20 * 1000:.0f} ms inside hosts"
    assert f"waits {waited}" in run("status", "--watch", str(journal))
    jobs = FromTrace(journal).jobs(None)
    drawn = Console(width=400, record=True, file=io.StringIO())
    drawn.print(screen(jobs, jobs[0], [], ""))
    shown_on_terminal = drawn.export_text()
    assert f"between hosts {between} a step" in shown_on_terminal
    assert f"inside hosts {inside} a step" in shown_on_terminal
    explained = json.loads(run("explain", str(journal), "--json"))
    assert explained["links"]["inside"]["seconds"] > 0
    assert "steps wait longer between hosts" in run("explain", str(journal))
    assert "per step (dense in two levels " in run("explain", str(journal))
    assert "(dense in two levels " in shown_on_terminal
    (flat,) = json.loads(run("status", TRACE, "--json"))["jobs"]
    assert flat["links"] is None
    for command in (["status"], ["status", "--watch"], ["explain"]):
        assert "inside hosts" not in run(*command, TRACE)
        assert "two levels" not in run(*command, TRACE)
