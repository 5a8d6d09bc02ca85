"""Whole messages, for all ranks and for owners, by Triton's kernels."""

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from gravac.kernels.device import owned, step_sums, tiled
from tests.support.maths.backends import on, same
from tests.support.maths.triton_device import DTYPES, GPU, HERE


@pytest.mark.parametrize("values", get_args(tiled.Values))
@pytest.mark.parametrize(
    ("sizes_of", "tile", "dtype", "draft", "counts"),
    [
        ([(700, 70)], 128, torch.float32, False, True),
        ([(2000, 5), (130, 130), (1, 1), (513, 64)], 256, torch.float32, False, False),
        ([(300, 300), (900, 31)], 128, torch.bfloat16, True, True),
        ([(777, 50), (1024, 100), (64, 8)], 256, torch.bfloat16, False, True),
        ([(1500, 300)], 1024, torch.float32, True, False),
        *(
            ([(3_000_001, 180_000), (4096, 40)], tiled.TILE, dtype, False, True)
            for dtype in DTYPES[:2]
            if GPU
        ),
    ],
)
def test_whole_messages(
    values: tiled.Values,
    sizes_of: list[tuple[int, int]],
    tile: int,
    dtype: torch.dtype,
    draft: bool,
    counts: bool,
) -> None:
    """Two ranks, groups of buckets, four steps: one with a gradient that is not finite, one without a residual, one of
    zeros. On a GPU tiles come in another order, and with them values are rounded in other blocks."""
    layouts, ranks = [tiled.TiledLayout(n, k, values, tile=tile) for n, k in sizes_of], 2
    theirs, mine = (
        [tiled.TiledGroup([tiled.TiledBuffers(one, where) for one in layouts], ranks) for _ in range(ranks)]
        for where in (torch.device("cpu"), HERE)
    )
    residuals = [[torch.randn(n) * 0.3 for n, _ in sizes_of] for _ in range(ranks)]
    for step in range(4):
        grads = [[(torch.randn(n) * (step < 3)).to(dtype) for n, _ in sizes_of] for _ in range(ranks)]
        if step == 1:
            grads[1][0][5], grads[1][0][7] = math.nan, math.inf
        found: dict[str, list[list[tiled.TiledStep]]] = {}
        for use, groups in (("reference", theirs), ("cuda", mine)):
            with on(use):
                found[use] = [_encoded(groups[r], grads[r], residuals[r], draft, step) for r in range(ranks)]
                for one in groups:
                    one.arrived.copy_(torch.stack([each.message for each in groups]))
        for rank in range(ranks):
            for left, right in zip(found["reference"][rank], found["cuda"][rank], strict=True):
                one, other = left.buffers, right.buffers
                assert torch.allclose(left.row, right.row.cpu(), rtol=1e-9, equal_nan=True)
                assert torch.allclose(one.level, other.level.cpu(), rtol=1e-6)
                other.level.copy_(one.level)
                if not GPU:
                    assert torch.equal(one.message, other.message)
                    assert torch.equal(one.places, other.places)
                elif values != "twobit":
                    assert torch.equal(left.rest, right.rest.cpu())
            outs = []
            for use, groups in (("reference", theirs), ("cuda", mine)):
                with on(use):
                    known = torch.tensor(counts, device=groups[rank].message.device)
                    tiled.decode(groups[rank], known, found[use][rank], rank)
                ends = ((each.out, each.rest, each.senders) for each in found[use][rank])
                outs.append(tuple(one.cpu() for each in ends for one in each if one is not None))
            if not GPU or values != "twobit":
                same(*outs)
            residuals[rank] = [each.rest.cpu().clone() for each in found["reference"][rank]]


def _encoded(
    group: tiled.TiledGroup,
    gradients: list[Tensor],
    residuals: list[Tensor],
    draft: bool,
    step: int,
    way: Any = tiled,
    fails: bool = False,
) -> list[tiled.TiledStep]:
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
    if fails:  # to encode the last one: all of it waits
        steps[-1].buffers.clear()
        steps[-1].rest.copy_(residuals[-1])
    way.encode(group, steps[:-1] if fails else steps)
    return steps


