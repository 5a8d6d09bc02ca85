"""Progress next to dense gradients, as it follows from the sample of coordinates."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gravac import optim
from gravac.memories import Bucket
from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_agent.exchange.sample import Coordinates, GradientSample
from gravac_agent.exchange.tick import StepSums
from gravac_agent.windows.meters import ProgressSums, StepTimes, WindowTotals
from gravac_agent.windows.progress import (
    LOCAL,
    DenseReference,
    Progress,
    second_optimizer,
    steps_elements_alone,
)
from gravac_agent.windows.progress import step as step_once

TIMES = StepTimes(1.0, 0.0, 1.0, 0.0, 0.0, 0.0)


def weights(**shapes: tuple[int, ...]) -> dict[str, nn.Parameter]:
    torch.manual_seed(1)
    return {name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}


def bucket(number: int, parameters: dict[str, nn.Parameter], names: str) -> tuple[Bucket, Tensor]:
    """A bucket of these parameters, and their gradients one after another."""
    chosen = [parameters[name] for name in names]
    flat = torch.cat([torch.zeros(one.numel()) if one.grad is None else one.grad.flatten() for one in chosen])
    return Bucket(number, tuple(names), tuple(one.numel() for one in chosen)), flat


def copy(sample: GradientSample, of: Bucket, flat: torch.Tensor, into: torch.Tensor) -> None:
    sample.copy(flat, sample.of(of), into)


def fill(parameters: dict[str, nn.Parameter], step: int) -> None:
    for at, param in enumerate(parameters.values()):
        param.grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(100 * step + at))


def adamw(groups: Any) -> Optimizer:
    return torch.optim.AdamW(groups, lr=0.01)


def sgd(groups: Any) -> Optimizer:
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-3)


def steps(
    reference: DenseReference,
    optimizer: Optimizer,
    parameters: dict[str, nn.Parameter],
    numbers: range,
    *,
    sent: Callable[[Tensor], Tensor] = lambda raw: raw,
    factor: float = 1.0,
    scale: float = 1.0,
    idle: Callable[[int], str] = lambda step: "",
) -> ProgressSums:
    """Steps with random gradients. ``sent`` changes the exchanged ones, ``factor`` is the trainer's, ``idle`` names
    parameters without a gradient."""
    coordinates = Coordinates(parameters, 0)

    def sample() -> Tensor:
        buckets = (bucket(0, parameters, name) for name in parameters)
        return torch.cat([flat[coordinates.in_bucket(one.names, one.numels)] for one, flat in buckets])

    for step in numbers:
        fill(parameters, step)
        for name in idle(step):
            parameters[name].grad = None
        raw = sample()
        for one in parameters.values():
            if one.grad is not None:
                one.grad = sent(one.grad)
        got = sample()
        reference.exchanged(raw * scale, got * scale)
        for one in parameters.values():
            if one.grad is not None:
                one.grad *= factor
        reference.before_step(scale)
        optimizer.step()
        reference.after_step()
    return reference.pop()


@pytest.mark.parametrize("make", [adamw, sgd])
def test_parameters_without_a_gradient_in_some_steps(make: Callable[[Any], Optimizer]) -> None:
    parameters = weights(a=(30, 40), b=(20, 20), c=(500,))
    optimizer = make(
        [{"params": [parameters["a"], parameters["b"]]}, {"params": [parameters["c"]], "lr": 0.003}]
    )
    reference = DenseReference(optimizer, parameters, Coordinates(parameters, 0))
    idle = steps(
        reference, optimizer, parameters, range(40), idle=lambda step: "b" if step % 3 else "ac" * (step % 2)
    )
    assert idle.steps == 40
    assert idle.moved_sq > 0
    assert idle.ratio == pytest.approx(1.0, abs=1e-6)
    assert idle.moved_sq == pytest.approx(idle.reference_sq, rel=1e-6)


def test_next_to_an_optimizer_by_age_the_reference_is_torchs() -> None:
    """It takes over the moments and not the ages: every element of a dense gradient arrives."""
    parameters = weights(a=(30, 40))
    aged = optim.AdamW(parameters.values(), lr=0.01)
    for step in range(12):
        fill(parameters, step)
        aged.arrived({parameters["a"]: torch.rand(30, 40) < 0.2})
        aged.step()
    assert aged.state[parameters["a"]]["age"].max() > 4
    dense = {"a": nn.Parameter(parameters["a"].detach().clone())}
    other = adamw(dense.values())
    other.state[dense["a"]] = {
        key: value.clone() for key, value in aged.state[parameters["a"]].items() if key != "age"
    }
    fill(parameters, 12)
    fill(dense, 12)
    coordinates = Coordinates(parameters, 0)
    reference = DenseReference(aged, parameters, coordinates)
    raw = bucket(0, parameters, "a")[1][coordinates.in_bucket(("a",), (1200,))]
    before = parameters["a"].detach().flatten()[coordinates.places["a"]].clone()
    reference.exchanged(raw, raw)
    reference.before_step()
    aged.step()
    reference.after_step()
    other.step()
    way = dense["a"].detach().flatten()[coordinates.places["a"]] - before
    found = reference.pop()
    assert found.reference_sq == pytest.approx(float(way.double() @ way.double()), rel=1e-5)
    assert abs(found.moved_sq / found.reference_sq - 1.0) > 0.1, "the optimizer's own step is by age"


@pytest.mark.parametrize("make", [adamw, sgd])
def test_it_begins_where_the_optimizer_stands(make: Callable[[Any], Optimizer]) -> None:
    parameters = weights(a=(30, 40), b=(20, 20), c=(500,))
    optimizer = make(list(parameters.values()))
    for step in range(12):
        fill(parameters, step)
        if step < 4:
            parameters["b"].grad = None  # so that its state is of fewer steps
        optimizer.step()
    found = steps(
        DenseReference(optimizer, parameters, Coordinates(parameters, 0)),
        optimizer,
        parameters,
        range(12, 40),
    )
    assert (found.steps, found.ratio) == (28, pytest.approx(1.0, abs=1e-6))


@pytest.mark.parametrize("make", [adamw, sgd])
@pytest.mark.parametrize("factor", [1.0, 0.2])
def test_a_loss_scale_changes_nothing(make: Callable[[Any], Optimizer], factor: float) -> None:
    """Neither where the trainer clips, nor where it does not: only clipping depends on the length of a gradient."""
    found = []
    for scale in (1.0, 1024.0):
        parameters = weights(a=(30, 40), b=(20, 20))
        optimizer = make(list(parameters.values()))
        reference = DenseReference(optimizer, parameters, Coordinates(parameters, 0))
        found.append(
            steps(
                reference,
                optimizer,
                parameters,
                range(30),
                sent=lambda raw: raw / 2,
                factor=factor,
                scale=scale,
            )
        )
    assert found[1].ratio == pytest.approx(found[0].ratio, rel=1e-5)
    clipped = factor < 1.0
    if make is sgd:  # a clipped dense gradient is as long as the clipped exchanged one
        assert found[0].ratio == pytest.approx(1.0 if clipped else 0.5, abs=0.03)


def test_another_order_in_memory() -> None:
    """DDP's buckets hold gradients as they lie in memory."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(16, 8, 3, 3).to(memory_format=torch.channels_last))
    optimizer = sgd([weight])
    coordinates = Coordinates({"a": weight}, 0)
    reference = DenseReference(optimizer, {"a": weight}, coordinates)
    for _ in range(10):
        weight.grad = torch.randn_like(weight)
        flat = weight.grad.permute(0, 2, 3, 1).flatten()
        raw = flat[coordinates.in_bucket(("a",), (weight.numel(),))]
        reference.exchanged(raw, raw)
        reference.before_step()
        optimizer.step()
        reference.after_step()
    assert reference.pop().ratio == pytest.approx(1.0, abs=1e-6)


