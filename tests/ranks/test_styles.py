"""The agent in the usual styles of training: P3 holds in each, and compression runs without a hang."""

from pathlib import Path

import pytest

from gravac.replays.replay import check
from tests.support.ranks.harness import RunEach, RunRanks

pytestmark = pytest.mark.distributed

STYLES = [
    "gradient_as_bucket_view",
    "static_graph",
    "unused_parameters",
    "accumulation",
    "amp",
]


def test_dense_equals_ddp_in_every_style(run_each: RunEach) -> None:
    cases = [{"style": style, "policy": "dense"} for style in STYLES]
    for case, results in run_each("training_styles", 2, cases):
        for result in results:
            assert result["agent"] == result["plain"], case
            assert result["steps"] == 30, case


def test_compression_keeps_ranks_equal_in_every_style(run_each: RunEach) -> None:
    cases = [{"style": style, "policy": "static:cf=10"} for style in STYLES]
    for case, (one, two) in run_each("training_styles", 2, cases):
        assert one["agent"] == two["agent"], case
        assert one["agent"] != one["plain"], case
        assert one["scale"] == two["scale"], case


def test_an_overflow_under_amp_skips_the_step_everywhere(run_ranks: RunRanks) -> None:
    one, two = run_ranks("overflow_under_amp", 2)
    assert one == two
    assert one["kept"]
    assert one["scales"][5:7] == [256.0, 128.0]
    assert one["scales"][-1] == 128.0


def test_groups_of_ranks_each_have_an_agent(run_ranks: RunRanks, tmp_path: Path) -> None:
    results = run_ranks("two_groups", 4)
    assert results[0]["parameters"] == results[1]["parameters"]
    assert results[2]["parameters"] == results[3]["parameters"]
    assert results[0]["parameters"] != results[2]["parameters"]
    journals = sorted(tmp_path.glob("*/journal.jsonl"))
    assert {journal.parent.name for journal in journals} == {results[0]["job"], results[2]["job"]}
    assert all(check(journal).ok and check(journal).windows == 4 for journal in journals)
