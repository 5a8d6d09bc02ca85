"""What works with DDP works with an agent: every feature, one after another in one pair of ranks (docs/features.md)."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.scenarios.features import FEATURES
from tests.support.feature_page import is_bit_equal, page
from tests.support.ranks.harness import run_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(800)]
PAGE = Path(__file__).parents[2] / "docs/features.md"
BY_FEATURE = pytest.mark.parametrize("feature", [feature.title() for feature in FEATURES])
START = math.log(10)
"""Loss of a net that has learned nothing."""

Ranks = list[dict[str, dict[str, dict[str, Any]]]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return run_ranks(tmp_path_factory.mktemp("features"), "features", seconds=720, fresh=True)


@BY_FEATURE
def test_it_changes_nothing_when_it_is_off_or_dense(ranks: Ranks, feature: str) -> None:
    assert is_bit_equal(ranks[0][feature])


@BY_FEATURE
def test_it_trains_compressed(ranks: Ranks, feature: str) -> None:
    one, two = (rank[feature] for rank in ranks)
    plain = one["plain"]["loss"]
    assert plain < START - 0.3, "it learns"
    assert one["int4"]["loss"] == pytest.approx(plain, rel=0.01)
    assert one["topk"]["loss"] < plain + 0.3 * (START - plain)
    for how in ("int4", "topk"):
        assert one[how]["parameters"] == two[how]["parameters"], how
        assert one[how]["parameters"] != one["plain"]["parameters"], how
        assert one[how]["buckets"] >= 3, how
        assert one[how]["saved"] > 3, how


def test_a_grad_scaler_skips_and_grows_as_in_plain_ddp(ranks: Ranks) -> None:
    for how in ranks[0]["float16 autocast with a GradScaler"].values():
        assert how["skipped"] >= 2
        assert how["grown"] >= 2


def test_the_page_is_fresh(ranks: Ranks) -> None:
    """The same words; losses differ a little from machine to machine."""
    number = r"[+-]?\d+\.\d+"
    written, made = PAGE.read_text(), page(ranks[0])
    command = "python -m tests.support.feature_page > docs/features.md"
    assert re.sub(number, "", written) == re.sub(number, "", made), command
    for line, fresh in zip(written.splitlines(), made.splitlines(), strict=True):
        ours, theirs = (re.findall(rf"(?<!\()\b{number}", row) for row in (line, fresh))
        for one, two in zip(ours, theirs, strict=True):
            last_digit = 0.11 if len(one.partition(".")[2]) == 1 else None  # of percentages
            assert float(one) == pytest.approx(float(two), rel=0.02, abs=last_digit), command
