"""Clipping by the norm of the mean raw gradient: the estimate, what counts, spikes, and what is left to torch."""

import math

import pytest
import torch
from torch import Tensor, nn

from gravac_agent.exchange.raw_mean import SIZE
from gravac_agent.exchange.tick import StepSums
from gravac_agent.windows.clipping import SMOOTHING, SPIKE, Clipper

RANKS = 4
NONE = (0.0,) * SIZE


def numbers(mean_sq: float, single_sq: float) -> list[float]:
    """What the ranks' meters add up to for these energies."""
    return [math.sqrt(mean_sq) * RANKS, *(0.0,) * (SIZE - 2), single_sq * RANKS]


def sums(single_sq: float, residual_share: float = 0.0, residual_sq: float = 1e6) -> StepSums:
    """Of a step. Unless it says otherwise, the codec keeps back so much that nothing follows for the norm."""
    whole = single_sq * RANKS
    return StepSums(
        gradient_sq=whole,
        compensated_sq=whole / (1.0 - residual_share),
        residual_sq=residual_sq * RANKS,
    )


def weights(*gradients: Tensor) -> list[nn.Parameter]:
    found = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(found, gradients, strict=True):
        parameter.grad = gradient.clone()
    return found


def grads(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [param.grad for param in parameters if param.grad is not None]


GRADIENTS = torch.tensor([3.0, 0.0, 4.0]), torch.tensor([[12.0], [0.0]])
"""Of norm 13."""


def test_the_smaller_norm_counts() -> None:
    """Codecs make it longer, and then the gradient must shrink as the dense one would have."""
    for dense_norm, counts in ((2.0, 2.0), (50.0, 13.0)):
        clipper, parameters = Clipper(RANKS), weights(*GRADIENTS)
        single_sq = dense_norm**2 * 2.0  # ranks differ: their own norm is √2 times that of the mean
        clipper.end_step(sums(single_sq), numbers(dense_norm**2, single_sq), raw=False)
        clipped = clipper.clip(parameters, 1.0)
        assert float(clipped.norm) == 13.0
        for grad, before in zip(grads(parameters), GRADIENTS, strict=True):
            torch.testing.assert_close(grad, before / counts)


@pytest.mark.parametrize(
    ("residuals", "counts"),
    [
        ((0.0, 0.0), 13.0),  # nothing is kept back: what came out is the mean, whatever the estimate
        ((0.0, 25.0), 12.0),
        ((25.0, 44.0), 10.0),  # √(169 - 25 - 44)
        ((25.0, 119.0), 2.0),  # more than half of what came out may be the residual's: it says nothing
    ],
)
def test_the_estimate_counts_as_far_as_the_residual_allows(
    residuals: tuple[float, float], counts: float
) -> None:
    """It says 2 where the norm is 13. The second step's mean has what the first one kept, and lacks what it keeps."""
    clipper, parameters = Clipper(RANKS), weights(*GRADIENTS)
    for residual_sq in residuals:
        clipper.end_step(sums(4.0, residual_sq=residual_sq), numbers(4.0, 4.0), raw=False)
    clipper.clip(parameters, 1.0)
    torch.testing.assert_close(grads(parameters)[0], GRADIENTS[0] / counts)


@pytest.mark.parametrize("why", ["momentum in the memory", "nonfinite step between"])
def test_the_residual_is_known_or_says_nothing(why: str) -> None:
    clipper, parameters = Clipper(RANKS), weights(*GRADIENTS)
    clipper.end_step(sums(4.0, residual_sq=25.0), numbers(4.0, 4.0), raw=False)
    if why == "nonfinite step between":
        clipper.end_step(StepSums(nonfinite=1.0, residual_sq=math.nan), NONE, raw=False)
    amplification = 1.5 if why == "momentum in the memory" else 1.0
    clipper.end_step(sums(4.0, residual_sq=44.0), numbers(4.0, 4.0), False, amplification)
    clipper.clip(parameters, 1.0)
    counts = {"momentum in the memory": 3.0, "nonfinite step between": 10.0}[why]
    torch.testing.assert_close(grads(parameters)[0], GRADIENTS[0] / counts)


def test_a_mean_is_taken_to_be_no_longer_than_the_gradients_it_is_made_of() -> None:
    """An estimate may err upwards; then a gradient would be cut further than any dense one could be."""
    clipper, parameters = Clipper(RANKS), weights(*GRADIENTS)
    clipper.end_step(sums(4.0), numbers(9.0, 4.0), raw=False)
    clipper.clip(parameters, 1.0)
    torch.testing.assert_close(grads(parameters)[0], GRADIENTS[0] / 2.0)


def test_the_sample_gives_a_ratio_and_the_sums_the_size() -> None:
    """The ratio is smoothed over steps; the energy is the step's own, as gradients may grow at once."""
    clipper, parameters = Clipper(RANKS), weights(*GRADIENTS)
    clipper.end_step(sums(1.0), numbers(0.25, 1.0), raw=False)
    clipper.end_step(sums(16.0), numbers(4.0, 16.0), raw=False)
    clipper.clip(parameters, 1.0)
    torch.testing.assert_close(grads(parameters)[0], GRADIENTS[0] / 2.0)


@pytest.mark.parametrize(("residual_sq", "counts"), [(1e6, 2.0), (69.0, 10.0)])
def test_the_optimizers_gradients_are_in_units_of_the_loss_scale(residual_sq: float, counts: float) -> None:
    clipper, parameters = Clipper(RANKS), weights(*GRADIENTS)
    step = sums(16.0 * 1024**2, residual_sq=residual_sq * 1024**2)
    clipper.end_step(step, numbers(4.0, 16.0), raw=False)
    clipper.clip(parameters, 1.0, scale=1024.0)
    torch.testing.assert_close(grads(parameters)[0], GRADIENTS[0] / counts)


@pytest.mark.parametrize("max_norm", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("why", ["raw", "no step", "twice", "another norm", "not measured", "nonfinite"])
def test_what_is_left_to_torch_has_its_bits(why: str, max_norm: float) -> None:
    clipper, ours, theirs = Clipper(RANKS), weights(*GRADIENTS), weights(*GRADIENTS)
    norm_type = math.inf if why == "another norm" else 2.0
    if why != "no step":
        step = sums(16.0)
        if why == "nonfinite":
            step.nonfinite = 1.0
        clipper.end_step(step, NONE if why == "not measured" else numbers(4.0, 16.0), raw=why == "raw")
    if why == "twice":
        clipper.clip(ours, 3.0)
        theirs = weights(*grads(ours))
    norm = nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    clipped = clipper.clip(ours, max_norm, norm_type)
    assert torch.equal(clipped.norm, norm)
    assert not clipped.reaches_memory
    for grad, other in zip(grads(ours), grads(theirs), strict=True):
        assert torch.equal(grad, other)


def test_a_non_finite_norm_changes_no_average() -> None:
    clipper = Clipper(RANKS)
    clipper.end_step(sums(16.0), numbers(4.0, 16.0), raw=False)
    clipper.clip(weights(*GRADIENTS), 1.0)
    before = clipper.state()
    clipper.end_step(StepSums(nonfinite=1.0), numbers(math.nan, math.nan), raw=False)
    bad = weights(torch.tensor([1.0, math.nan]))
    assert math.isnan(float(clipper.clip(bad, 1.0).norm))
    assert all(bool(grad.isnan().all()) for grad in grads(bad)), "as torch"
    assert clipper.state() == before
    with pytest.raises(RuntimeError, match="non-finite"):
        clipper.clip(bad, 1.0, error_if_nonfinite=True)


def test_the_rest_of_a_spike_is_cut_as_its_part_was() -> None:
    """As far as the residual is made of it; a usual step leaves the residual alone."""

    def after(norm: float, residual_share: float) -> float:
        clipper = Clipper(RANKS)
        for size in (1.0, 1.0, norm):
            clipper.end_step(sums(size**2, residual_share), numbers(size**2, size**2), raw=False)
            factor = clipper.clip(weights(torch.tensor([size])), 1.0).rest
        return factor

    assert after(1.0, 0.5) == after(0.99 / SPIKE, 0.0) == 1.0
    assert after(100.0, 0.0) == pytest.approx(0.01, rel=1e-3)
    assert after(100.0, 0.5) == pytest.approx(1.0 - 0.99 / 2, rel=1e-3)


def factors(*norms: float) -> tuple[Clipper, list[tuple[float, float]]]:
    """Share and turn of steps whose gradients have these norms, clipped to 1 without anything left out."""
    clipper, found = Clipper(RANKS), []
    for norm in norms:
        clipper.end_step(sums(norm**2), NONE, raw=True)
        clipped = clipper.clip(weights(torch.tensor([norm])), 1.0)
        found.append((clipped.share, clipped.turn))
    return clipper, found


def test_what_waits_is_cut_next_to_what_is_usual() -> None:
    """Not at all where every step is cut alike, as it is cut when it arrives. What is usual changes as a rate does."""
    clipper, found = factors(0.5, 1.0, 0.9)
    assert found == [(1.0, 1.0)] * 3
    assert not clipper.cuts
    assert factors(4.0, 4.0, 4.001)[1] == [(1.0, 1.0)] * 3
    _, found = factors(1.0, 4.0)
    assert found[1] == (pytest.approx(0.25), pytest.approx(1.0 / (1.0 - SMOOTHING * 0.75)))
    clipper, found = factors(*[4.0] * 3, *[0.5] * 80)
    assert clipper.cuts
    assert all(share >= 1.0 >= turn for share, turn in found)
    assert math.prod(turn for _, turn in found) == pytest.approx(0.25, rel=2e-3)
    assert found[-1] == (1.0, 1.0), "in the end no residual is gone through"


def test_averages_survive_a_checkpoint() -> None:
    one, two = Clipper(RANKS), Clipper(RANKS)
    two.restore(one.state())
    assert math.isnan(two.state()[2])
    one.end_step(sums(1.0), numbers(0.3, 1.0), raw=False)
    one.clip(weights(*GRADIENTS), 1.0)
    two.restore(one.state())
    clipped = []
    for clipper in (one, two):
        parameters = weights(*GRADIENTS)
        clipper.end_step(sums(2.0), numbers(1.0, 2.0), raw=False)
        clipper.clip(parameters, 0.1)
        clipped.append(grads(parameters))
    assert all(torch.equal(a, b) for a, b in zip(*clipped, strict=True))
