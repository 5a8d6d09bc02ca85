"""Subtractive dither: the same on every backend, and an error that does not depend on the element."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.kernels import (
    dequantize_subtractive,
    dither,
    dither_subtractive,
)
from tests.support.maths.backends import LENGTHS, everywhere, vector

BLOCKS = st.sampled_from([1, 2, 7, 16, 64, 256, 600, 16_384])
KINDS = st.sampled_from(["normal", "mixed", "wild"])


@settings(deadline=None, max_examples=120)
@given(
    n=LENGTHS,
    seed=st.integers(0, 10**6),
    block=BLOCKS,
    levels=st.sampled_from([3, 5, 7, 15, 39]),
    kind=KINDS,
)
def test_subtractive_dither_is_the_same_everywhere(
    n: int, seed: int, block: int, levels: int, kind: str
) -> None:
    x = vector(n, seed, kind)
    spacings, codes = everywhere(lambda: dither_subtractive(x, block, levels, 2.0, seed))
    decoded = everywhere(lambda: dequantize_subtractive(spacings, codes, block, levels, seed))
    unmarked, same_codes = dither(x, block, levels, 2.0, seed)
    assert torch.equal(codes, same_codes)
    assert torch.equal(spacings.abs().nan_to_num(1.0), unmarked.nan_to_num(1.0))
    block = min(block, max(n, 1))
    for number, piece in enumerate(x.split(block) if n else ()):
        mine, spacing = decoded[number * block :][: piece.numel()].double(), spacings[number].double()
        if not piece.isfinite().all():
            assert not mine.isfinite().all()
            continue
        most = levels // 2 * spacing.abs()
        off = (mine - piece.double().clamp(-most, most)).abs()
        # Half a spacing at most where draws are subtracted, else never further than the level on the other side.
        assert (off <= spacing.abs() * (1 + 1e-6) / (2 if spacing < 0 else 1) + 1e-44).all()


@pytest.mark.parametrize("levels", [7, 5, 3])
def test_the_error_of_subtracted_draws_does_not_depend_on_the_element(levels: int) -> None:
    x = torch.linspace(-1.0, 1.0, 64).repeat(500)
    spacings, codes = dither_subtractive(x, 64, levels, 2.0, 1)
    assert bool((spacings < 0).all())
    error = dequantize_subtractive(spacings, codes, 64, levels, 1) - x
    share = (error / spacings.float().abs().repeat_interleave(64)).view(500, 64)
    assert float((share.mean(0)).abs().max()) < 5 / (12 * 500) ** 0.5
    torch.testing.assert_close(share.square().mean(0), torch.full((64,), 1 / 12), rtol=0.25, atol=0.0)


def test_draws_are_not_subtracted_where_the_result_could_be_infinite() -> None:
    x = 3e38 * torch.linspace(-1.0, 1.0, 64)
    for levels in (15, 7, 5, 3):
        parts = everywhere(lambda levels=levels: dither_subtractive(x, 64, levels, 2.0, 1))
        for seed in range(20):
            assert dequantize_subtractive(*parts, 64, levels, seed).isfinite().all()
