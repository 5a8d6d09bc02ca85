"""DiLoCo by hand (Douillard et al. 2023, arXiv 2311.08105): ranks step alone, and every H steps they average.

With θ the weights after the last average, and θᵢ those of rank i now, the ranks average how far they came, which is the
gradient of an outer optimizer, SGD with Nesterov's momentum:

    Δ = θ − mean θᵢ,   b ← μ b + Δ,   θ ← θ − η (Δ + μ b)

All ranks go on from θ. The inner optimizers keep their state, which differs among ranks, and are not told. Gradients
are clipped on each rank. Nothing is sent in the other steps, so that H steps send as much as one of dense training.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

RATE, MOMENTUM = 0.7, 0.9
"""Of the outer optimizer, SGD with Nesterov's momentum, as published."""


class DiLoCo:
    """The outer optimizer of a model that each rank steps alone.

    Args:
        model: The same weights on all ranks.
        inner: The optimizer that steps it; every ``every``-th of its steps ends with one of the outer optimizer.
        every: H.
    """

    def __init__(self, model: nn.Module, inner: Optimizer, every: int) -> None:
        self._parameters, self._every, self._steps = list(model.parameters()), every, 0
        self._start = nn.Parameter(self._weights().clone())
        self._outer = torch.optim.SGD([self._start], lr=RATE, momentum=MOMENTUM, nesterov=True)
        inner.register_step_post_hook(self._stepped)

    def sent(self, steps: int) -> int:
        """Return the bytes that this rank handed to collectives in its first steps."""
        return steps // self._every * self._start.nbytes

    @torch.no_grad()
    def _stepped(self, *step: object) -> None:
        """Count a step of the inner optimizer, and average where it is the last of H."""
        self._steps += 1
        if self._steps % self._every == 0:
            moved = self._start - self._weights()
            dist.all_reduce(moved)
            self._start.grad = moved.div_(dist.get_world_size())
            self._outer.step()
            vector_to_parameters(self._start.clone(), self._parameters)  # they become views of it

    def _weights(self) -> Tensor:
        return parameters_to_vector(self._parameters).detach()
