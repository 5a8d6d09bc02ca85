"""Low-rank codecs know the shapes of their tensors."""

import pytest
import torch

from gravac.compressors import build
from tests.support.maths.checks import KEY, vector


def test_low_rank_codecs_know_their_shapes() -> None:
    shapes = ((64, 3, 3, 3), (64,), (10, 64), (64, 3, 3, 3))
    n = 64 * 27 * 2 + 64 + 640
    codec = build("svd").fitted(shapes)
    x = vector("gauss", n)
    payload = codec.compress(x, 8.0, KEY, torch.float32)
    rank = int(64 * 27 / (8 * (64 + 27)))
    assert payload.nbytes == 4 * (2 * rank * (64 + 27) + 64 + 74)
    decoded = codec.decode(payload)
    assert torch.equal(decoded[1728 : 1728 + 64], x[1728 : 1728 + 64])  # a vector stays as it is
    assert torch.linalg.matrix_rank(decoded[:1728].view(64, 27)) == rank
    with pytest.raises(ValueError, match="svd was fitted to tensors of shapes"):
        codec.compress(x[1:], 8.0, KEY, torch.float32)
    with pytest.raises(ValueError, match="terngrad was fitted to tensors of"):
        build("terngrad").fitted(shapes).compress(x[1:], 8.0, KEY, torch.float32)
