"""The collective is the same on all ranks; it is in journal and checkpoint, and can be switched."""

from pathlib import Path

import pytest

from gravac.protocol import Event
from gravac.traces import read_trace
from tests.support.ranks.harness import RunEach, RunRanks

pytestmark = pytest.mark.distributed


def notes(folder: Path, job: str) -> list[str]:
    lines = read_trace(folder / job / "journal.jsonl")
    return [line.record.message for line in lines if isinstance(line.record, Event)]


def test_the_collective_is_the_same_on_all_ranks_and_is_logged(run_ranks: RunRanks, tmp_path: Path) -> None:
    results = run_ranks("chosen_collectives", 3)
    for name in ("linked", "measured", "switched", "resumed"):
        assert len({tuple(result[name]) for result in results}) == 1, name
    first = results[0]
    linked = {"latency_seconds": 0.0, "bytes_per_second": 1.25e9, "ranks_per_link": 1}
    assert first["linked"][1] == first["resumed"][1] == str(linked), (
        "a checkpoint goes before what is measured"
    )
    assert first["measured"][1] not in ("None", str(linked))
    assert first["moved"] == 0.0
    assert "collective='owners' needs a selector" in first["refused"]
    assert first["switched"][1] == "10.0"
    assert all("the same checkpoint, but network: rank 0 has" in result["apart"] for result in results)
    for job in ("linked", "resumed"):
        (said,) = [note for note in notes(tmp_path, job) if note.startswith("Collectives at CF 10")]
        assert "for 0 ms and 1.25e+03 MB/s: all-reduce for" in said
    measured = notes(tmp_path, "measured")
    assert sum(note.startswith("Collectives at CF 10") for note in measured) == 1
    assert sum("collective auto -> shared." in note for note in measured) == 1
    assert sum("compressor topk+bf16 -> topk+int8, collective shared -> owners." in n for n in measured) == 1


def test_coarse_values_go_to_owners_where_the_optimizer_keeps_up(run_ranks: RunRanks, tmp_path: Path) -> None:
    """Under SGD, and with a small β₁, they lose more than a gather. Small buckets are gathered: messages count."""
    first, *others = run_ranks("collectives_of_optimizers", 5)
    assert all(other == first for other in others)
    for job, largest in (("sgd", "gather"), ("aged", "owners"), ("low", "gather")):
        (said,) = [note for note in notes(tmp_path, job) if note.startswith("Collectives at CF 16.6")]
        assert ("owners" in said) == (largest == "owners"), said
        assert f"{largest} for 33,930" in said


@pytest.mark.parametrize("world", [2, 4, 8])
def test_owners_hand_over_what_the_formulas_say(run_each: RunEach, world: int) -> None:
    """Two operations a bucket of any size, and no sizes are exchanged."""
    cases = [{"codec": codec, "collective": "owners"} for codec in ("topk", "topk+bf16", "topk+twobit")]
    for case, results in run_each("issued_bytes", world, cases):
        for one in (one for result in results for one in result):
            assert one["operations"] == 2, case
            assert one["handed"] == one["said handed"] == one["formula handed"] > 0, case
            assert one["linked"] == one["said linked"] == one["formula linked"] > 0, case
