"""Rows of results, and the loss on held-out text."""

import json
from typing import Any

import pytest

from gravac_lab.bench.results import MethodAnswers, heldout_loss, rows


def test_rows() -> None:
    def block(*ranks: list[float]) -> list[dict[str, Any]]:
        more = {"loss": 2.0, "cpu_seconds": 3.0, "payload_bytes": 30, "sent_bytes": None}
        return [{"seconds": seconds, **more} for seconds in ranks]

    none = MethodAnswers(name="none", blocks=[block([0.1, 0.3, 0.2], [0.2, 0.1, 0.1])], elements=5)
    dense = MethodAnswers(name="dense", blocks=[block([1.0, 1.0, 0.4], [1.0, 1.0, 0.8])], elements=5)
    broken = MethodAnswers(name="agent", error="it broke")
    assert none.step_seconds() == pytest.approx([0.2, 0.2, 0.2]), (
        "the job ends at 0.6, though its longest steps of any rank add up to 0.7"
    )
    first, second, third = rows([none, dense, broken], emulated=False)
    assert first["seconds"] == second["baseline"] == third["baseline"] == pytest.approx(0.2)
    assert second["ratio"] == pytest.approx(0.2)
    assert second["payload_bytes"] == 10
    assert second["cpu_seconds"] == 1
    assert second["dense_bytes"] == 20
    assert second["sent_bytes"] is None
    assert third["seconds"] is None
    assert third["ratio"] is None
    assert third["error"] == "it broke"
    json.dumps([first, second, third], allow_nan=False)
    # A method that stands in for the limit but failed is no limit.
    assert rows([MethodAnswers(name="none", error="no"), dense], emulated=False)[1]["ratio"] is None


def test_heldout_loss_weighs_by_bytes() -> None:
    assert heldout_loss([{"nats": 30.0, "predicted": 10}, {"nats": 10.0, "predicted": 10}]) == 2.0
