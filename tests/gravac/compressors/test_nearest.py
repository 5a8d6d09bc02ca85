"""Codecs of few bits for error feedback: known numbers, and what rounding to the nearest saves."""

import pytest
import torch

from gravac.compressors import build
from gravac.compressors.quantize.dither import Dither
from gravac.compressors.quantize.nearest import Nearest
from tests.support.maths.checks import KEY, LECTURE, vector


def sent(text: str, x: torch.Tensor, cf: float = 1.0) -> torch.Tensor:
    codec = build(text)
    return codec.decode(codec.compress(x, cf, KEY, torch.float32))


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        # 1,024 elements: 16 blocks with 2 bytes each, and words of 4 bytes with 6, 8, 11, 13, 20 or 32 digits each.
        ("nearest:levels=39", 32 + 4 * 171),
        ("nearest:levels=15", 32 + 4 * 128),
        ("nearest:levels=7", 32 + 4 * 94),
        ("nearest:levels=5", 32 + 4 * 79),
        ("nearest:levels=3", 32 + 4 * 52),
        ("blocksign", 32 + 4 * 32),
        ("dither:levels=7", 32 + 4 * 94),
        ("dither:levels=3,spread=2", 32 + 4 * 52),
        ("dither-subtractive:levels=3", 32 + 4 * 52),
        ("twobit", 4 * 8 + 256),
        # 16 of 1,024 elements: one pair of magnitudes, two bits each, 5 lower bits each and 47 bits for the upper ones.
        ("sparseloco", 4 + 4 + 16),
    ],
)
def test_bytes(text: str, nbytes: int) -> None:
    assert build(text).wire_bytes(1024, 64.0, torch.float32) == nbytes


def test_the_lecture_vector() -> None:
    """The best scale keeps the two largest (k such that (sum of the k largest)² / k is largest): their mean, 93."""
    assert sent("nearest:levels=3", LECTURE).tolist() == [0, 0, 93, 0, 0, 93, 0, 0]
    assert sent("blocksign", LECTURE).abs().tolist() == [31.875] * 8
    assert torch.equal(sent("blocksign", LECTURE) > 0, LECTURE > 0)
    # Split at 31.875, then at (11.5 + 93) / 2: the same two parts.
    means = torch.tensor([11.5, 11.5, 93, 11.5, 11.5, 93, 11.5, 11.5])
    assert torch.equal(sent("twobit", LECTURE), means * LECTURE.sign())


def test_the_cf_asked_for_decides_how_many_levels() -> None:
    found = {cf: Nearest().level_count(cf) for cf in (1.0, 6.0, 8.0, 10.0, 12.0, 20.0, 25.0, 1000.0)}
    assert found == {1.0: 39, 6.0: 39, 8.0: 15, 10.0: 7, 12.0: 5, 20.0: 3, 25.0: 2, 1000.0: 2}
    assert Nearest(levels=7).level_count(1000.0) == 7
    # Rounding at random needs a level at zero.
    assert {cf: Dither().level_count(cf) for cf in (8.0, 20.0, 25.0)} == {8.0: 15, 20.0: 3, 25.0: 3}


@pytest.mark.parametrize(
    ("nearest", "random"),
    [
        ("nearest:levels=15", "qsgd:bits=4,block=64"),
        ("nearest:levels=7", "qsgd:bits=3,block=64"),
        ("nearest:levels=3", "qsgd:bits=2,block=64"),
    ],
)
def test_what_error_feedback_holds_back(nearest: str, random: str) -> None:
    """With equally many levels, the residual of rounding to the nearest is under two thirds of random rounding's."""

    def residual(text: str) -> float:
        codec, left = build(text), torch.zeros(4096)
        for step in range(30):
            left = left + vector("gauss", 4096, step)
            codec.remove(codec.compress(left, 1.0, KEY._replace(step=step), torch.float32), left)
        return float(left.norm())

    assert residual(nearest) < residual(random) / 1.5


@pytest.mark.parametrize("codec", ["dither", "dither-subtractive"])
@pytest.mark.parametrize("levels", [7, 3])
def test_random_rounding_does_not_hold_small_elements_back(codec: str, levels: int) -> None:
    """Rounding to the nearest lets a small element wait until error feedback has added it up."""
    x = torch.full((64,), 0.05)
    x[0] = 1.0

    def sent_of_the_small(text: str) -> float:
        built, sums = build(text), []
        for seed in range(600):
            payload = built.compress(x, 1.0, KEY._replace(seed=seed), torch.float32)
            sums.append(float(built.decode(payload)[1:].mean()))
        return sum(sums) / len(sums)

    assert sent_of_the_small(f"nearest:levels={levels}") == 0.0
    assert sent_of_the_small(f"{codec}:levels={levels}") == pytest.approx(0.05, rel=0.1)


def test_a_wider_spread_clips_less_and_errs_more() -> None:
    x = vector("gauss", 65_536)

    def reach_and_error(text: str) -> tuple[float, float]:
        decoded = sent(text, x)
        return float(decoded.abs().max() / x.abs().max()), float((decoded - x).square().sum())

    tight, wide = reach_and_error("dither:levels=5,spread=1.1"), reach_and_error("dither:levels=5,spread=1.6")
    assert tight[0] < wide[0]
    assert tight[1] < wide[1]


def test_a_spread_wide_enough_clips_nothing_and_errs_as_qsgd() -> None:
    x = vector("gauss", 65_536)
    spacings = build("dither:levels=7,spread=100").compress(x, 1.0, KEY, torch.float32).parts[0].float()
    assert bool((3 * spacings >= x.view(-1, 64).abs().amax(1)).all())
    errors = [
        float((sent(text, x) - x).square().sum())
        for text in ("dither:levels=7,spread=100", "qsgd:bits=3,block=64")
    ]
    assert errors[0] == pytest.approx(errors[1], rel=0.05)


def test_block_signs_fit_uneven_blocks_better_than_one_scale() -> None:
    x = torch.cat((vector("gauss", 512), 100 * vector("gauss", 512, 1)))
    errors = [float((sent(text, x) - x).square().sum()) for text in ("blocksign", "scaledsign")]
    assert errors[0] < 0.6 * errors[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nearest:levels=4", "nearest: levels=4 must be one of 39, 15, 7, 5, 3, 2"),
        ("nearest:block=0", "nearest: block=0 must be between 1 and 16384 elements"),
        ("dither:levels=2", "dither: levels=2 must be one of 39, 15, 7, 5, 3"),
        ("dither:spread=0", "dither: spread=0 must be above 0 and finite"),
        ("blocksign:block=70000", "blocksign: block=70000 must be between 1 and 16384"),
        ("twobit:block=0", "twobit: block=0 must be at least 1"),
        ("chunktopk:chunk=0", "chunktopk: chunk=0 must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(text)
