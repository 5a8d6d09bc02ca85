"""Rounding at random whose draws are subtracted again: half the error, and where it does not apply."""

import pytest
import torch

from gravac.compressors import Key, build
from tests.gravac.compressors.test_nearest import sent
from tests.support.maths.checks import KEY, vector


@pytest.mark.parametrize(("levels", "error"), [(7, 0.0645), (5, 0.145), (3, 0.485)])
def test_subtracting_the_draws_halves_the_error(levels: int, error: float) -> None:
    x = vector("gauss", 65_536)
    plain, subtracted = (
        float((sent(f"{codec}:levels={levels}", x) - x).square().sum() / x.square().sum())
        for codec in ("dither", "dither-subtractive")
    )
    assert subtracted == pytest.approx(error, rel=0.03)
    assert subtracted < 0.53 * plain


def test_draws_are_not_subtracted_where_zeros_would_become_noise() -> None:
    x = torch.zeros(1024)
    x[::64] = 1.0  # one element of each block
    decoded = sent("dither-subtractive:levels=3", x)
    assert torch.equal(decoded, sent("dither:levels=3", x))
    assert bool((decoded[x == 0] == 0).all())


def test_subtractive_dither_is_decoded_with_the_draws_of_the_rank_that_sent_it() -> None:
    codec, x = build("dither-subtractive:levels=5"), vector("gauss", 4096)
    payload = codec.compress(x, 1.0, KEY, torch.float32)

    def error(key: Key) -> float:
        found = codec.layout(x.numel(), 1.0, torch.float32).unpack(payload.pack(), key)
        return float((codec.decode(found) - x).square().sum() / x.square().sum())

    assert error(KEY) < 0.17
    assert error(KEY._replace(rank=KEY.rank + 1)) > 0.35
