"""Decisions that change codec, CF and window length: on all ranks at the same step, and without losing a gradient."""

from pathlib import Path

import pytest

from gravac.protocol import Decision, Event, WindowReport
from gravac.traces import read_trace
from tests.support.ranks.harness import RunEach, RunRanks

pytestmark = pytest.mark.distributed

WINDOW = 6
PLAYS = [
    ("topk", 10.0, None),
    ("int4", 8.0, 5),
    ("topk", 1.0, 4),
    ("qsgd:bits=2", 8.0, 7),
    ("powersgd:rank=2", 8.0, 3),
    ("topk", 40.0, None),
]
"""What each window sends; Top-k is the job's compressor."""


def schedule(steps: int) -> list[tuple[str, float]]:
    """What each step sends: a decision is in force two steps after the window that it follows."""
    found: list[tuple[str, float]] = []
    ends = 0
    for codec, cf, window in PLAYS:
        ends += window or WINDOW
        found += [(codec, cf)] * (ends + 2 - len(found))
    return (found + [PLAYS[-1][:2]] * steps)[:steps]


@pytest.mark.parametrize("world", [2, 3])
def test_plans_change_on_all_ranks_at_once_and_lose_nothing(
    run_ranks: RunRanks, tmp_path: Path, world: int
) -> None:
    plays = [(None if codec == "topk" else codec, cf, window) for codec, cf, window in PLAYS]
    results = run_ranks("plans_in_turn", world, plays=plays, steps=40, window=WINDOW)
    for result in results:
        assert [(codec, cf) for codec, cf, _ in result["sent"]] == schedule(40)
        assert result["parameters"] == results[0]["parameters"]
        assert result["failed"] == 0
        assert result["buckets"] >= 6
        assert max(result["worst"]) < 2e-5, "what was sent and what is held is not the sum of the gradients"
        assert min(result["residuals"][3:11]) > 1e-3, "there is a residual at every switch of codecs"
    # On some CPUs gradients depend on where they lie in memory, by rounding errors, and a few elements then take
    # another level: 5e-4 was seen. With 3 bits instead of 2 in one window it is 4e-2.
    assert results[0]["off_ratio"] < 2e-3, "the means are not those of the codecs"
    records = [line.record for line in read_trace(tmp_path / "planned" / "journal.jsonl")]
    notes = [record.message for record in records if isinstance(record, Event)]
    assert not any("no proven limit" in note for note in notes), (
        "qsgd was the policy's choice, not the user's"
    )
    windows = [record for record in records if isinstance(record, WindowReport)]
    decisions = [record for record in records if isinstance(record, Decision)]
    lengths = [window.last_step - window.first_step + 1 for window in windows]
    assert lengths[: len(PLAYS)] == [each[2] or WINDOW for each in PLAYS]
    assert [decision.codec for decision in decisions[:6]] == [play[0] for play in plays]
    for before, window in zip(decisions, windows, strict=False):
        own = [level for level in window.levels if level.epoch == before.epoch]
        assert {level.codec for level in own} == {before.codec}
        assert {row.codec for row in window.gains} <= {before.codec}
        assert (before.cf_candidate == 1.0) or window.gains, "the gain of the codec in force is reported"


def test_a_checkpoint_between_two_codecs_continues_exactly(run_each: RunEach) -> None:
    """Saved where the next step's plan has another codec, and where the other codec has a state of its own."""
    plays = [(None, 10.0), ("powersgd:rank=2", 8.0, 100)]
    cases = [
        {"at": at, "plays": plays, "epsilon": epsilon} for at, epsilon in ((7, 0.0), (12, 0.0), (12, 0.01))
    ]
    for case, results in run_each("resumed_between_plans", 2, cases):
        for result in results:
            assert result["again"] == result["sent"][case["at"] :], case
            assert result["resumed"] == result["whole"], case
            assert result["sent"][-1] == ["powersgd:rank=2", 8.0], case
            unknown = result["unknown"]  # a run whose policy has no such codec
            assert (unknown["plan"][0], unknown["same"]) == ("topk", True), case
            assert unknown["held"] > 1e-3, case
