"""Codecs composed of two: unbiased, of a known bound, with the noise of their composition."""

import pytest
import torch

from gravac.compressors import Compressor, Key
from gravac.compressors import build as build_codec
from gravac.memories import Induced


def relative_noise(codec: Compressor, cf: float, draws: int = 400, n: int = 1000) -> float:
    """E‖C(y) - y‖² / ‖y‖² on a Gaussian."""
    y = torch.randn(n, generator=torch.Generator().manual_seed(0))
    total = 0.0
    for number in range(draws):
        decoded = codec.decode(codec.compress(y, cf, Key(0, number, 0, 0), torch.float32))
        total += float((decoded - y).square().sum())
    return total / draws / float(y.square().sum())


def test_improved_memories_have_the_noise_of_their_composition() -> None:
    """Random-k of the error, keep 0.9 (θ = 0.111): v1 θ², v2 θ·ρ with ρ = 0.9 of Random-k at 10 %. Keep half (θ = 1):
    v1 gains nothing."""
    keep_most = 1 / 0.9
    error = build_codec("randomk-unbiased")
    assert relative_noise(error, keep_most) == pytest.approx(1 / 9, rel=0.05)
    assert relative_noise(Induced(error, error, keep_most), keep_most) == pytest.approx(1 / 81, rel=0.1)
    wire = build_codec("randomk")
    assert relative_noise(Induced(wire, error, keep_most), 10.0) == pytest.approx(0.9 / 9, rel=0.1)
    assert relative_noise(Induced(error, error, 2.0), 2.0) == pytest.approx(1.0, rel=0.1)


def test_the_composite_codec_is_unbiased_says_its_bound_and_travels() -> None:
    error, y, key = (
        build_codec("int4"),
        torch.randn(300, generator=torch.Generator().manual_seed(3)),
        Key(1, 2, 3, 0),
    )
    codec = Induced(build_codec("topk"), error)
    payload = codec.compress(y, 10.0, key, torch.float32)
    assert payload.nbytes == codec.wire_bytes(300, 10.0, torch.float32)
    again = codec.layout(300, 10.0, torch.float32).unpack(payload.pack(), key)
    assert torch.equal(codec.decode(again), codec.decode(payload))
    mean = torch.stack(
        [codec.decode(codec.compress(y, 10.0, Key(0, i, 0, 0), torch.float32)) for i in range(2000)]
    )
    deviations = (mean.mean(0) - y).abs() / (mean.std(0).clamp_min(1e-9) / 2000**0.5)
    assert float(deviations[mean.std(0) > 1e-6].max()) < 4.5
    bound = codec.bound(300, 10.0).omega
    assert bound == pytest.approx(0.9 * (error.bound(300, 1.0).omega or 0.0))
    with pytest.raises(ValueError, match="payloads of varying size"):
        Induced(error, build_codec("hardthreshold"))
