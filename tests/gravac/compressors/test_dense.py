"""Floats as they are, on a wire whose format ends early."""

import torch

from gravac.compressors import build
from tests.support.maths.checks import KEY


def test_finite_elements_too_large_for_the_wire_stay_in_the_residual() -> None:
    """An overflow to infinity would poison every rank."""
    x = torch.tensor([1e6, 1.0, -1e30])
    for text, dtype in (("topk", torch.float16), ("dense", torch.float16), ("fp16", torch.float32)):
        codec = build(text)
        payload = codec.compress(x, 1.0, KEY, dtype)
        assert codec.decode(payload).tolist() == [65504, 1, -65504]
        residual = x.clone()
        codec.remove(payload, residual)
        assert residual.tolist() == [1e6 - 65504, 0, float(torch.tensor(-1e30) + 65504)]
