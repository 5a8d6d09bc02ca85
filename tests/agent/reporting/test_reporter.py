"""Decisions in process: a policy or a journal that fails ends no training."""

from pathlib import Path

import pytest

from gravac.policies import parse
from gravac.protocol import Decision, JobSpec
from gravac.traces import read_trace
from gravac_agent.reporting.reporter import LocalReporter
from tests.support.peer import (
    job_end,
    window_report,
)
from tests.support.scripted import Play, ScriptedPolicy
from tools.harness.cluster import job_spec

pytestmark = pytest.mark.usefixtures("short_pauses")


def test_a_policy_that_names_a_codec_it_does_not_list_ends_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The decision is journaled and the ranks continue with the last decision."""

    class Forgetful(ScriptedPolicy):
        def codecs(self) -> tuple[str, ...]:
            return ()

        def fitted(self, spec: JobSpec) -> ScriptedPolicy:
            return self

    policy = Forgetful(Play(None, 8.0), Play("qsgd", 8.0))
    reporter = LocalReporter(job_spec(policy.spec()), tmp_path, policy)
    before = reporter.directive
    reporter.report_window(window_report(0))
    assert reporter.directive == before
    assert "codec 'qsgd'; besides the job's compressor the ranks have none" in caplog.text
    reporter.close(job_end(1))
    lines = [line.record for line in read_trace(tmp_path / "job" / "journal.jsonl")]
    assert [line.codec for line in lines if isinstance(line, Decision)] == [None, "qsgd"]


def test_a_journal_that_cannot_go_on_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its name belongs to a run with another compressor, which can go on at once."""
    spec = job_spec(parse("static:cf=4").spec())
    first = LocalReporter(spec, tmp_path)
    first.close(job_end(0))
    other = LocalReporter(spec.model_copy(update={"compressor": "qsgd", "incarnation": "other"}), tmp_path)
    assert "compressor: job 'job' runs 'topk', got 'qsgd'" in caplog.text
    assert other.trace_path is None
    again = LocalReporter(spec.model_copy(update={"incarnation": "again"}), tmp_path)
    assert again.trace_path == tmp_path / "job" / "journal.jsonl"
    for reporter in (again, other):
        reporter.close(job_end(0))
