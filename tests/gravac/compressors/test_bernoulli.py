"""Uniform sparsification where its mask is empty."""

import math

import torch

from gravac.compressors import build
from tests.support.maths.checks import KEY, vector


def test_an_empty_mask_sends_one_zero() -> None:
    """At CF 1e9 the mask is empty; a collective still needs something to carry, a NaN above all."""
    codec, x = build("bernoulli"), vector("gauss", 10)
    payload = codec.compress(x, 1e9, KEY, torch.float32)
    assert payload.values.tolist() == [0.0]
    assert torch.equal(codec.decode(payload), torch.zeros(10))
    blank = codec.blank(10, 1e9, KEY, torch.float32, torch.device("cpu"), math.nan)
    assert math.isnan(float(codec.decode(blank)[0]))
    assert codec.narrow(codec.compress(x, 1.0, KEY, torch.float32), 1e9).values.tolist() == [0.0]
