"""How many kernels a bucket and a step queue on a GPU, counted without one: each takes the host some 19 µs."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.support.streams.launches import CountedRank, counted

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
OF_A_STEP = 6
"""Launches beside those of buckets."""


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CountedRank]]:
    with counted(monkeypatch) as ranks:
        yield ranks


@pytest.mark.parametrize("buckets", [1, 8])
@pytest.mark.parametrize(
    ("codec", "cf", "alone", "grouped"),
    [
        pytest.param("topk+bf16", 1.0, 2, 2, id="observing"),
        ("topk", 10.0, 4, 1),
        ("topk+bf16", 100.0, 4, 1),
        ("topk+twobit", 16.6, 4, 1),
        ("bf16", 2.0, 2, 0.5),
        ("int8", 4.0, 2, 0.5),
        ("nearest", 10.0, 2, 0.5),
        ("nearest:levels=3", 17.3, 2, 0.5),
    ],
)
def test_whole_messages_take_few_launches_for_any_number_of_ranks(
    counting: list[CountedRank], codec: str, cf: float, alone: int, grouped: float, buckets: int
) -> None:
    """And make no tensor and read none: what is measured needs no launch of its own."""
    # Gathered by 16 ranks, messages of every element would take many copies of the gradient, and are decoded before.
    for ranks in (2, 16 if codec.startswith("topk") else 4):
        rank = CountedRank(codec, cf, ranks, buckets=buckets)
        counting[:] = [rank]
        bucket, step = rank.settled()
        assert bucket.launches == (alone if buckets == 1 else grouped * buckets), bucket.names
        assert step.launches <= OF_A_STEP, step.names
        assert (bucket.allocations, bucket.waits) == (0, 0), bucket.names
        assert (step.allocations, step.waits) == (0, 0), step.names


@pytest.mark.parametrize("buckets", [1, 8])
@pytest.mark.parametrize("codec", ["bf16", "int8", "nearest"])
def test_shards_take_three_launches_for_any_number_of_ranks(
    counting: list[CountedRank], codec: str, buckets: int
) -> None:
    """Of all parts that arrive one makes the mean."""
    for ranks in (2, 16):
        rank = CountedRank(codec, 10.0, ranks, collective="compressed-all-reduce", buckets=buckets)
        counting[:] = [rank]
        bucket, step = rank.settled()
        times = 1 if buckets == 1 else buckets // 4
        assert bucket.names == {"_encode": times, "_average": times, "_decode": times}
        assert (bucket.allocations, bucket.waits) == (0, 0)
        assert step.launches <= OF_A_STEP, step.names
        assert (step.allocations, step.waits) == (0, 0), step.names


@pytest.mark.parametrize("buckets", [1, 8])
@pytest.mark.parametrize(("codec", "cf"), [("topk", 10.0), ("topk+bf16", 100.0), ("topk+twobit", 16.6)])
def test_owners_take_eight_launches_for_any_number_of_ranks(
    counting: list[CountedRank], codec: str, cf: float, buckets: int
) -> None:
    """For up to four buckets: three for what goes up, four for the sums of all that arrives, and one for the mean."""
    for ranks in (2, 16, 64):
        rank = CountedRank(codec, cf, ranks, collective="owners", buckets=buckets)
        counting[:] = [rank]
        bucket, step = rank.settled()
        assert bucket.launches == (8 if buckets == 1 else 2 * buckets), (ranks, bucket.names)
        assert (bucket.allocations, bucket.waits) == (0, 0), bucket.names
        assert step.launches <= OF_A_STEP, step.names
        assert (step.allocations, step.waits) == (0, 0), step.names


@pytest.mark.parametrize(
    ("codec", "cf", "flat"), [("topk+bf16", 1.0, 2), ("topk+bf16", 100.0, 1), ("int8", 4.0, 0.5)]
)
def test_two_levels_take_four_more(counting: list[CountedRank], codec: str, cf: float, flat: float) -> None:
    """For any number of ranks: parts are copied to rows, what comes is added up and divided, and means are copied."""
    for inside in (2, 8):
        rank = CountedRank(codec, cf, 2, buckets=8, inside=inside)
        counting[:] = [rank]
        bucket, step = rank.settled()
        assert bucket.launches == 8 * (flat + 4), bucket.names
        assert step.launches <= OF_A_STEP, step.names
        assert (bucket.allocations, bucket.waits, step.allocations, step.waits) == (0, 0, 0, 0), bucket.names


@pytest.mark.parametrize(("codec", "cf", "most"), [("topk+bf16", 1.0, 3), ("topk+twobit", 16.6, 5)])
def test_clipping_takes_one_more(counting: list[CountedRank], codec: str, cf: float, most: int) -> None:
    """The norm of the mean gradient follows from sums of a sample."""
    rank = CountedRank(codec, cf, 2, clipped=True)
    counting[:] = [rank]
    bucket, step = rank.settled()
    assert bucket.launches == most, bucket.names
    assert step.launches <= OF_A_STEP + 4, step.names
    assert (bucket.allocations, bucket.waits, step.waits) == (0, 0, 0), bucket.names


@pytest.mark.parametrize(("codec", "cf"), [("topk+bf16", 1.0), ("topk+twobit", 16.6)])
def test_a_surveyed_step_waits_for_nothing(counting: list[CountedRank], codec: str, cf: float) -> None:
    """Three steps of a window count the gradient's magnitudes, which takes launches, and no read."""
    rank = CountedRank(codec, cf, 2)
    counting[:] = [rank]
    bucket, step = rank.settled(surveyed=True)
    assert 2 < bucket.launches <= 27, bucket.names
    assert (bucket.waits, step.waits) == (0, 0)


@pytest.mark.parametrize(
    ("codec", "cf", "two", "sixteen"),
    [
        ("bf16", 2.0, 2, 96),
        ("fp16", 2.0, 68, 96),
        ("int8:block=32", 4.0, 67, 95),
        ("nearest:block=32", 10.0, 403, 957),
    ],
)
def test_other_plans_take_no_more_than_today(
    counting: list[CountedRank], codec: str, cf: float, two: int, sixteen: int
) -> None:
    """They have no whole message yet, so launches grow with ranks. The ceilings may only fall."""
    for ranks, most in ((2, two), (16, sixteen)):
        rank = CountedRank(codec, cf, ranks)
        counting[:] = [rank]
        bucket, step = rank.settled()
        assert bucket.launches <= most, bucket.names
        assert step.launches <= 27, step.names
        assert (bucket.waits, step.waits) == (0, 0)
