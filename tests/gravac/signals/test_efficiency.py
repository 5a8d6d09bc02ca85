"""Statistical efficiency: what is expected of a codec at a CF, and how a window corrects it."""

import dataclasses
import math

import pytest

from gravac import offers
from gravac.policies import Plan
from gravac.policies.auto.plans import defaults
from gravac.policies.auto.table import MOST_LOST
from gravac.protocol import GainSums
from gravac.signals import efficiency
from tools.harness.cluster import level_sums


def sums(backlog: float) -> GainSums:
    found = level_sums(0, 10.0, 10, 5, 1.0, 0.1).sums
    return found.model_copy(update={"residual_dot_gradient": backlog * found.gradient_sq})


def test_the_table_is_met_and_interpolated_between_its_rows() -> None:
    assert len(offers.own()) > 8
    for codec, offer in offers.own().items():
        for kind in ("sgd", "adam"):
            for row in offer.rows(kind):  # type: ignore[arg-type]
                found = efficiency.expected(codec, row.cf, kind)
                assert found is not None
                assert (found.likely, found.low, found.high) == pytest.approx((row.likely, row.low, row.high))
                assert row.low <= row.likely <= row.high
    between = efficiency.expected("topk", math.sqrt(10 * 25), "sgd")
    assert between is not None
    ends = [efficiency.expected("topk", cf, "sgd") for cf in (10.0, 25.0)]
    assert between.likely == pytest.approx(sum(end.likely for end in ends if end) / 2), "halfway in log CF"


@pytest.mark.parametrize("kind", ["sgd", "adam", "adam-aged", "adam-low-beta", "matrix", "unknown"])
@pytest.mark.parametrize("codec", ["topk+bf16", "topk+twobit", "nearest:levels=7", "bf16"])
def test_a_stronger_plan_is_never_expected_to_lose_less(codec: str, kind: str) -> None:
    found = [efficiency.expected(codec, 1.1**power, kind) for power in range(120)]
    values = [each.likely for each in found if each is not None]
    assert len(values) == 120
    assert values == sorted(values, reverse=True)
    assert values[0] == 1.0
    assert all(0.0 < each.low <= each.likely <= each.high <= 1.0 for each in found if each is not None)


def test_unknown_codecs_are_not_guessed_and_dense_is_certain() -> None:
    assert efficiency.expected("sign", 32.0, "sgd") is None
    assert efficiency.expected("sign", 1.0, "sgd") == efficiency.CERTAIN
    assert efficiency.measured(sums(0.1), "topk", 1.0, "adam") == efficiency.CERTAIN


def test_a_backlog_lowers_the_measured_efficiency() -> None:
    low, high = (efficiency.measured(sums(backlog), "topk", 10.0, "sgd") for backlog in (0.4, 0.05))
    assert low is not None
    assert high is not None
    table = efficiency.expected("topk", 10.0, "sgd")
    assert table is not None
    assert low.likely < high.likely <= table.high, "within what simulations showed"
    far = efficiency.measured(sums(5.0), "nearest:levels=7", 10.1, "adam")
    assert far is not None
    assert far.likely < 0.5, "far outside anything simulated the window counts"
    assert efficiency.measured(sums(0.1).model_copy(update={"gradient_sq": 0.0}), "topk", 10.0, "sgd") is None


def test_noise_scales_what_plans_lose_under_sgd() -> None:
    """As many times as ρ is that of the simulations, from 0.1 to 1.5; beyond the simulated CFs they fade."""
    typical = efficiency.expected("topk", 25.0, "sgd")
    assert typical is not None
    for times, confirmed in ((0.1, 0.0), (0.1, 0.013), (0.5, 0.065), (1.0, 0.13), (1.5, 0.195), (1.5, 0.9)):
        found = efficiency.expected("topk", 25.0, "sgd", confirmed)
        assert found is not None
        for name in ("likely", "low", "high"):
            expected = 1.0 - times * (1.0 - getattr(typical, name))
            assert getattr(found, name) == pytest.approx(expected), (name, confirmed)
    assert efficiency.noise_times("dither:levels=3", 0.013) == 0.1
    for codec in ("dither:levels=3", "dither-subtractive:levels=3"):
        assert efficiency.noise_times(codec, 0.195) == 1.0, "it delays nothing"
    assert efficiency.expected("topk", 25.0, "adam", 0.01) == efficiency.expected("topk", 25.0, "adam")
    largest, beyond = (efficiency.expected("topk", cf, "sgd", 0.013) for cf in (100.0, 400.0))
    assert largest is not None
    assert beyond is not None
    assert beyond.likely == pytest.approx(largest.likely / 2)
    assert beyond.low == pytest.approx(largest.low / 4)


