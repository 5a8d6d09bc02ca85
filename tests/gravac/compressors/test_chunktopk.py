"""Chunk-wise Top-k: every chunk is heard, and one chunk is Top-k."""

import pytest
import torch

from gravac.compressors import TopK
from gravac.compressors.sparse.chunktopk import ChunkTopK
from tests.gravac.compressors.test_nearest import sent
from tests.support.maths.checks import KEY, vector


def test_every_chunk_is_heard() -> None:
    """Top-k of all would take the loud half only."""
    x = torch.cat((vector("gauss", 4096), 1000 * vector("gauss", 4096, 1)))
    payload = ChunkTopK().compress(x, 64.0, KEY, torch.float32)
    assert payload.support is not None
    assert int((payload.support < 4096).sum()) == 64
    assert payload.values.numel() == 128


@pytest.mark.parametrize("cf", [1.0, 10.0, 5000.0])
def test_one_chunk_is_topk(cf: float) -> None:
    x = vector("student", 4000)
    payloads = [codec.compress(x, cf, KEY, torch.float32).pack() for codec in (ChunkTopK(), TopK())]
    assert torch.equal(*payloads)


def test_a_cf_beyond_the_chunk_still_reaches_every_element() -> None:
    """With error feedback, each element is sent in the end: no chunk is left without its share."""
    codec, left, seen = ChunkTopK(chunk=4), torch.ones(30), torch.zeros(30, dtype=torch.bool)
    for _ in range(30):
        payload = codec.compress(left, 10.0, KEY, torch.float32)
        assert payload.support is not None
        seen[payload.support.long()] = True
        codec.remove(payload, left)
        left += 1.0
    assert bool(seen.all())


def test_sparseloco_is_a_stack() -> None:
    x = vector("gauss", 10_000)
    assert torch.equal(sent("sparseloco", x, 64.0), sent("chunktopk+twobit", x, 64.0))
