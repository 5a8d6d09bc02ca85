"""What others do for slow links: PyTorch's PowerSGD, and DiLoCo by hand."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

POWERSGD_DENSE_STEPS = 2
"""PyTorch's hook has no error memory with fewer dense steps at the start."""
WHOLE_MODEL_MB = 100_000.0
RATE, MOMENTUM = 0.7, 0.9
"""Rate and momentum of DiLoCo's outer optimizer, as published."""


def powersgd(
    rank: int, model: nn.Module, elements: int
) -> tuple[DistributedDataParallel, Callable[[int], int]]:
    """Prepare PyTorch's PowerSGD with the whole model in one bucket.

    With two buckets in flight it deadlocks on gloo, because it waits in callbacks of futures (pytorch/pytorch#48478).

    Returns:
        The module, and from a number of steps to the bytes that this rank handed to collectives in them.

    Raises:
        ImportError: numpy is missing.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=POWERSGD_DENSE_STEPS,
        compression_stats_logging_frequency=1 << 60,
    )

    def one_bucket(
        state: powerSGD_hook.PowerSGDState,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() or not bucket.is_last():
            raise RuntimeError("PowerSGD got more than one bucket, which deadlocks on gloo")
        future: torch.futures.Future[torch.Tensor] = powerSGD_hook.powerSGD_hook(state, bucket)
        return future

    def payload_bytes(steps: int) -> int:
        sent: int = state.compression_stats()[2]
        return 4 * (elements * min(steps, POWERSGD_DENSE_STEPS) + sent)

    module = DistributedDataParallel(model, bucket_cap_mb=WHOLE_MODEL_MB)
    hook: Any = one_bucket
    module.register_comm_hook(state, hook)
    return module, payload_bytes


class DiLoCo:
    """DiLoCo (Douillard et al. 2023, arXiv 2311.08105): ranks step alone, and every H steps they average.

    How far they came since, in the mean, is the gradient of an outer optimizer, SGD with Nesterov's momentum. All go on
    from its weights. The inner optimizers keep their state, which differs among ranks; each rank clips its gradients.

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
