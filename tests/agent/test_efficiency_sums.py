"""What surveyed steps measure of the update, and in the optimizer's units: against sums over the tensors."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gravac import aggregators, memories
from gravac.compressors import Key
from gravac.memories import Bucket
from gravac_agent.exchange import efficiency_sums
from gravac_agent.exchange.compensation import NO_SURVEY, Survey
from gravac_agent.exchange.efficiency_sums import EfficiencySums
from gravac_agent.exchange.encoder import Compressed, Encoder, Uncompressed
from gravac_agent.exchange.plan import Directive, Plan
from gravac_agent.exchange.tick import StepSums
from gravac_agent.state.second_moments import SecondMoments
from tests.agent.test_encode import BUCKET, N, Twins, gradients


class Reduced:
    """The mean of equal buffers is each of them."""

    def mean_into(self, buffer: Tensor) -> None:
        return


def made(compressor: str = "topk", memory: str = "residual") -> Encoder:
    return Encoder(compressor, aggregators.build(compressor, Twins()), memories.build(memory))


def step_of(ours: Encoder, cf: float, gradient: Tensor, number: int, survey: Survey) -> Tensor:
    """Encode, exchange between two equal ranks, and decode. Returns the mean."""
    buffer, sums = gradient.clone(), StepSums()
    plan = Plan(Directive(1, "hold", cf, cf, 0.0), cf)
    match ours.encode(plan, BUCKET, buffer, Key(0, number, 0, 0), sums, survey):
        case Compressed(transfer):
            transfer.work.wait()
            ours.decode(BUCKET, transfer, buffer, in_place=False, survey=survey)
        case Uncompressed(raw):
            ours.decode(BUCKET, Reduced(), buffer, in_place=True, survey=survey, raw=raw)  # type: ignore[arg-type]
    ours.commit()
    assert sums.failed == 0
    return buffer


def dot(one: Tensor, other: Tensor) -> float:
    return float(one.double() @ other.double())


@pytest.mark.parametrize("compressor", ["topk", "int4", "powersgd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sums_are_those_of_the_tensors(compressor: str, dtype: torch.dtype) -> None:
    ours, divisor = made(compressor), 0.01 + torch.rand(N, generator=torch.Generator().manual_seed(5))
    ours.efficiency.divisor = lambda bucket, every: divisor[::every]
    for number, gradient in zip(range(4), gradients(0.1), strict=False):
        survey, given = Survey(True), gradient.to(dtype)
        update = step_of(ours, 8.0, given, number, survey)
        found = survey.efficiency.complete()
        assert (found.update_steps, found.scaled_steps) == (1.0, 1.0)
        assert found.update_sq == pytest.approx(dot(update, update), rel=1e-4)
        assert found.update_dot_gradient == pytest.approx(dot(update, given), rel=1e-3)
        held = torch.cat([ours.memory.state_dict()[name] for name in BUCKET.names]) / divisor
        scaled = given / divisor
        assert found.scaled_gradient_sq == pytest.approx(dot(scaled, scaled), rel=1e-4)
        assert found.scaled_residual_sq == pytest.approx(dot(held, held), rel=1e-4)
        slack = 1e-4 * math.sqrt(dot(held, held) * dot(scaled, scaled))
        assert found.scaled_residual_dot_gradient == pytest.approx(dot(held, scaled), abs=slack)


def test_a_dense_step_measures_its_update_where_it_knows_the_gradient() -> None:
    """Of equal ranks ⟨u, g⟩ = ‖u‖². With a residual in it, the raw gradient is gone by then."""
    ours, source = made(), gradients()
    survey, gradient = Survey(True), next(source)
    step_of(ours, 1.0, gradient, 0, survey)
    found = survey.efficiency.complete()
    assert (found.update_steps, found.scaled_steps) == (1.0, 0.0)
    assert found.update_sq == found.update_dot_gradient == pytest.approx(dot(gradient, gradient), rel=1e-5)
    step_of(ours, 8.0, next(source), 1, NO_SURVEY)
    step_of(ours, 1.0, next(source), 2, survey := Survey(True))
    assert survey.efficiency.complete() == EfficiencySums()


def test_other_steps_measure_nothing_and_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("not in this step")

    ours = made()
    ours.efficiency.divisor = never  # type: ignore[assignment]
    monkeypatch.setattr(efficiency_sums.EfficiencyMeter, "keep", never)
    step_of(ours, 8.0, next(gradients()), 0, NO_SURVEY)
    assert NO_SURVEY.efficiency == EfficiencySums()


def test_what_fails_is_left_out_and_the_step_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def broken(bucket: Bucket, every: int) -> Tensor:
        raise RuntimeError("no moments today")

    ours, survey = made(), Survey(True)
    ours.efficiency.divisor = broken
    step_of(ours, 8.0, next(gradients()), 0, survey)
    found = survey.efficiency.complete()
    assert (found.update_steps, found.scaled_steps, found.scaled_gradient_sq) == (1.0, 0.0, 0.0)
    assert "not measured in the optimizer's units" in caplog.text
    ours.efficiency.divisor = lambda bucket, every: None
    step_of(ours, 8.0, next(gradients()), 1, survey := Survey(True))
    assert survey.efficiency.complete().scaled_steps == 0.0


def test_ranks_are_added_up_and_those_that_differ_in_steps_are_left_out() -> None:
    one, two = EfficiencySums(2, 5.0, 3.0, 2, 1.0, 2.0, -1.0), EfficiencySums(2, 5.0, 1.0, 2, 4.0, 1.0, 0.5)
    assert EfficiencySums.over_ranks([one.values(), two.values()]) == EfficiencySums(
        2, 5.0, 4.0, 2, 5.0, 3.0, -0.5
    )
    two.scaled_steps = 1
    assert EfficiencySums.over_ranks([one.values(), two.values()]) == EfficiencySums(2, 5.0, 4.0)
    two.update_steps = 1
    assert EfficiencySums.over_ranks([one.values(), two.values()]) == EfficiencySums()


def test_of_a_large_bucket_evenly_spread_elements_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficiency_sums, "MOST_SCALED", 4000)
    ours, divisor, asked = made(), torch.full((N,), 0.5), list[int]()

    def divide(bucket: Bucket, every: int) -> Tensor:
        asked.append(every)
        return divisor[::every]

    ours.efficiency.divisor = divide
    survey, gradient = Survey(True), next(gradients())
    step_of(ours, 8.0, gradient, 0, survey)
    assert asked == [11]
    assert survey.efficiency.scaled_gradient_sq == pytest.approx(4 * dot(gradient, gradient), rel=0.1)


class Holder:
    """A wrapper, as Accelerate's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_the_divisor_is_what_the_optimizer_divides_by(make: Any) -> None:
    """Derived from the steps that it really makes: without momentum, a step is rate · gradient / divisor."""
    torch.manual_seed(0)
    weights = {"a": torch.randn(6, 5, requires_grad=True), "b": torch.randn(4, requires_grad=True)}
    bucket = Bucket(0, ("b", "a"), (4, 30))
    options: dict[str, Any] = {"betas": (0.0, 0.9)} if make is not torch.optim.RMSprop else {}
    optimizer = make(weights.values(), lr=0.1, weight_decay=0.0, **options)
    found = SecondMoments(Holder(optimizer), weights)
    assert found.divisor(bucket) is None, "before its first step"
    for _ in range(3):
        for each in weights.values():
            each.grad = torch.randn_like(each)
        before = torch.cat([weights[name].detach().flatten() for name in bucket.names])
        optimizer.step()
        moved = before - torch.cat([weights[name].detach().flatten() for name in bucket.names])
    gradient = torch.cat([weights[name].grad.flatten() for name in bucket.names])  # type: ignore[union-attr]
    divisor = found.divisor(bucket)
    assert divisor is not None
    torch.testing.assert_close(0.1 * gradient / divisor, moved, rtol=1e-3, atol=1e-6)
    for every in (1, 2, 3, 7, 35):
        sampled = found.divisor(bucket, every)
        assert sampled is not None
        torch.testing.assert_close(sampled, divisor[::every])


def test_without_second_moments_there_is_no_divisor() -> None:
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.grad = torch.ones(3)
    optimizer.step()
    assert SecondMoments(optimizer, {"a": weight}).divisor(Bucket(0, ("a",), (3,))) is None
    assert SecondMoments(torch.optim.Adam([weight]), {}).divisor(Bucket(0, ("a",), (3,))) is None
