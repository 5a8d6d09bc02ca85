"""The curve of gain, as it is surveyed in some steps of a window."""

import itertools
from typing import Any

import pytest
import torch

from gravac.compressors import Key
from gravac.kernels import tally
from gravac.memories import Bucket
from gravac.signals.spectrum import LADDER
from gravac_agent.exchange.compensation import SURVEYED_STEPS, Survey, is_surveyed
from gravac_agent.exchange.tick import StepSums
from tests.agent.exchange.test_channel import channels, gradients, plan
from tests.support.maths.backends import on

N = 40_000
BUCKET = Bucket(0, ("a", "b"), (N - 100, 100), ((N - 100,), (100,)))


@pytest.mark.parametrize("kernels", ["cpu", "reference"])
def test_the_curve_is_at_most_the_gain_and_close_to_it(kernels: Any) -> None:
    with on(kernels):
        ours = channels("topk", "residual")
        for step, gradient in zip(range(6), gradients(), strict=False):
            sums, survey = StepSums(), Survey(True)
            ours.channel(BUCKET).encode(plan(10.0, 10.0, 100.0), gradient, Key(0, step, 0, 0), sums, survey)
            ours.commit()
        assert survey.curve is not None
        gains = survey.curve.gains()
        for cf, kept_sq in ((10.0, sums.minimum_sq), (100.0, sums.candidate_sq)):
            found, true = gains[LADDER.index(cf)], kept_sq / sums.compensated_sq
            assert found is not None
            assert true - 2e-3 <= found <= true


def test_a_dense_step_without_a_residual_is_surveyed_too() -> None:
    ours, survey = channels("topk", "residual"), Survey(True)
    gradient = next(gradients())
    ours.channel(BUCKET).encode(plan(1.0, 1.0, 1.0), gradient, Key(0, 0, 0, 0), StepSums(), survey)
    assert survey.curve is not None
    top = gradient.abs().topk(N // 10).values.double().square().sum() / gradient.double().square().sum()
    assert survey.curve.gains()[LADDER.index(10.0)] == pytest.approx(float(top), abs=2e-3)


@pytest.mark.parametrize("cf", [1.0, 10.0])
def test_a_non_finite_step_has_no_curve(cf: float, caplog: pytest.LogCaptureFixture) -> None:
    ours, survey, sums, gradient = channels("topk", "residual"), Survey(True), StepSums(), next(gradients())
    gradient[3] = torch.nan
    ours.channel(BUCKET).encode(plan(cf, cf, cf), gradient, Key(0, 0, 0, 0), sums, survey)
    assert sums.nonfinite == 1
    assert survey.curve is None
    assert not caplog.records, "nothing has failed"


def test_a_curve_that_fails_does_not_fail_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(counted: object) -> None:
        raise RuntimeError("no spectrum today")

    monkeypatch.setattr("gravac.signals.spectrum.Spectrum.of", broken)
    ours, survey, sums = channels("topk", "residual"), Survey(True), StepSums()
    encoded = ours.channel(BUCKET).encode(
        plan(10.0, 10.0, 10.0), next(gradients()), Key(0, 0, 0, 0), sums, survey
    )
    assert encoded.transfer is not None
    assert survey.curve is None
    assert sums.failed == 0
    assert sums.residual_sq > 0


def test_a_step_like_the_last_one_makes_no_histogram(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = list[int]()

    def counting(gradient: torch.Tensor, *terms: Any, **more: Any) -> Any:
        counted.append(step)
        return tally(gradient, *terms, **more)

    monkeypatch.setattr("gravac_agent.exchange.compensation.tally", counting)
    with on("cpu"):
        ours, source = channels("topk", "residual"), gradients()
        for step in range(40):
            ours.channel(BUCKET).encode(plan(50.0, 50.0, 50.0), next(source), Key(0, step, 0, 0), StepSums())
            ours.commit()
            if step == 20:
                counted.clear()
    assert len(counted) <= 2


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7, 10, 50, 1000])
def test_few_steps_of_a_window_are_surveyed(window: int) -> None:
    chosen = [step for step in range(window) if is_surveyed(step, window)]
    assert len(chosen) == min(SURVEYED_STEPS, window)
    assert chosen[-1] == window - 1
    gaps = {after - before for before, after in itertools.pairwise(chosen)}
    assert len(gaps) <= 1
