"""The dense reference: how far the parameters went of the way that dense gradients would have taken them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from gravac_agent.exchange.sample import Coordinates
from gravac_agent.windows.meters import ProgressSums
from gravac_agent.windows.progress import BLOCK_STEPS, DenseReference

Make = Callable[[Any], Optimizer]
SGD_MOMENTUM: Make = lambda parameters: SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)  # noqa: E731
ADAMW: Make = lambda parameters: AdamW(parameters, lr=1e-3)  # noqa: E731


def trained(
    make: Make, share: float = 1.0, clip: float | None = None, steps: int = 2 * BLOCK_STEPS, late: float = 1.0
) -> tuple[DenseReference, ProgressSums]:
    """Train where ``share`` of each gradient is exchanged. ``late``: factor of the learning rate in the second half."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 5))
    optimizer = make(model.parameters())
    named = dict(model.named_parameters())
    coordinates = Coordinates(named, 3)
    reference = DenseReference(optimizer, named, coordinates)
    numels = [one.numel() for one in named.values()]
    places = coordinates.in_bucket(list(named), numels)
    for step in range(steps):
        if step == steps // 2:
            for group in optimizer.param_groups:
                group["lr"] *= late
        x = torch.randn(32, 20)
        optimizer.zero_grad()
        (model(x) - x[:, :5]).square().mean().backward()
        flat = torch.cat([param.grad.flatten() for param in model.parameters() if param.grad is not None])
        sent = share * flat
        reference.exchanged(flat[places], sent[places])
        for one, piece in zip(model.parameters(), sent.split(numels), strict=True):
            one.grad = piece.view_as(one).clone()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        reference.before_step()
        optimizer.step()
        reference.after_step()
    return reference, reference.pop()


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("make", [SGD_MOMENTUM, ADAMW], ids=["sgd", "adamw"])
def test_dense_training_goes_the_whole_way(make: Make, clip: float | None) -> None:
    """With clipping, with a state, and when the learning rate changes."""
    _, sums = trained(make, clip=clip, late=0.3)
    assert sums.steps == 2 * BLOCK_STEPS
    assert sums.ratio == pytest.approx(1.0, abs=1e-4)
    assert sums.moved_sq == pytest.approx(sums.reference_sq, rel=1e-3)


def test_half_the_gradient_is_half_the_way_under_sgd_and_all_of_it_under_adam() -> None:
    """Adam divides by the size of what it is given."""
    plain: Make = lambda parameters: SGD(parameters, lr=0.01)  # noqa: E731
    assert trained(plain, 0.5)[1].ratio == pytest.approx(0.5, abs=1e-4)
    without_decay: Make = lambda parameters: AdamW(parameters, lr=1e-3, weight_decay=0.0)  # noqa: E731
    assert trained(without_decay, 0.5)[1].ratio == pytest.approx(1.0, abs=0.01)


def test_clipping_gives_the_dense_gradient_its_own_length() -> None:
    """Half of each gradient is exchanged. Clipped, both have the same length: nothing is lost."""
    plain: Make = lambda parameters: SGD(parameters, lr=0.01)  # noqa: E731
    ratio = trained(plain, 0.5, clip=0.01)[1].ratio
    assert ratio == pytest.approx(1.0, abs=0.02)


def test_taking_the_sums_ends_the_block_and_begins_new_ones() -> None:
    reference, sums = trained(SGD_MOMENTUM, steps=BLOCK_STEPS + 5)
    assert sums.steps == BLOCK_STEPS + 5
    empty = reference.pop()
    assert (empty.steps, empty.reference_sq, empty.ratio) == (0, 0.0, None)


def test_a_step_without_an_exchange_does_not_count() -> None:
    """Such as one that was rolled back: what was exchanged before it must not be taken for its gradient."""
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    named = dict(model.named_parameters())
    coordinates = Coordinates(named, 0)
    reference = DenseReference(optimizer, named, coordinates)

    def step(exchanged: bool) -> None:
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        if exchanged:
            flat: Tensor = torch.ones(10)
            sampled = flat[coordinates.in_bucket(["weight", "bias"], [8, 2])]
            reference.exchanged(sampled, sampled)
        reference.before_step()
        optimizer.step()
        reference.after_step()

    for exchanged in (True, False, True):
        step(exchanged)
    sums = reference.pop()
    assert sums.steps == 2
    assert sums.ratio == pytest.approx(1.0)


def test_another_class_is_followed_by_one_of_its_own() -> None:
    """LAMB moves a tensor by its norm, which a sample has less of, so that the way is shorter but not none."""
    lamb = pytest.importorskip("gravac_lab.tasks.optimizers").Lamb
    _, sums = trained(lambda parameters: lamb(parameters, lr=1e-2))
    assert sums.ratio is not None
    assert sums.ratio > 0.5


@pytest.mark.parametrize(("as_dense", "ratio"), [(True, 4.0), (False, 1.0)])
def test_the_norm_that_clipping_went_by_is_taken_into_account(as_dense: bool, ratio: float) -> None:
    """What is exchanged is four times as long: clipped by a dense norm it moves as much further, by its own not."""
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    named = dict(model.named_parameters())
    coordinates = Coordinates(named, 0)
    reference = DenseReference(optimizer, named, coordinates)
    flat = torch.ones(10)
    for _ in range(BLOCK_STEPS):
        sampled = flat[coordinates.in_bucket(["weight", "bias"], [8, 2])]
        reference.exchanged(sampled, 4.0 * sampled)
        share = 0.1 if as_dense else 0.1 / 4.0
        for param in model.parameters():
            param.grad = torch.full_like(param, 4.0 * share)
        reference.before_step(clipped_as_dense=as_dense)
        optimizer.step()
        reference.after_step()
    assert reference.pop().ratio == pytest.approx(ratio, rel=1e-4)
