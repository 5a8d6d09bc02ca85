"""Messages of every element by Triton's kernels."""

import math

import pytest
import torch
from torch import Tensor

from gravac.kernels.device import rounded, step_sums
from tests.support.maths.backends import on, same, vector
from tests.support.maths.triton_device import DTYPES, GPU, HERE

ROUNDINGS = [rounded.BFLOAT16, rounded.RANDOM, *map(rounded.nearest, (39, 7, 2))]


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=lambda one: f"{one.kind}-{one.levels}")
@pytest.mark.parametrize("shards", [False, True], ids=["gathered", "shards"])
@pytest.mark.parametrize(
    ("n", "dtype", "draft", "counts"),
    [
        (1, torch.float32, False, True),
        (700, torch.bfloat16, True, True),
        (3001, torch.bfloat16, False, True),
        (300, torch.float32, False, False),
        *((3_000_001, dtype, False, True) for dtype in DTYPES[:2] if GPU),
    ],
)
def test_rounded_messages(
    rounding: rounded.Rounding, shards: bool, n: int, dtype: torch.dtype, draft: bool, counts: bool
) -> None:
    """Two ranks, and two buckets in one launch: one of other levels, with a gradient that is not finite, or without a
    residual."""
    sides = [
        [_Rounded(rounding, shards, rank, n, dtype, draft, where) for rank in range(2)]
        for where in (torch.device("cpu"), HERE)
    ]
    found = []
    for use, side in zip(("reference", "cuda"), sides, strict=True):
        with on(use):
            found.append(_exchanged(side, torch.tensor(counts, device=side[0].where)))
    for (rows, tensors), (others, mine) in zip(*found, strict=True):
        assert torch.allclose(rows, others, rtol=1e-9, atol=1e-12, equal_nan=True)
        same(tensors, mine)


class _Rounded:
    """The two buckets of a rank."""

    def __init__(
        self,
        rounding: rounded.Rounding,
        shards: bool,
        rank: int,
        n: int,
        dtype: torch.dtype,
        draft: bool,
        where: torch.device,
    ) -> None:
        self.where, self.members = where, []
        other = rounded.nearest(15) if rounding.kind == "nearest" else rounding
        for number, (size, one) in enumerate(((n, rounding), (300, other))):
            layout = rounded.RoundedLayout(size, 2, shards, one, row=rounded.ROW if GPU else 256)
            g, e = vector(size, 10 * number + rank, "normal").to(dtype), vector(size, number + rank)
            if number == rank == 1:
                g[3], g[7] = math.nan, math.inf
            if number == rank:
                g[64:128] = e[64:128] = 0.0
            g, e = g.to(where), e.to(where)
            p = torch.full_like(e, 7.0) if draft else e
            row = torch.zeros(step_sums.ROW, dtype=torch.float64, device=where)
            residual = None if rank and not number else e
            self.members.append(
                rounded.Member(
                    rounded.RoundedBuffers(layout, rank, where), g, residual, p, row, g, undone=not draft
                )
            )
        self.group = rounded.RoundedGroup([one.buffers for one in self.members])


def _exchanged(ranks: list[_Rounded], counts: Tensor) -> list[tuple[Tensor, tuple[Tensor, ...]]]:
    """What each bucket has after a step."""
    sent: list[Tensor] = []
    buffers = [[one.buffers for one in rank.members] for rank in ranks]
    for number, rank in enumerate(ranks):
        rounded.encode(rank.group, rank.members, (11 + number, 2**62 + number))
        sent += [part.clone() for one in rank.members for part in (one.buffers.message, one.p)]
    for number, rank in enumerate(ranks):
        for mine, *every in zip(buffers[number], *buffers, strict=True):
            if mine.layout.shards:
                mine.parts.copy_(torch.stack([one.message[number] for one in every]))
        if ranks[0].members[0].buffers.layout.shards:
            rounded.average(rank.group, rank.members, (5, 6))
    for number, rank in enumerate(ranks):
        for mine, *every in zip(buffers[number], *buffers, strict=True):
            rows = [one.mean if mine.layout.shards else one.message for one in every]
            mine.arrived.copy_(torch.cat(rows))
        rounded.decode(rank.group, rank.members, counts)
    return [
        (
            one.row.cpu(),
            tuple(part.cpu() for part in (*sent, one.g, one.p, one.buffers.lost, one.buffers.arrived)),
        )
        for rank in ranks
        for one in rank.members
    ]
