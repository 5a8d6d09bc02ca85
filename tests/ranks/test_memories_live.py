"""Error memories in a real job: every registered one trains, ranks stay equal, an unstable choice is reported."""

from pathlib import Path

import pytest

from gravac.memories import MEMORIES
from gravac.protocol import Event
from gravac.traces import read_trace
from tests.support.ranks.harness import RunEach, RunRanks

pytestmark = pytest.mark.distributed


def notes(folder: Path) -> list[str]:
    lines = read_trace(folder / "unstable" / "journal.jsonl")
    return [
        line.record.message for line in lines if isinstance(line.record, Event) and line.record.kind == "note"
    ]


def test_every_memory_trains(run_each: RunEach) -> None:
    for case, (one, two) in run_each("unstable_memory", 2, [{"memory": name} for name in sorted(MEMORIES)]):
        assert one["parameters"] == two["parameters"], case
        assert (one["memory_bytes"] > 0) == (case["memory"] != "none"), case


def test_a_sketch_too_small_for_its_beta_is_reported_with_the_numbers(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    run_ranks("unstable_memory", 2, memory="conef-sketch:size=0.2,beta=0.5")
    (warning,) = notes(tmp_path)
    assert "0.2" in warning
    assert "0.5" in warning


def test_a_sketch_of_the_right_size_is_not_reported(run_ranks: RunRanks, tmp_path: Path) -> None:
    run_ranks("unstable_memory", 2, memory="conef-sketch:size=0.1,beta=0.9")
    assert notes(tmp_path) == []


def test_momentum_in_the_memory_equals_the_optimizers_and_dgc_runs(run_ranks: RunRanks) -> None:
    one, two = run_ranks("momentum_in_the_memory", 2)
    assert one["apart"] < 1e-6 < 1e-2 < one["moved"]
    assert one["finite"]
    assert one["cf"] >= 16.0  # on its ramp
    assert one["parameters"] == two["parameters"]
