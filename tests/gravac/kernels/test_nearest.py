"""Blocks rounded to the nearest level: the same on every backend, and hardly worse than with the best spacing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gravac.kernels import (
    GRIDS,
    dequantize_nearest,
    dequantize_subtractive,
    dither,
    nearest_sizes,
    quantize_nearest,
)
from gravac.kernels.packing import pack_digits, unpack_digits
from tests.support.maths.backends import LENGTHS, everywhere, vector

BLOCKS = st.sampled_from([1, 2, 7, 16, 64, 256, 600, 16_384])
KINDS = st.sampled_from(["normal", "mixed", "wild"])


@settings(deadline=None, max_examples=120)
@given(
    n=LENGTHS,
    seed=st.integers(0, 10**6),
    block=BLOCKS,
    levels=st.sampled_from(sorted(GRIDS)),
    kind=KINDS,
)
def test_blocks_are_the_same_everywhere(n: int, seed: int, block: int, levels: int, kind: str) -> None:
    x = vector(n, seed, kind)
    spacings, codes = everywhere(lambda: quantize_nearest(x, block, levels))
    decoded = everywhere(lambda: dequantize_nearest(spacings, codes, block, levels))
    packed = pack_digits(codes, GRIDS[levels].base)
    assert (spacings.numel(), packed.numel()) == nearest_sizes(n, block, levels)
    block = min(block, max(n, 1))
    for number, piece in enumerate(x.split(block) if n else ()):
        mine, largest = decoded[number * block :][: piece.numel()], piece.abs().max()
        if not largest.isfinite():
            assert not mine.isfinite().all()
            continue
        spacing = spacings[number].float()
        assert spacing.isfinite()
        steps = torch.arange(1 - levels, levels, 2, dtype=torch.float32) / (2 if levels % 2 else 1)
        nearest = (piece.double()[:, None] - (steps * spacing).double()).abs().amin(1)
        off = (mine.double() - piece.double()).abs()
        assert (off <= nearest * (1 + 1e-6) + 1e-44).all()  # of two levels equally near, either


@settings(deadline=None, max_examples=120)
@given(
    n=LENGTHS,
    seed=st.integers(0, 10**6),
    block=BLOCKS,
    levels=st.sampled_from([3, 5, 7, 15, 39]),
    spread=st.sampled_from([0.3, 1.0, 1.45, 4.0]),
    kind=KINDS,
)
def test_random_rounding_is_the_same_everywhere(
    n: int, seed: int, block: int, levels: int, spread: float, kind: str
) -> None:
    x = vector(n, seed, kind)
    spacings, codes = everywhere(lambda: dither(x, block, levels, spread, seed))
    decoded = dequantize_nearest(spacings, codes, block, levels)
    block = min(block, max(n, 1))
    for number, piece in enumerate(x.split(block) if n else ()):
        mine, spacing = decoded[number * block :][: piece.numel()].double(), spacings[number].double()
        if not piece.isfinite().all():
            assert not mine.isfinite().all()
            continue
        clipped = piece.double().clamp(-(levels // 2) * spacing, levels // 2 * spacing)
        # Never further than the level on the other side.
        assert ((mine - clipped).abs() <= spacing * (1 + 1e-6) + 1e-44).all()


@pytest.mark.parametrize("levels", [15, 7, 5, 3])
def test_random_rounding_is_right_on_average_but_for_clipping(levels: int) -> None:
    x = torch.randn(640, generator=torch.Generator().manual_seed(3))
    draws = 3000
    decoded = [dequantize_nearest(*dither(x, 64, levels, 1.4, seed), 64, levels) for seed in range(draws)]
    spacings, _ = dither(x, 64, levels, 1.4, 0)
    spacing = spacings.float().repeat_interleave(64)
    clipped = torch.maximum(torch.minimum(x, levels // 2 * spacing), -(levels // 2) * spacing)
    off = (torch.stack(decoded).mean(0) - clipped) / spacing
    assert float(off.abs().max()) < 5 * 0.5 / draws**0.5
    unclipped = clipped == x
    assert float(unclipped.float().mean()) > 0.9


def test_a_spacing_spread_beyond_what_is_finite_is_clipped() -> None:
    x = torch.full((64,), 3e38)
    for levels in (15, 7, 5, 3):
        parts = everywhere(lambda levels=levels: dither(x, 64, levels, 5.0, 1))
        assert dequantize_nearest(*parts, 64, levels).isfinite().all()


def best_error(x: Tensor, levels: int) -> Tensor:
    """Squared error of each row with the best of 200 spacings."""
    half, errors = levels // 2, []
    for share in torch.linspace(0.2, 1.2, 200):
        spacing = x.abs().amax(1, keepdim=True) * share / half
        errors.append(((x / spacing).round().clamp(-half, half) * spacing - x).square().sum(1))
    return torch.stack(errors).amin(0)


@pytest.mark.parametrize("levels", [15, 7, 5, 3])
@pytest.mark.parametrize("law", [torch.distributions.Normal(0.0, 1.0), torch.distributions.Laplace(0.0, 1.0)])
def test_the_spacing_is_nearly_the_best(levels: int, law: torch.distributions.Distribution) -> None:
    torch.manual_seed(0)
    x = law.sample((2000, 64))
    decoded = dequantize_nearest(*quantize_nearest(x, 64, levels), 64, levels).view_as(x)
    assert float((x - decoded).square().sum()) <= 1.04 * float(best_error(x, levels).sum())


def test_signs_are_scaled_by_the_mean_of_their_block() -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    decoded = dequantize_nearest(*quantize_nearest(x, 64, 2), 64, 2).view_as(x)
    assert torch.equal(decoded > 0, x >= 0)
    torch.testing.assert_close(
        decoded.abs(), x.abs().mean(1, keepdim=True).expand_as(x), rtol=2**-8, atol=0.0
    )


def test_magnitudes_at_both_ends_stay_finite() -> None:
    """float32's largest values lie above bfloat16's; its smallest ones below."""
    for x in (torch.tensor([3.4028235e38, -3.4028235e38, 0.0]), torch.tensor([1e-45, -1e-45, 0.0])):
        for levels in GRIDS:
            parts = everywhere(lambda x=x, levels=levels: quantize_nearest(x, 64, levels))
            decoded = dequantize_nearest(*parts, 64, levels)
            assert decoded.isfinite().all()
            assert ((decoded - x).abs() <= x.abs().amax()).all()


def test_the_largest_blocks_do_not_overflow() -> None:
    x = torch.ones(16_384)
    for levels in GRIDS:
        parts = everywhere(lambda levels=levels: quantize_nearest(x, 16_384, levels))
        decoded = dequantize_nearest(*parts, 16_384, levels)
        torch.testing.assert_close(decoded, x, rtol=2**-8, atol=0.0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="levels=4 must be one of 39, 15, 7, 5, 3, 2"):
        quantize_nearest(torch.ones(4), 2, 4)
    with pytest.raises(
        ValueError, match="levels=2: rounding at random needs a level at zero: 39, 15, 7, 5 or 3"
    ):
        dither(torch.ones(4), 2, 2, 1.5, 1)
    with pytest.raises(ValueError, match="block=16385 must be between 1 and 16384"):
        quantize_nearest(torch.ones(4), 16_385, 3)
    with pytest.raises(ValueError, match="1 spacings given, 4 elements in blocks of 2"):
        dequantize_nearest(torch.ones(1).bfloat16(), torch.zeros(4, dtype=torch.uint8), 2, 3)
    with pytest.raises(ValueError, match="1 spacings given, 4 elements in blocks of 2"):
        dequantize_subtractive(torch.ones(1).bfloat16(), torch.zeros(4, dtype=torch.uint8), 2, 3, 1)
    with pytest.raises(ValueError, match="levels=4 must be one of"):
        dequantize_subtractive(torch.ones(2).bfloat16(), torch.zeros(4, dtype=torch.uint8), 2, 4, 1)
    with pytest.raises(ValueError, match="2 words given, 4 digits of base 3 take 1"):
        unpack_digits(torch.zeros(2, dtype=torch.int32), 4, 3)
    with pytest.raises(ValueError, match="base=4 must be one of"):
        pack_digits(torch.ones(4, dtype=torch.uint8), 4)
