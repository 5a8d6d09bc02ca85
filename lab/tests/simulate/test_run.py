"""A run is its seed, and may name its collective."""

import pytest

from gravac_lab.simulate.run import learn

TASK = "logistic:images=digits"


def test_the_same_seed_gives_the_same_row_and_alone_another_curve() -> None:
    first, again, lone, other = (
        learn(TASK, plan, 2, seed, 8, points=4)
        for plan, seed in (("qsgd:bits=2@16", 1), ("qsgd:bits=2@16", 1), ("alone", 1), ("qsgd:bits=2@16", 2))
    )
    for row in (first, again, lone, other):
        assert row.pop("cpu_seconds") >= 0
    assert first == again
    assert [point[0] for point in first["curve"]] == [2, 4, 6, 8] == [point[0] for point in lone["curve"]]
    assert first["curve"] != lone["curve"]
    assert first["curve"] != other["curve"]
    assert (lone["payload_bytes"], lone["sums"], "progress" in lone) == (0.0, {}, False)
    assert 0 < first["payload_bytes"] < 4 * first["elements"] / 8
    assert min(first["sums"][name] for name in ("sent_sq", "residual_sq", "reference_sq")) > 0
    assert 0 < first["progress"] < 2


def test_repetitions_of_dense_differ_by_rounding_errors_alone() -> None:
    """Each is another one, the same each time, and near dense before the errors grow."""
    dense, one, again, other = (
        learn(TASK, plan, 2, 3, 20, points=20)
        for plan in ("dense", "dense:repeat=1", "dense:repeat=1", "dense:repeat=2")
    )
    curves = [[point[1] for point in row["curve"]] for row in (dense, one, other)]
    assert one["curve"] == again["curve"]
    assert len({tuple(curve) for curve in curves}) == 3
    assert all(curve[0] == pytest.approx(curves[0][0], rel=1e-3) for curve in curves)
    assert (one["plan"], one["payload_bytes"]) == ("dense:repeat=1", dense["payload_bytes"])


def test_a_plan_may_name_its_collective() -> None:
    """A compressed all-reduce rounds the mean again and sends less than a gather; ``auto`` learns as a gather does."""
    auto, gathered, rounded = (
        learn(TASK, plan, ranks=4, seed=1, steps=6, points=3)
        for plan in (
            "nearest:levels=7@10",
            "nearest:levels=7@10//gather",
            "nearest:levels=7@10/residual/compressed-all-reduce",
        )
    )
    assert auto["curve"] == gathered["curve"] != rounded["curve"]
    assert auto["sent_bytes"] == gathered["sent_bytes"] > 1.3 * rounded["sent_bytes"]