def test_noise_of_earlier_windows_counts() -> None:
    """Late gradients cost less where the gradient is noise, with and without a dense reference in this window."""
    late = sums(0.3)
    noisy, typical, unknown = (
        efficiency.measured(late, "topk", 25.0, "sgd", confirmed) for confirmed in (0.013, 0.13, None)
    )
    assert noisy is not None
    assert typical is not None
    assert unknown is not None
    assert noisy.likely == pytest.approx(1.0 / (1.0 + efficiency.PER_LATE * 0.3 * 0.013))
    assert typical.likely == pytest.approx(1.0 / (1.0 + efficiency.PER_LATE * 0.3 * 0.13))
    assert unknown.likely == pytest.approx(1.0 / (1.0 + efficiency.PER_BACKLOG * 0.3))
    shown = {"progress_steps": 20, "reference_sq": 1.0, "moved_dot_reference": 1.0, "raw_mean_sq": 1.0}
    window = late.model_copy(update=shown | {"raw_dot_next": 0.13})
    assert efficiency.confirmed_by(window) == 0.13
    assert efficiency.confirmed_by(window.model_copy(update={"progress_steps": 19})) is None
    assert efficiency.measured(window, "topk", 25.0, "sgd") == efficiency.measured(
        window.model_copy(update={"raw_dot_next": 0.9}), "topk", 25.0, "sgd", 0.13
    ), "the window's own is one noisy value"


