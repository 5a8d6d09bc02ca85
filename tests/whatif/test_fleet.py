"""A real controller accepts the reports of ten thousand ranks, decides as replay does, and journals them."""

from pathlib import Path

import pytest

from gravac.fold import JobFold
from gravac.policies import parse
from gravac.protocol import JobAnswer, WindowAnswer
from gravac.traces.replay import check
from gravac.whatif import Fleet, Predictor, Scenario
from tests.support.whatif import NETWORK, recording
from tools.harness.controller import Controller

RANKS, LISTED, WINDOWS = 10_000, 1024, 4
"""``LISTED``: as many as an agent lists by default, with the controller's limits as they are by default."""


@pytest.mark.distributed
def test_ten_thousand_ranks(tmp_path: Path) -> None:
    predictor = Predictor([(recording(cfs=(1.0, 10.0)), NETWORK)])
    policy = parse("gravac:warmup_windows=1")
    spec = predictor.recording.spec.model_copy(update={"world_size": RANKS, "policy": policy.spec()})
    scenario = Scenario(network=NETWORK, ranks=RANKS, compressor="topk")
    fleet, here = Fleet(predictor, scenario, spec, rows=LISTED), JobFold(spec)
    controller = Controller(tmp_path / "runs")
    try:
        answer = controller.ask("POST", "/v1/jobs", spec)
        decision = JobAnswer.model_validate_json(answer.body).decision
        for window in range(WINDOWS):
            report = fleet.report(window, decision)
            answer = controller.ask("POST", f"/v1/jobs/{spec.job}/windows", report)
            assert answer.status == 200, answer.body[:300]
            decision = WindowAnswer.model_validate_json(answer.body).decision
            assert decision == here.decide(report)
        answer = controller.ask("GET", f"/v1/jobs/{spec.job}/ranks").json
    finally:
        controller.stop()
    assert len(answer["ranks"]) == LISTED
    assert report.spread is not None
    assert report.spread.compute[-1] > 1.2 * report.spread.compute[2], "the slow rank is not listed, but seen"
    (journal,) = (tmp_path / "runs").rglob("journal.jsonl")
    assert check(journal).ok