def test_parameters_that_are_not_finite_end_with_their_block() -> None:
    parameters = weights(a=(30, 40))
    kept = parameters["a"].detach().clone()
    optimizer = sgd(list(parameters.values()))
    reference = DenseReference(optimizer, parameters, Coordinates(parameters, 0))
    steps(reference, optimizer, parameters, range(3))
    with torch.no_grad():
        parameters["a"].fill_(math.nan)
    assert steps(reference, optimizer, parameters, range(3, 6)).steps == 0
    with torch.no_grad():
        parameters["a"].copy_(kept)
    optimizer.state.clear()
    again = steps(reference, optimizer, parameters, range(6, 12))
    assert (again.steps, again.ratio) == (6, pytest.approx(1.0, abs=1e-6))


@pytest.mark.parametrize("kind", sorted(LOCAL, key=lambda kind: kind.__name__))
@torch.no_grad()
def test_known_optimizers_step_each_element_alone_and_draw_nothing(kind: type[Optimizer]) -> None:
    start, *gradients = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))
    some = torch.randperm(48, generator=torch.Generator().manual_seed(1))[:20]
    state = torch.random.get_rng_state()
    matrix, elements = nn.Parameter(start.clone()), nn.Parameter(start.flatten()[some])
    assert steps_elements_alone(kind([matrix]))
    first = kind([matrix])
    second = second_optimizer(first, first.param_groups, [(0, elements)])
    for gradient in gradients:
        matrix.grad, elements.grad = gradient.clone(), gradient.flatten()[some]
        step_once(first)
        step_once(second)
    torch.testing.assert_close(matrix.flatten()[some], elements, rtol=1e-5, atol=1e-6)
    assert not torch.equal(matrix, start)
    assert torch.equal(torch.random.get_rng_state(), state), "the training's random numbers stay the same"


