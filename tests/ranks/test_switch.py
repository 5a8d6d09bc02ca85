"""A switch to another codec or memory in the middle of a job keeps the residual, on all ranks at once."""

import math
from pathlib import Path

import pytest

from gravac.protocol import Event
from gravac.traces import read_trace
from tests.support.ranks.harness import RunRanks

pytestmark = pytest.mark.distributed

STAGES = [
    {"compressor": "qsgd"},
    {"memory": "partial:beta=0.3"},
    {"compressor": "powersgd:rank=1", "memory": "residual"},
    {"memory": "conef:bits=8"},
    {"compressor": "qsgd-elias", "memory": "residual"},
]


def test_a_switch_keeps_the_residual(run_ranks: RunRanks, tmp_path: Path) -> None:
    one, two = run_ranks("switched", 2, stages=STAGES)
    assert one["parameters"] == two["parameters"]
    assert math.isfinite(one["loss"])
    assert one["cfs"] == [8.0] * len(STAGES)  # after a dense step or two, compressed again
    assert one["moved"] == [0.0] * len(STAGES)
    assert min(one["residuals"]) > 0.0
    lines = read_trace(tmp_path / "switched" / "journal.jsonl")
    notes = [line.record.message for line in lines if isinstance(line.record, Event)]
    assert sum("compressor topk+bf16 -> qsgd" in note for note in notes) == 1
    assert (
        sum("memory partial:beta=0.3 -> residual, compressor qsgd -> powersgd:rank=1" in n for n in notes)
        == 1
    )


def test_ranks_that_switch_differently_raise_and_continue_unchanged(run_ranks: RunRanks) -> None:
    one, two = run_ranks("switched_differently", 2)
    for result in (one, two):
        different, unknown = result["said"]
        assert different.startswith("AgreementError: ")
        assert "compressor: rank 0 has 'qsgd', rank 1 has 'topk'" in different
        assert unknown.startswith("SetupError: compressor='nope' is unknown")
    assert one["parameters"] == two["parameters"]