def test_the_logarithm_is_right() -> None:
    for value in (1.0, 1.3, 2.0, 7.5, 1e3, 1e9):
        assert efficiency.log(value) == pytest.approx(math.log(value), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_progress_counts_where_it_was_measured(kind: str) -> None:
    """The formula's own value and some of the table's: with full progress and no backlog nothing is lost."""
    full = sums(0.0).model_copy(
        update={
            "progress_steps": 50,
            "reference_sq": 2.0,
            "moved_dot_reference": 2.0,
            "raw_mean_sq": 1.0,
            "raw_dot_next": 0.2,
        }
    )
    table = efficiency.expected("topk", 10.0, kind, 0.2)
    assert table is not None
    found = [
        efficiency.measured(full.model_copy(update=change), "topk", 10.0, kind)
        for change in ({}, {"moved_dot_reference": 1.0}, {"residual_dot_gradient": full.gradient_sq})
    ]
    whole, half, late = (each.likely for each in found if each is not None)
    share = efficiency.TABLE_STEPS / (efficiency.TABLE_STEPS + 50)
    assert whole == pytest.approx(1.0 + share * (table.likely - 1.0))
    strayed = math.log(2.0) - (efficiency.PROGRESS_NOISE if kind == "sgd" else 0.0)
    lost = 1.0 / (1.0 + efficiency.PER_LOST * strayed)
    assert half == pytest.approx(lost + share * (table.likely - lost))
    waiting = 1.0 / (1.0 + efficiency.PER_LATE * 0.2)
    assert late == pytest.approx(waiting + share * (table.likely - waiting)), (
        "only the confirmed backlog costs"
    )
    unknown = efficiency.measured(full.model_copy(update={"moved_dot_reference": 1.0}), "sign", 30.0, kind)
    assert unknown is not None
    assert unknown.likely == pytest.approx(lost), "a codec that was not simulated has its window alone"


def test_the_formula_has_the_numbers_of_its_fit() -> None:
    """Those of docs/efficiency.md, written out: other tests follow the constants."""
    assert efficiency.of_progress(0.5, 1.0, 0.2, "adam") == pytest.approx(1 / (1 + 3.4 * 0.5 * 0.2))
    assert efficiency.of_progress(0.0, 0.5, 0.0, "adam") == pytest.approx(1 / (1 + 0.4 * math.log(2)))
    assert efficiency.of_progress(0.0, 0.5, 0.0, "sgd") == pytest.approx(1 / (1 + 0.4 * (math.log(2) - 0.2)))
    assert efficiency.of_progress(0.0, -1.0, 0.0, "adam") == pytest.approx(1 / (1 + 0.4 * math.log(100)))
    for kind, per_backlog in (("sgd", 0.65), ("adam", 2.0)):
        found = efficiency.measured(sums(0.1), "unheard", 10.0, kind)
        assert found is not None
        likely = 1 / (1 + per_backlog * 0.1)
        assert (found.low, found.likely) == pytest.approx((likely - 0.1, likely))
    shown = {"progress_steps": 20, "reference_sq": 1.0, "moved_dot_reference": 1.0, "raw_mean_sq": 1.0}
    window = sums(0.5).model_copy(update=shown | {"raw_dot_next": 0.2})
    alone, with_table = (efficiency.measured(window, codec, 10.0, "adam") for codec in ("unheard", "topk"))
    table = efficiency.expected("topk", 10.0, "adam")
    assert alone is not None
    assert with_table is not None
    assert table is not None
    assert (alone.likely - alone.low, alone.high - alone.likely) == pytest.approx((0.08, 0.08))
    assert with_table.likely == pytest.approx((alone.likely + table.likely) / 2), "of 20 steps, as much"
    kept = [efficiency.Efficiency(1.0, low, 1.0).reliable for low in (0.89, 0.9 - 1.2e-9, 0.9 - 0.8e-9)]
    assert kept == [False, False, True]
    assert efficiency.expected("topk", 1e9, "adam") == efficiency.Efficiency(0.01, 0.01, 0.01)


@pytest.mark.parametrize(
    ("progress", "counts"), [(0.85, False), (1.15, False), (0.4, True), (2.0, True), (-0.3, True)]
)
def test_under_sgd_only_a_training_that_leaves_the_dense_way_loses_by_it(
    progress: float, counts: bool
) -> None:
    """Unstable trainings go to and fro: far more than the dense way, or against it."""
    found = efficiency.of_progress(0.0, progress, 0.3, "sgd")
    assert (found < 0.9) == counts
    assert counts or found == 1.0


def test_random_rounding_costs_more_with_fewer_ranks_than_simulated() -> None:
    found = efficiency.expected("dither:levels=3", 17.3, "sgd")
    assert found is not None
    assert efficiency.with_ranks(found, "dither:levels=3", 8, "sgd") == found
    two = efficiency.with_ranks(found, "dither:levels=3", 2, "sgd")
    assert 1.0 - two.likely == pytest.approx(4.0 * (1.0 - found.likely))
    assert two.low < found.low
    assert two.high == two.likely, "no window shows that it is better"
    for codec in ("nearest:levels=3", "dither-subtractive:levels=3"):
        other = efficiency.expected(codec, 17.3, "sgd")
        assert other is not None
        assert efficiency.with_ranks(other, codec, 2, "sgd") == other


def test_more_bits_than_were_simulated_lose_a_quarter_a_bit() -> None:
    """With 2 ranks a GPT of 0.36 M under AdamW had η 1.02, .91 and .94 with them (``lab/benchmarks/adam.py``)."""
    lost = [
        [
            1.0 - found.likely
            for codec, cf in (("qsgd:bits=8", 3.9), ("qsgd:bits=4", 7.5), ("dither:levels=15", 7.5))
            if (found := efficiency.of_job(codec, cf, "adam", ranks, None)) is not None
        ]
        for ranks in (2, 4)
    ]
    assert lost[0] == pytest.approx([0.001, 0.22, 0.14], abs=0.01)
    assert lost[1] == pytest.approx([each / 4 for each in lost[0]])


def test_signs_which_move_zeros_are_never_within_the_bound_of_auto() -> None:
    """Masked weights and rows of ``padding_idx`` have no gradient: no default plan may move them (docs/codecs.md)."""
    signs = Plan("nearest:levels=2", 25.6)
    assert signs in defaults()
    for kind in ("sgd", "adam", "unknown"):
        for ranks in (2, 4, 8, 64):
            expected = efficiency.of_job("nearest:levels=2", 25.6, kind, ranks, None)
            assert expected is not None
            assert expected.high < 1.0 - MOST_LOST, (kind, ranks)


AGED, LATE = (
    "topk+twobit",
    {"progress_steps": 50, "reference_sq": 1.0, "raw_mean_sq": 1.0, "raw_dot_next": 0.25},
)


def test_what_comes_late_costs_less_under_gravac_optim_and_all_else_what_it_costs_adam() -> None:
    for cf in (5.1, 10.0, 16.6, 36.0):
        late, adam = (efficiency.expected(AGED, cf, kind) for kind in ("adam-aged", "adam"))
        assert late is not None
        assert adam is not None
        assert late.likely > adam.likely + 0.05
        assert late.reliable
        for ranks in (2, 8):
            assert efficiency.of_job(AGED, cf, "adam-aged", ranks, None) == late, "ages know how many sent"
    for codec, cf in (("nearest:levels=15", 7.5), ("int8", 3.9), ("topk+bf16", 25.0), ("randomk", 10.0)):
        assert efficiency.expected(codec, cf, "adam-aged") == efficiency.expected(codec, cf, "adam")


def test_a_small_beta_bears_what_comes_late() -> None:
    low, adam = (efficiency.expected(AGED, 16.6, kind) for kind in ("adam-low-beta", "adam"))
    assert low is not None
    assert adam is not None
    assert low.likely > adam.likely + 0.1
    assert efficiency.expected("topk", 25.0, "adam-low-beta") == efficiency.expected("topk", 25.0, "adam")
    late = efficiency.measured(sums(0.3), AGED, 16.6, "adam-low-beta")
    assert late is not None
    assert late.likely == low.likely, "a window shows nothing that simulations did not"
    eight = efficiency.of_job(AGED, 16.6, "adam-low-beta", 8, None)
    assert eight is not None
    assert 1.0 - eight.likely == pytest.approx(4.0 * (1.0 - low.likely))


def test_optimizers_of_whole_matrices_lose_half_as_much_again_as_adam() -> None:
    for codec, cf in (("nearest:levels=15", 7.5), ("nearest:levels=7", 10.1), ("topk+bf16", 25.0)):
        matrix, adam = (efficiency.expected(codec, cf, kind) for kind in ("matrix", "adam"))
        assert matrix is not None
        assert adam is not None
        assert 1.0 - matrix.likely == pytest.approx(1.5 * (1.0 - adam.likely))


@pytest.mark.parametrize(
    ("shown", "kept"),
    [
        ({"moved_dot_reference": 0.37}, 1.0),  # the lowest of the simulations that kept most
        ({"moved_dot_reference": 0.74}, 1.0),
        ({"moved_dot_reference": 1.5}, 1.0),
        ({"moved_dot_reference": 0.1}, 1 / (1 + 0.4 * (math.log(10) - 1))),
        ({"moved_dot_reference": -0.5}, 1 / (1 + 0.4 * (math.log(100) - 1))),
        ({"progress_steps": 0}, 1.0),
    ],
)
def test_next_to_dense_late_gradients_count_only_beyond_what_simulations_showed(
    shown: dict[str, float], kept: float
) -> None:
    """Of stock AdamW, P = 0.5 says that a tenth and more is lost."""
    table = efficiency.expected(AGED, 16.6, "adam-aged")
    window = sums(0.2).model_copy(update=LATE | shown)
    found = efficiency.measured(window, AGED, 16.6, "adam-aged")
    assert table is not None
    assert found is not None
    assert (found.low, found.likely) == pytest.approx((kept * table.low, kept * table.likely))
    far = efficiency.measured(sums(1.25), AGED, 16.6, "adam-aged")
    assert far is not None
    assert far.likely == pytest.approx(table.likely / (1 + 2.0 * (1.25 - 0.35))), (
        "without a dense reference, by backlog"
    )
    quantized = window.model_copy(update={"moved_dot_reference": 0.37, "progress_steps": 50})
    stock, ours = (
        efficiency.measured(quantized, "nearest:levels=7", 10.1, kind) for kind in ("adam", "adam-aged")
    )
    assert stock == ours, "every element arrives"


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("kind", ["sgd", "adam", "adam-aged", "adam-low-beta", "matrix", "unknown"])
def test_what_a_jobs_record_says_of_a_plan_is_what_simulations_showed(kind: str, ranks: int) -> None:
    """For any noise of the gradient, though the controller that reads it knows no codec. Beyond what was simulated,
    noise saves nothing.
    """
    for codec, cf in defaults(kind):
        assert codec is not None
        kept = efficiency.kept(codec, cf, kind, ranks)
        assert kept is not None
        assert kept.late == efficiency.counts_late(codec, kind)
        assert kept.unseen == efficiency.errs_more(codec, ranks, kind)
        for confirmed in (None, 0.0, 0.05, 0.13, 0.16, 1.0):
            found = efficiency.of_job(codec, cf, kind, ranks, confirmed)
            assert found is not None
            times = efficiency.times_by_noise(kept.noise_times, confirmed)
            if kind == "sgd" and cf > offers.of(codec).rows("sgd")[-1].cf:
                assert kept.noise_times == 0.0
                continue
            by_record = efficiency.between(
                *(1.0 - times * (1.0 - each) for each in (kept.likely, kept.low, kept.high))
            )
            assert dataclasses.astuple(by_record) == pytest.approx(dataclasses.astuple(found)), (
                codec,
                cf,
                confirmed,
            )
    assert efficiency.kept("unheard", 10.0, kind, ranks) is None


def test_what_steps_show_is_theirs_alone() -> None:
    """The mean with what simulations showed is made where it is known by how much each counts."""
    shown = {"progress_steps": 20, "reference_sq": 1.0, "moved_dot_reference": 1.0, "raw_mean_sq": 1.0}
    window = sums(0.5).model_copy(update=shown | {"raw_dot_next": 0.2})
    table = efficiency.Efficiency(0.97, 0.9, 1.0)
    found = efficiency.shown(window, "adam", table, None, late=False)
    assert found == efficiency.shown(window, "adam", None, None, late=False)
    assert found == efficiency.Shown(pytest.approx(1 / (1 + 3.4 * 0.5 * 0.2)), 20)
    few = window.model_copy(update={"progress_steps": 19})
    backlog = efficiency.shown(few, "adam", table, None, late=False)
    assert backlog == efficiency.Shown(pytest.approx(0.97 - (0.8 - 1 / (1 + 2.0 * 0.5))), window.steps)
    assert efficiency.shown(window.model_copy(update={"steps": 0}), "adam", table, None, late=False) is None
    nothing = window.model_copy(update={"gradient_sq": 0.0})
    assert efficiency.shown(nothing, "sgd", table, None, late=False) is None


@pytest.mark.parametrize("kind", ["sign", "other"])
def test_of_an_optimizer_that_was_never_simulated_nothing_is_stated(kind: str) -> None:
    """Neither before nor after a window: what a window shows is read by what simulations of its kind showed."""
    followed = sums(0.1).model_copy(
        update={"progress_steps": 50, "reference_sq": 1.0, "moved_dot_reference": 0.9, "raw_mean_sq": 1.0}
    )
    for codec, cf in (("topk+bf16", 10.0), ("nearest:levels=7", 10.1), ("bf16", 2.0), ("topk+twobit", 36.0)):
        assert efficiency.expected(codec, cf, kind) is None
        assert efficiency.of_job(codec, cf, kind, 4, 0.1) is None
        assert efficiency.kept(codec, cf, kind, 4) is None
        for window in (sums(0.1), followed):
            assert efficiency.measured(window, codec, cf, kind) is None
            assert efficiency.shown(window, kind, None, None, late=False) is None
    assert efficiency.expected("topk+bf16", 1.0, kind) == efficiency.CERTAIN, "dense steps are dense steps"
    assert efficiency.measured(sums(0.1), "topk+bf16", 1.0, kind) == efficiency.CERTAIN
    assert efficiency.expected("topk", 10.0, "unknown") == efficiency.expected("topk", 10.0, "adam")