class Counted(torch.optim.SGD):
    """A user's optimizer: nothing of it may run but what the trainer calls."""

    made = 0

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        Counted.made += 1


@pytest.mark.parametrize("make", [torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.SparseAdam, Counted])
def test_other_optimizers_are_not_followed_and_not_made_again(make: Callable[[Any], Optimizer]) -> None:
    one = Followed(make)
    assert not one.progress.on
    (note,) = one.notes
    assert f"{make.__qualname__} is not known to step each element of a parameter for itself" in note  # type: ignore[attr-defined]
    assert Counted.made <= 1


def test_no_hook_of_a_training_sees_the_second_optimizer() -> None:
    parameters = weights(a=(30, 40))
    optimizer = adamw(list(parameters.values()))
    reference = DenseReference(optimizer, parameters, Coordinates(parameters, 0))
    seen: list[object] = []
    handle = register_optimizer_step_pre_hook(lambda one, *_: seen.append(one))
    steps(reference, optimizer, parameters, range(2))
    handle.remove()
    assert seen == [optimizer] * 2


class Followed:
    """``Progress`` of one parameter, and windows that it reports to."""

    def __init__(self, optimizer: Callable[[Any], Optimizer] = adamw) -> None:
        self.parameters = weights(a=(30, 40))
        self.optimizer = optimizer(list(self.parameters.values()))
        coordinates = Coordinates(self.parameters, 0)
        self.sample = GradientSample(coordinates)
        self.notes: list[str] = []
        self.progress = Progress(self.optimizer, self.parameters, coordinates, self.notes.append)
        self.window = WindowTotals(0, 0)

    def step(self, number: int, plan: StepPlan, *, taken: bool = True) -> None:
        fill(self.parameters, number)
        self.sample.begin_step()
        copy(self.sample, *bucket(0, self.parameters, "a"), self.sample.raw)
        self.window.add(plan, StepSums(), TIMES, 1, 1, True)
        self.progress.exchanged(plan, self.sample.raw, self.sample.raw, self.window)
        if taken:
            self.progress.before_step(1.0, False)
            self.optimizer.step()
            self.progress.after_step(evaluated=False)


def plan(cf: float, epoch: int = 0) -> StepPlan:
    return StepPlan(Directive(epoch, "hold", cf, cf, 0.0), cf)


def test_progress_is_counted_by_level_of_the_window() -> None:
    one = Followed()
    for number, (cf, epoch) in enumerate([(1, 0)] * 3 + [(10, 0)] * 4 + [(10, 1)] * 2 + [(1, 0)]):
        one.step(number, plan(cf, epoch))
    one.step(10, plan(1.0, 0), taken=False)
    one.progress.close_window(one.window)
    found = {(epoch, cf): level.progress for (epoch, _, cf), level in one.window.levels.items()}
    assert {key: sums.steps for key, sums in found.items()} == {(0, 1.0): 4, (0, 10.0): 4, (1, 10.0): 2}
    assert all(sums.ratio == pytest.approx(1.0, abs=1e-6) for sums in found.values())
    first, one.window = one.window, WindowTotals(1, 11)
    one.step(11, plan(1.0))
    one.progress.close_window(one.window)
    (level,) = one.window.levels.values()
    assert level.progress.steps == 1, (
        "what was exchanged before the window and never stepped with does not count"
    )
    assert sum(level.progress.steps for level in first.levels.values()) == 10


def test_products_with_the_next_gradient_stay_within_a_plan() -> None:
    one = Followed()
    raws = []
    for number, cf in enumerate((1, 1, 10, 10, 10)):
        one.step(number, plan(cf))
        raws.append(one.sample.raw.clone())
    one.progress.close_window(one.window)
    dense, sent = (level.progress for level in one.window.levels.values())
    assert dense.raw_dot_next == pytest.approx(float(raws[0] @ raws[1]))
    assert sent.raw_dot_next == pytest.approx(float(raws[2] @ raws[3] + raws[3] @ raws[4]))


def test_what_fails_turns_it_off_with_one_note() -> None:
    one = Followed()
    one.step(0, plan(1.0))
    one.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    for number in (1, 2):
        one.step(number, plan(1.0))
    one.progress.close_window(one.window)
    assert not one.progress.on
    (note,) = one.notes
    assert note.endswith("is not measured: the optimizer cannot be followed any more.")