@pytest.mark.parametrize("values", get_args(tiled.Values))
@pytest.mark.parametrize(
    ("sizes_of", "ranks", "tile", "dtype", "draft", "counts"),
    [
        ([(300, 40)], 2, 64, torch.float32, False, True),
        ([(260, 12), (70, 16)], 3, 32, torch.float32, False, False),
        ([(150, 150)], 2, 64, torch.bfloat16, True, True),
        ([(150, 30)], 2, 32, torch.bfloat16, False, False),
        *(([(3_000_001, 60_000), (99_000, 40)], 3, 4096, dtype, False, True) for dtype in DTYPES[:2] if GPU),
    ],
)
def test_owned_messages(
    values: tiled.Values,
    sizes_of: list[tuple[int, int]],
    ranks: int,
    tile: int,
    dtype: torch.dtype,
    draft: bool,
    counts: bool,
) -> None:
    """Groups of buckets, four steps: one with a gradient that is not finite, one without a residual, one of zeros. In
    the second one the last bucket of a rank is not encoded, and adds up all the same."""
    layouts = [owned.OwnedLayout(n, -(-k // ranks), values, ranks, 77 + n, tile) for n, k in sizes_of]
    theirs, mine = (
        [
            owned.OwnedGroup([owned.OwnedBuffers(one, rank, where) for one in layouts], ranks)
            for rank in range(ranks)
        ]
        for where in (torch.device("cpu"), HERE)
    )
    sides = (("reference", theirs), ("cuda", mine))
    residuals = [[torch.randn(n) * 0.3 for n, _ in sizes_of] for _ in range(ranks)]
    for step in range(4):
        grads = [[(torch.randn(n) * (step < 3)).to(dtype) for n, _ in sizes_of] for _ in range(ranks)]
        if step == 1:
            grads[1][0][5], grads[1][0][7] = math.nan, math.inf
        found: dict[str, list[list[tiled.TiledStep]]] = {}
        for use, groups in sides:
            with on(use):
                found[use] = [
                    _encoded(one, grads[r], residuals[r], draft, step, owned, (step, r) == (1, 1))
                    for r, one in enumerate(groups)
                ]
        _same_messages(theirs, mine, added=False)
        for use, groups in sides:
            with on(use):
                for rank, one in enumerate(groups):
                    one.arrived.copy_(torch.stack([each.message[rank] for each in groups]))
                    one.arrived[rank] = one.arrived[rank - 1]  # what it has for itself counts for nothing
                    owned.add_up(one, found[use][rank])
                for one in groups:
                    one.arrived.copy_(torch.stack([each.message[rank] for rank, each in enumerate(groups)]))
        _same_messages(theirs, mine, added=True)
        for rank in range(ranks):
            for left, right in zip(found["reference"][rank], found["cuda"][rank], strict=True):
                # What an owner has of its own is the difference of two numbers there.
                assert torch.allclose(left.row, right.row.cpu(), rtol=1e-5, atol=1e-5, equal_nan=True)
            outs = []
            for use, groups in sides:
                with on(use):
                    known = torch.tensor(counts, device=groups[rank].message.device)
                    owned.decode(groups[rank], known, found[use][rank])
                ends = ((each.out, each.rest, each.senders) for each in found[use][rank])
                outs.append(tuple(one.cpu() for each in ends for one in each if one is not None))
            if not GPU or values != "twobit":
                same(*outs)
            for one in mine[rank].members:
                assert isinstance(one, owned.OwnedBuffers)
                assert not one.energy.any(), "the next step adds to it"
            residuals[rank] = [each.rest.cpu().clone() for each in found["reference"][rank]]


def _same_messages(theirs: list[owned.OwnedGroup], mine: list[owned.OwnedGroup], added: bool) -> None:
    for rank, (ours, others) in enumerate(zip(theirs, mine, strict=True)):
        for one, other in zip(ours.members, others.members, strict=True):
            assert torch.allclose(one.level, other.level.cpu(), rtol=1e-6)
            other.level.copy_(one.level)
            for owner, (message, found) in enumerate(zip(one.message, other.message, strict=True)):
                if not GPU and (added or owner != rank):  # a rank's own follows from what arrives
                    assert torch.equal(message, found)
            if not GPU:
                assert torch.equal(one.places, other.places)


def test_a_damaged_message_to_an_owner_shows() -> None:
    """In the gradient's energy, so that no rank keeps the step; and the owner's residual stays finite."""
    layout = owned.OwnedLayout(700, 30, "bfloat16", 2, 5, 128)
    with on("cuda"):
        group = owned.OwnedGroup([owned.OwnedBuffers(layout, 0, HERE)], 2)
        (step,) = _encoded(group, [torch.randn(700)], [torch.zeros(700)], False, 0, owned)
        group.arrived[1, 1] = 1 << 12
        owned.add_up(group, [step])
        assert step.row[0].isnan()
        assert step.rest.isfinite().all()
        group.arrived[1, 1] = 1 << 12
        owned.decode(group, torch.tensor(True, device=HERE), [step])
        assert bool(step.out.isnan().sum() == 128)
