"""Whole messages for all ranks, by Triton's kernels."""

from typing import get_args

import pytest
import torch

from gravac.kernels.device import tiled
from tests.support.maths.backends import on, same
from tests.support.maths.tiled_steps import encoded, gradients
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
        grads = gradients(step, [n for n, _ in sizes_of], ranks, dtype)
        found: dict[str, list[list[tiled.TiledStep]]] = {}
        for use, groups in (("reference", theirs), ("cuda", mine)):
            with on(use):
                found[use] = [encoded(groups[r], grads[r], residuals[r], draft, step) for r in range(ranks)]
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
