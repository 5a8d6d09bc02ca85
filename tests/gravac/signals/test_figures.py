"""Figures derived from a report, checked against numbers computed by hand."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from gravac.policies import parse
from gravac.protocol import GainSums, WindowReport
from gravac.signals import figures
from gravac.signals.diversity import split
from gravac.signals.efficiency import CERTAIN
from gravac_controller.views.models import WindowView
from tests.support.efficiencies import fixed_efficiencies
from tools.harness.builders import two_hosts
from tools.harness.cluster import job_spec, level_sums, window_report

NO_STEPS = {name: 0 for name in GainSums.model_fields if name.endswith("steps")}


def sums(**changes: float) -> GainSums:
    given = dict.fromkeys(GainSums.model_fields, 0.0) | NO_STEPS | {"steps": 10} | changes
    return GainSums(**given)  # type: ignore[arg-type]


def report(*of_levels: GainSums, **changes: object) -> WindowReport:
    empty = level_sums(0, 10.0, 10, 5, 0.1, 0.05)
    levels = tuple(empty.model_copy(update={"sums": level}) for level in of_levels)
    return window_report(**({"levels": levels, "first_step": 100, "last_step": 119} | changes))


TWO = report(
    sums(gradient_sq=4.0, compensated_sq=8.0, sent_sq=6.0, minimum_sq=7.0, candidate_sq=5.0, residual_sq=1.0,
         residual_dot_gradient=2.0, progress_steps=4, reference_sq=3.0, moved_dot_reference=2.0),
    sums(gradient_sq=12.0, compensated_sq=12.0, sent_sq=3.0, minimum_sq=3.0, candidate_sq=1.0, residual_sq=8.0,
         residual_dot_gradient=-6.0, progress_steps=6, reference_sq=1.0, moved_dot_reference=1.0),
    seconds=5.0, samples=640, dense_bytes=1000, payload_bytes=80,
)  # fmt: skip


def test_sums_are_added_before_dividing() -> None:
    assert figures.gain(TWO) == 9.0 / 20.0
    assert figures.gain_minimum(TWO) == 10.0 / 20.0
    assert figures.gain_candidate(TWO) == 6.0 / 20.0
    assert figures.backlog(TWO) == -4.0 / 16.0
    assert figures.residual_ratio(TWO) == math.sqrt(9.0 / 16.0)
    assert (figures.total_sums(TWO).steps, figures.total_sums(TWO).progress_steps) == (20, 10)


def test_speeds_and_sizes() -> None:
    assert figures.steps(TWO) == 20
    assert figures.step_seconds(TWO) == 0.25
    assert figures.samples_per_second(TWO) == 128.0
    assert figures.compression_throughput(TWO) == 128.0 * 0.45
    assert figures.wire_cf(TWO) == 12.5


def test_a_pause_is_what_steps_waited_for_data_beyond_the_usual() -> None:
    """Of 20 steps in 30 s that usually take 0.5 s, 20 s are too much, for data or for something else."""
    base = window_report(
        first_step=0, last_step=19, seconds=30.0, levels=(level_sums(1, 10.0, 20, 18, 0.5, 0.1),)
    )

    def waiting(seconds: float) -> WindowReport:
        return base.model_copy(update={"phases": base.phases.model_copy(update={"data_wait": seconds})})

    assert figures.usual_step_seconds(base) == 0.5
    assert [figures.paused_seconds(waiting(seconds)) for seconds in (0.0, 5.0, 25.0)] == [0.0, 5.0, 20.0]
    two = (level_sums(1, 10.0, 10, 9, 0.5, 0.1), level_sums(1, 5.0, 5, 3, 0.9, 0.1))
    assert figures.usual_step_seconds(base.model_copy(update={"levels": two})) == pytest.approx(0.6)
    unsettled = base.model_copy(update={"levels": (level_sums(1, 10.0, 20, 0, None, None),)})
    assert figures.usual_step_seconds(unsettled) == figures.step_seconds(unsettled) == 1.5
    assert figures.paused_seconds(unsettled) == 0.0


@pytest.mark.parametrize(
    "empty",
    [report(seconds=0.0, payload_bytes=0), report(sums(), seconds=0.0, payload_bytes=0)],
    ids=["no levels", "zeros"],
)
def test_what_is_undefined_is_none_not_zero(empty: WindowReport) -> None:
    for value in (figures.gain, figures.gain_minimum, figures.gain_candidate, figures.backlog,
                  figures.residual_ratio, figures.samples_per_second,
                  figures.compression_throughput,
                  figures.wire_cf):  # fmt: skip
        assert value(empty) is None
    assert figures.step_seconds(empty) == 0.0


def test_the_efficiency_of_a_window_is_the_mean_over_its_steps() -> None:
    """30 steps of Top-k at η = 0.7, 60 of a finer codec at 0.98 and 10 dense ones: each by its own codec."""
    seen = sums(gradient_sq=1.0, residual_sq=1.0)
    one, two, dense = (
        level_sums(0, cf, steps, 5, 0.1, 0.05) for cf, steps in ((10.0, 30), (10.1, 60), (1.0, 10))
    )
    levels = (
        one.model_copy(update={"sums": seen}),
        two.model_copy(update={"sums": seen, "codec": "nearest:levels=7"}),
        dense,
    )
    window = window_report(levels=levels, seconds=5.0, samples=640)
    with fixed_efficiencies():
        found = figures.efficiency(window, "adam", "topk+bf16")
        useful = figures.useful_samples_per_second(window, "adam", "topk+bf16")
    assert found is not None
    assert found.likely == pytest.approx(0.3 * 0.7 + 0.6 * 0.98 + 0.1)
    assert found.low == pytest.approx(0.3 * 0.6 + 0.6 * 0.96 + 0.1)
    assert found.high == pytest.approx(0.3 * 0.8 + 0.6 * 0.995 + 0.1)
    assert useful == pytest.approx(128.0 * found.likely)


def test_of_two_levels_of_links_the_senders_count_for_the_efficiency() -> None:
    """Errors of a codec that rounds at random average out over the hosts, not over all ranks."""
    report = window_report(cf=12.0, levels=(level_sums(0, 12.0, 50, 45, 1.0, 0.1, "dither:levels=3"),))
    hosts = two_hosts(4)
    with fixed_efficiencies():
        flat, levels, two = (
            WindowView.of(0.0, report, job_spec(parse("auto").spec(), **changes)).efficiency
            for changes in ({"world_size": 8}, {"world_size": 8, "hosts": hosts}, {"world_size": 2})
        )
    assert flat is not None
    assert levels == two
    assert levels is not None
    assert levels < flat


def test_efficiency_is_unknown_without_a_gradient_and_1_when_dense() -> None:
    blind = report(sums())
    assert figures.efficiency(blind, "sgd", "topk") is None
    assert figures.useful_samples_per_second(blind, "sgd", "topk") is None
    forgotten = report(sums(gradient_sq=1.0, compensated_sq=1.0, sent_sq=0.7))
    assert figures.efficiency(forgotten, "sgd", "topk") is None, "no residual: there is no error memory"
    level = level_sums(0, 1.0, 10, 5, 0.1, 0.05)
    assert figures.efficiency(window_report(levels=(level,)), "adam", "topk") == CERTAIN


def test_the_codec_is_that_of_the_last_step() -> None:
    """Both levels sent this CF; the later decision named another codec."""
    early, late = (level_sums(epoch, 10.0, 10, 5, 0.1, 0.05) for epoch in (1, 2))
    window = window_report(levels=(late.model_copy(update={"codec": "nearest:levels=7"}), early), cf=10.0)
    assert figures.codec(window, "topk") == "nearest:levels=7"
    assert figures.codec(window_report(levels=(early,), cf=10.0), "topk") == "topk"


def test_what_overflows_is_none_not_infinite() -> None:
    huge = report(sums(compensated_sq=5e-324, sent_sq=1e300, gradient_sq=5e-324, residual_dot_gradient=-1e300,
                       residual_sq=1e300), seconds=5e-324)  # fmt: skip
    for value in (
        figures.gain,
        figures.backlog,
        figures.residual_ratio,
        figures.samples_per_second,
    ):
        assert value(huge) is None


def dense(*gradients: tuple[Tensor, ...], samples: int) -> WindowReport:
    """Return a window of dense steps, each with the raw gradients of all ranks. ``samples``: of a rank's step."""
    steps, ranks = len(gradients), len(gradients[0])
    energies = sums(
        steps=steps,
        mean_steps=steps,
        mean_sq=math.fsum(sq(torch.stack(step).mean(0)) for step in gradients),
        mean_gradient_sq=math.fsum(sq(g) for step in gradients for g in step),
    )
    return report(energies, first_step=0, last_step=steps - 1, samples=samples * ranks * steps)


