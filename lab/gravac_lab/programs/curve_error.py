"""The error of the spectrum's gains on gradients of a language model in training with error feedback."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gravac.compressors.base import kept_count
from gravac.kernels import take_top, tally
from gravac.signals.spectrum import Spectrum
from gravac_lab.programs.paired import compare
from gravac_lab.tasks import lm

CFS = tuple(1.5 * (1000 / 1.5) ** (step / 60) for step in range(61))
"""1.5 to 1000."""
TRAINED_AT = (1.0, 10.0, 100.0, 1000.0)


def accuracy(width: int, steps: int, pairs: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each CF that a model trains at.

    ``gain_error`` is the most that the curve is too low on the whole gradient, and ``cf`` is where;
    ``parameters_gain_error`` is the same on each parameter alone; ``above_truth`` is the most that the curve is too
    high. Seconds are of pass and curve, the baseline's of sorting.
    """
    for trained_at in TRAINED_AT:
        p, pieces = train(width, steps, trained_at)
        off, *others = (_shortfalls(x) for x in (p, *pieces))
        yield compare(
            f"spectrum, trained at {trained_at:g}x",
            "sorting",
            p.numel(),
            CFS[off.index(max(off))],
            pairs,
            baseline=lambda x=p: sorted_gains(x),  # type: ignore[misc]
            ours=lambda x=p: spectrum_gains(x),  # type: ignore[misc]
            gain_error=max(off),
            parameters_gain_error=max(max(each) for each in others),
            above_truth=-min(min(each) for each in (off, *others)),
        )


def train(width: int, steps: int, cf: float) -> tuple[Tensor, list[Tensor]]:
    """Train with Top-k and return gradient + residual of the last step, before it is sent.

    Returns:
        The whole, shape ``(n,)``, and its part of each parameter that is not all zero.
    """
    recipe = lm.demo(width)
    task = recipe.on_rank(0, 1, 0)
    parameters = list(task.model.parameters())
    optimizer = recipe.optimizer(parameters)
    ramp = torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.schedule.ramp)
    numels = [parameter.numel() for parameter in parameters]
    residual = torch.zeros(sum(numels), dtype=torch.float32)
    p = residual.clone()
    for _ in range(steps):
        inputs, classes = next(task.batches)
        loss = cross_entropy(task.model(inputs).flatten(0, -2), classes.flatten())
        gradient = torch.cat([each.flatten() for each in torch.autograd.grad(loss, parameters)])
        counted = tally(gradient, residual, out=p)
        residual.copy_(p)
        indices, values = take_top(residual, kept_count(p.numel(), cf), counted, clear=True)
        sent = torch.zeros_like(p).index_copy_(0, indices.long(), values)
        for parameter, part in zip(parameters, sent.split(numels), strict=True):
            parameter.grad = part.view_as(parameter)
        recipe.clip(parameters)
        optimizer.step()
        ramp.step()
    return p, [part for part in p.split(numels) if bool(part.any())]


def spectrum_gains(x: Tensor) -> list[float]:
    """Compute the gains at ``CFS`` from one pass over ``x``."""
    return [gain for gain in Spectrum.of(tally(x.contiguous())).curve(CFS).gains() if gain is not None]


def sorted_gains(x: Tensor) -> list[float]:
    """Compute the exact gains at ``CFS`` by sorting, in float64."""
    energies = x.double().square().sort(descending=True).values.cumsum(0)
    return [float(energies[kept_count(x.numel(), cf) - 1] / energies[-1]) for cf in CFS]


def _shortfalls(x: Tensor) -> list[float]:
    return [exact - estimated for exact, estimated in zip(sorted_gains(x), spectrum_gains(x), strict=True)]
