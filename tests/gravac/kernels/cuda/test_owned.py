"""Whole messages for owners, by Triton's kernels."""

from typing import get_args

import pytest
import torch

from gravac.kernels.device import owned, tiled
from tests.support.maths.backends import on, same
from tests.support.maths.tiled_steps import encoded, gradients
from tests.support.maths.triton_device import DTYPES, GPU, HERE


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
        grads = gradients(step, [n for n, _ in sizes_of], ranks, dtype)
        found: dict[str, list[list[tiled.TiledStep]]] = {}
        for use, groups in sides:
            with on(use):
                found[use] = [
                    encoded(one, grads[r], residuals[r], draft, step, owned, (step, r) == (1, 1))
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
        (step,) = encoded(group, [torch.randn(700)], [torch.zeros(700)], False, 0, owned)
        group.arrived[1, 1] = 1 << 12
        owned.add_up(group, [step])
        assert step.row[0].isnan()
        assert step.rest.isfinite().all()
        group.arrived[1, 1] = 1 << 12
        owned.decode(group, torch.tensor(True, device=HERE), [step])
        assert bool(step.out.isnan().sum() == 128)