def sq(x: Tensor) -> float:
    return float(x.double().square().sum())


def test_equal_gradients_make_larger_batches_useless() -> None:
    g = torch.tensor([3.0, 4.0])
    same = dense((g, g, g, g), (2 * g, 2 * g, 2 * g, 2 * g), samples=8)
    assert figures.gradient_diversity(same, 4) == 1 / 4
    assert figures.noise_scale_samples(same, 4) == 0.0
    assert figures.batch_bound_samples(same, 4) == 1.0
    assert figures.global_batch_samples(same) == 32.0


def test_orthogonal_gradients_make_the_bound_large() -> None:
    orthogonal = dense(tuple(torch.eye(4)), samples=8)
    assert figures.gradient_diversity(orthogonal, 4) == 1.0
    assert figures.batch_bound_samples(orthogonal, 4) is None, "no signal at all: larger than measurable"
    nearly = dense(tuple(torch.eye(4, dtype=torch.float64) + 0.01), samples=8)
    signal_sq = (
        2 * 0.01 + 4 * 0.01**2
    )  # inner product of any two ranks' gradients; they differ by 1 beyond that
    assert figures.batch_bound_samples(nearly, 4) == pytest.approx(1 + 8 / signal_sq, rel=1e-9)


def test_the_bound_is_splits_over_all_levels() -> None:
    window = report(
        sums(mean_steps=3, mean_sq=2.5, mean_gradient_sq=12.0),
        sums(gradient_sq=99.0),
        sums(mean_steps=2, mean_sq=1.5, mean_gradient_sq=6.0),
        samples=20 * 4 * 6,
    )  # 20 steps of 4 ranks, 6 samples each
    signal_sq, variance = split(18.0 / 4, 4.0, 4, 6)
    assert figures.noise_scale_samples(window, 4) == pytest.approx(variance / signal_sq, rel=1e-12)
    assert figures.batch_bound_samples(window, 4) == pytest.approx(1 + variance / signal_sq, rel=1e-12)
    assert figures.gradient_diversity(window, 4) == pytest.approx(18.0 / (16 * 4.0), rel=1e-12)
    uneven = window.model_copy(update={"samples": 20 * 4 * 6 + 40})  # 6.5 samples a rank and step, on average
    assert figures.noise_scale_samples(uneven, 4) == pytest.approx(variance / signal_sq * 6.5 / 6, rel=1e-12)


