"""The numbers at the end of a demo come from the journal, and are the sums they say they are."""

from pathlib import Path

import pytest

from gravac.traces import TraceError
from gravac_lab.demo.figures import collect
from tests.support.traces_made import make
from tools.harness.cluster import Cluster


def test_figures_of_a_made_run(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    make(path, "gravac", windows=9)
    figures = collect(path)
    assert len(figures.windows) == 9
    assert len(figures.decisions) == 10
    assert figures.payload_bytes == sum(report.payload_bytes for report in figures.windows)
    assert figures.dense_bytes == sum(report.dense_bytes for report in figures.windows)
    factors = [decision.cf_candidate for decision in figures.decisions]
    assert figures.changes == len([n for n in range(1, 10) if factors[n] != factors[n - 1]]) >= 2
    held = figures.decisions[-1]
    assert held.phase == "hold"
    cluster = Cluster()
    assert figures.baseline_step_seconds == pytest.approx(cluster.step_seconds(1.0))
    assert figures.hold_step_seconds == pytest.approx(cluster.step_seconds(held.cf_candidate))
    phases = {decision.epoch: decision.phase for decision in figures.decisions}
    in_hold = [lv for report in figures.windows for lv in report.levels if phases[lv.epoch] == "hold"]
    assert in_hold
    assert figures.hold_payload_bytes == sum(level.payload_bytes for level in in_hold)
    assert 0 < figures.hold_payload_bytes < figures.hold_dense_bytes < figures.dense_bytes


def test_a_run_without_hold_has_no_hold_figures(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    make(path, "gravac", windows=1)
    figures = collect(path)
    assert figures.hold_step_seconds is None
    assert figures.hold_payload_bytes == 0


def test_no_journal(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name in ("absent", "empty"):
        with pytest.raises(TraceError):
            collect(tmp_path / name)
