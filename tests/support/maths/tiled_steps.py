"""Steps of whole messages, for the tests of both arrangements of them."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gravac.kernels.device import step_sums, tiled


def gradients(step: int, sizes: Sequence[int], ranks: int, dtype: torch.dtype) -> list[list[Tensor]]:
    """Each rank's buckets in one of four steps: in the second one is not finite, and the fourth has zeros alone."""
    made = [[(torch.randn(n) * (step < 3)).to(dtype) for n in sizes] for _ in range(ranks)]
    if step == 1:
        made[1][0][5], made[1][0][7] = math.nan, math.inf
    return made


def encoded(
    group: tiled.TiledGroup,
    gradients: list[Tensor],
    residuals: list[Tensor],
    draft: bool,
    step: int,
    way: Any = tiled,
    fails: bool = False,
) -> list[tiled.TiledStep]:
    """A rank's buckets in a step, encoded by ``way``: ``tiled``, or ``owned``.

    Args:
        fails: Whether the last one is not encoded, so that all of it waits.
    """
    steps, where = [], group.message.device
    for buffers, gradient, residual in zip(group.members, gradients, residuals, strict=True):
        g, e = gradient.clone().to(where), residual.clone().to(where)
        row = torch.zeros(step_sums.ROW, dtype=torch.float64, device=where)
        if not buffers.ready:
            way.first_level(buffers, g, e)
        rest = torch.empty_like(e) if draft else e
        senders = torch.ones(g.numel(), dtype=torch.uint8, device=where)
        undone = None if draft else rest
        steps.append(tiled.TiledStep(buffers, g, g, None if step == 2 else e, rest, row, undone, senders))
    if fails:
        steps[-1].buffers.clear()
        steps[-1].rest.copy_(residuals[-1])
    way.encode(group, steps[:-1] if fails else steps)
    return steps