def test_the_bound_of_a_population_is_found_exactly() -> None:
    """A window of every way in which 2 ranks may draw 2 of 4 samples: sums are divided last, so the result is exact."""
    samples = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5
    batches = [samples[list(chosen)].mean(0) for chosen in itertools.product(range(4), repeat=2)]
    window = dense(*itertools.product(batches, repeat=2), samples=2)
    exact = float(samples.square().sum(1).mean()) / sq(samples.mean(0))
    assert figures.batch_bound_samples(window, 2) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("window", "ranks"),
    [
        (TWO, 2),
        (report(sums(mean_sq=1.0, mean_gradient_sq=3.0)), 2),
        (report(sums(mean_steps=1, mean_sq=1.0, mean_gradient_sq=1.0)), 1),
        (report(sums(mean_steps=1)), 2),
        (report(sums(mean_steps=1, mean_sq=5e-324, mean_gradient_sq=1e300)), 2),
    ],
    ids=["compressed", "no such step", "one rank", "gradients are zero", "overflow"],
)
def test_no_diversity_where_nothing_can_be_compared(window: WindowReport, ranks: int) -> None:
    assert figures.gradient_diversity(window, ranks) is None
    assert figures.noise_scale_samples(window, ranks) is None
    assert figures.batch_bound_samples(window, ranks) is None


def test_half_the_steps_make_a_window_mostly_dense() -> None:
    assert figures.mostly_dense(report(sums(mean_steps=7), sums(mean_steps=3)))  # of 20 steps
    assert not figures.mostly_dense(report(sums(mean_steps=9)))


def test_no_bound_in_samples_without_samples() -> None:
    window = report(sums(mean_steps=1, mean_sq=0.75, mean_gradient_sq=2.0), samples=0)
    assert figures.gradient_diversity(window, 2) == pytest.approx(2 / 3)
    assert figures.global_batch_samples(window) is None
    assert figures.batch_bound_samples(window, 2) is None
