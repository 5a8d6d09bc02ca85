"""Known numbers: the lecture vector through every codec, and bytes."""

import math

import pytest
import torch
from torch import Tensor

from gravac.compressors import Key, build
from gravac.compressors.base import Compressor
from gravac.compressors.lowrank.atomo import water_filling
from gravac.compressors.lowrank.svd import SVD, LowRank
from gravac.compressors.quantize.elias import encode
from gravac.compressors.sparse.hardthreshold import HardThreshold
from gravac.kernels import stochastic_round
from gravac.kernels.entropy.elias import omega
from tests.support.maths.checks import KEY, LECTURE, draws, vector

POSITIVE = LECTURE.abs()
ENERGY = 21333.0
COPIES = 20_000
TILED = LECTURE.repeat(COPIES)  # independent draws of the lecture vector in one call, for blocks of 8


def sent(codec: Compressor, x: Tensor, cf: float = 1.0, key: Key = KEY) -> Tensor:
    return codec.decode(codec.compress(x, cf, key, torch.float32)).double()


def error(codec: Compressor, x: Tensor, cf: float = 1.0) -> float:
    return float((sent(codec, x, cf) - x.double()).square().sum())


def gain(codec: Compressor, x: Tensor, cf: float = 1.0) -> float:
    return float(sent(codec, x, cf).square().sum() / x.double().square().sum())


@pytest.mark.parametrize(
    ("text", "small", "large"),
    [
        ("dense", 4000, 4194304),
        ("topk", 40 + 12, 4 * 10485 + 11223),
        ("randomk", 40, 41940),
        ("blockrandomk", 40, 41940),
        ("scaledsign", 129, 131076),
        ("onebit", 133, 131080),
        ("terngrad", 254, 262148),
        ("terngrad:base3=true", 204, 209720),
        ("qsgd:bits=2", 258, 270336),
        ("qsgd:bits=4", 508, 532480),
        ("qsgd:bits=8", 1008, 1056768),
        ("natural", 1000, 1048576),
        ("natural:bits=9", 1125, 1179648),
        ("bf16", 2000, 2097152),
        ("topk+int8", 12 + 10 + 4, 11223 + 10485 + 4 * 41),
        ("randomk+int8", 10 + 4, 10485 + 4 * 41),
    ],
)
def test_bytes(text: str, small: int, large: int) -> None:
    assert build(text).wire_bytes(1000, 100.0, torch.float32) == small
    assert build(text).wire_bytes(2**20, 100.0, torch.float32) == large


@pytest.mark.parametrize(
    ("k", "share", "missed"),
    [(1, 0.7921999, None), (2, 0.9392022, 1297), (3, 0.9684995, 672), (4, 0.9932968, 143)],
)
@pytest.mark.parametrize("name", ["topk", "redsync-trimmed"])
def test_topk(name: str, k: int, share: float, missed: int | None) -> None:
    assert gain(build(name), LECTURE, 8 / k) == pytest.approx(share, abs=1e-7)
    assert missed is None or error(build(name), LECTURE, 8 / k) == missed
    limit = build(name).bound(8, 8 / k).limit(ENERGY)
    assert limit == pytest.approx((1 - k / 8) * ENERGY)


def test_randomk() -> None:
    errors = (draws(build("randomk"), LECTURE, 4.0, 4000) - LECTURE).square().sum(1) / ENERGY
    assert float(errors.mean()) == pytest.approx(0.75, abs=0.03)
    gains = draws(build("randomk-unbiased"), LECTURE, 4.0, 4000).square().sum(1) / ENERGY
    assert float(gains.mean()) == pytest.approx(4.0, rel=0.05)
    assert build("randomk-unbiased").bound(8, 4.0).omega == 3.0


@pytest.mark.parametrize("name", ["blockrandomk", "blockrandomk-unbiased"])
def test_every_start_of_the_block_together_gives_x_exactly(name: str) -> None:
    codec, by_place = build(name), dict[int, Tensor]()
    for step in range(200):
        payload = codec.compress(LECTURE, 4.0, KEY._replace(step=step), torch.float32)
        assert payload.support is not None
        by_place[int(payload.support[0])] = codec.decode(payload)
    assert sorted(by_place) == list(range(8))
    total = torch.stack(list(by_place.values())).sum(0)
    assert torch.equal(total / 8 * (4 if name == "blockrandomk" else 1), LECTURE)


def test_hard_threshold() -> None:
    codec = HardThreshold(threshold=7.0)
    assert error(codec, LECTURE) == 13  # 7 itself is sent
    assert int((sent(codec, LECTURE) != 0).sum()) == 6
    assert codec.bound(8, 1.0).absolute == 392
    assert torch.equal(sent(HardThreshold(threshold=3.5), LECTURE / 2), sent(codec, LECTURE) / 2)
    once = sent(HardThreshold(threshold=20.0), LECTURE)
    assert torch.equal(sent(HardThreshold(threshold=20.0), sent(codec, LECTURE).float()), once)


@pytest.mark.parametrize(
    ("k", "level"),
    [(11174, 0.0047300), (6166, 0.0063675), (11220, 0.0047203), (11436, 0.0046756), (6258, 0.0063205)],
)
def test_threshold_rule(k: int, level: float) -> None:
    assert HardThreshold().level(k, 1.0) == pytest.approx(level, abs=5e-8)
    assert HardThreshold().level(1000 * k, 1000.0) == pytest.approx(level, abs=5e-8)


@pytest.mark.parametrize("seed", range(5))
def test_hard_threshold_has_the_least_total_error_of_a_run(seed: int) -> None:
    """Same number of elements over the whole sequence (Sahu et al.)."""
    steps, n, k = 50, 200, 5
    generator = torch.Generator().manual_seed(seed)
    scales = torch.randn(steps, 1, generator=generator).exp()
    sequence = torch.randn(steps, n, generator=generator) * scales
    level = float(sequence.abs().flatten().sort(descending=True).values[steps * k - 1])
    hard = sum(error(HardThreshold(threshold=level), x) for x in sequence)
    top = sum(error(build("topk"), x, n / k) for x in sequence)
    assert hard < top


def test_scaled_sign() -> None:
    codec = build("scaledsign")
    assert codec.compress(POSITIVE, 1.0, KEY, torch.float32).values.tolist() == [31.875]
    for x in (LECTURE, POSITIVE):
        assert gain(codec, x) == pytest.approx(0.3810118, abs=1e-7)
        assert error(codec, x) == pytest.approx(13204.875)
    assert gain(codec, vector("gauss", 2**18)) == pytest.approx(2 / math.pi, rel=0.01)
    # The other public scale, l2 / √n, always has gain 1 and loses twice as much here.
    rescaled = sent(codec, LECTURE).sign() * math.sqrt(ENERGY / 8)
    assert float((rescaled - LECTURE).square().sum() / ENERGY) == pytest.approx(0.7654769, abs=1e-7)
    assert torch.equal(sent(build("onebit"), POSITIVE), sent(codec, POSITIVE))
    assert error(build("onebit"), LECTURE) < error(codec, LECTURE)


def test_zeros_count_as_positive() -> None:
    assert sent(build("scaledsign"), torch.tensor([0.0, -0.0, -2.0])).sign().tolist() == [1, 1, -1]


@pytest.mark.parametrize(
    ("text", "variance"),
    [
        ("terngrad", 11817.0),
        ("terngrad:base3=true", 11817.0),
        ("qsgd:bits=2,norm=l2,block=8", 15911.843),
        ("qsgd:bits=4,norm=l2,block=8", 0.0269841 * ENERGY),
        ("qsgd:bits=8,norm=l2,block=8", 6.8027e-5 * ENERGY),
        ("qsgd:bits=2,norm=linf,block=8", 0.5539305 * ENERGY),
        ("qsgd:bits=4,norm=linf,block=8", 0.0184183 * ENERGY),
        ("int4:block=8", 0.0184183 * ENERGY),
        ("qsgd-elias:bits=4,norm=l2,block=8", 0.0269841 * ENERGY),
        ("nuqsgd:bits=2,block=8", 15911.843),
        ("nuqsgd:bits=3,block=8", 0.1157444 * ENERGY),
        ("nuqsgd:bits=4,block=8", 0.0654314 * ENERGY),
        ("natural", 581.0),
        ("natural:bits=9", 581.0),
    ],
)
def test_variance_of_quantizers(text: str, variance: float) -> None:
    codec = build(text)
    decoded = sent(codec, TILED).view(COPIES, 8)
    errors = (decoded - LECTURE).square().sum(1)
    assert abs(float(errors.mean()) - variance) < 4.5 * float(errors.std()) / COPIES**0.5 < 0.12 * variance
    off = (decoded.mean(0) - LECTURE).abs() / (decoded.std(0) / COPIES**0.5).clamp_min(1e-9)
    assert float(off.max()) < 4.5
    limit = codec.bound(8, 1.0).limit(ENERGY)
    assert limit is not None
    assert variance <= limit


def test_terngrad() -> None:
    decoded = sent(build("terngrad"), TILED)
    assert float((decoded != 0).sum()) / COPIES == pytest.approx(1.9615385, rel=0.02)
    assert float(decoded.square().sum()) / COPIES / ENERGY == pytest.approx(1.5539305, rel=0.02)
    clipped = build("terngrad-clipped").compress(POSITIVE, 1.0, KEY, torch.float32)
    assert clipped.values.tolist() == pytest.approx([101.5692], abs=1e-4)
    layers = build("terngrad").fitted(((2, 2), (4,))).compress(POSITIVE, 1.0, KEY, torch.float32)
    assert layers.values.tolist() == [130, 56]


def test_natural_coordinates() -> None:
    decoded = sent(build("natural"), TILED).view(COPIES, 8)
    errors = (decoded - LECTURE).square()
    off = errors.mean(0) - torch.tensor([1.0, 0, 252, 3, 7, 192, 63, 63])
    assert (off.abs() <= 4.5 * errors.std(0) / COPIES**0.5).all()
    powers = torch.tensor([0.0, 1.0, -2.0, 0.125, 2.0**-100])
    assert torch.equal(sent(build("natural"), powers), powers.double())


def test_one_level_of_l2_is_the_lectures_ternary() -> None:
    decoded = sent(build("qsgd:bits=2,norm=l2,block=8"), TILED)
    assert float((decoded != 0).sum()) / COPIES == pytest.approx(1.7458793, rel=0.02)
    assert float(decoded.square().sum()) / COPIES / ENERGY == pytest.approx(1.7458793, rel=0.02)


def test_elias_lengths() -> None:
    numbers = torch.tensor([1, 2, 3, 4, 7, 8, 15, 16, 31, 32])
    assert omega(numbers)[1].tolist() == [1, 3, 3, 6, 6, 7, 7, 11, 11, 12]
    assert encode(torch.tensor([0, 0, 4, 0, 0, 1, 1, 0])).numel() + 32 == 56  # 18 bits, filled up to 24
    specs = build("qsgd-elias").specs_of(7, 8, 1.0, torch.float32)
    assert [part.nbytes for part in specs] == [4, 3]


def test_elias_sizes() -> None:
    codec = build("qsgd-elias:bits=2")
    bits = [
        8 * codec.compress(vector("gauss", 512, s), 1.0, Key(0, s, 0, 0), torch.float32).nbytes
        for s in range(50)
    ]
    assert sum(bits) / 50 == pytest.approx(229, rel=0.1)
    lengths = []
    for seed in range(50):
        x = vector("gauss", 512, seed)
        levels = stochastic_round(x.abs() / x.norm() * 23, seed) * x.sign()
        lengths.append(32 + encode(levels).numel())
    assert sum(lengths) / 50 == pytest.approx(1456, rel=0.03)


@pytest.mark.parametrize("shape", [(2, 4), (4, 2)])
def test_svd(shape: tuple[int, int]) -> None:
    expected = {(2, 4): 133.768215, (4, 2): 133.774900}[shape] ** 2 / ENERGY
    assert gain(SVD().fitted([shape]), POSITIVE, 1.3) == pytest.approx(expected, abs=1e-6)
    if shape == (2, 4):
        assert expected == pytest.approx(0.8387913, abs=1e-7)


def test_atomo() -> None:
    values = torch.tensor([133.768215, 58.643540], dtype=torch.float64)
    for budget, chances, variance in ((1.0, [0.695219, 0.304781], 15689.283), (1.5, [1.0, 0.5], 3439.065)):
        p = water_filling(values, budget)
        assert p.tolist() == pytest.approx(chances, abs=1e-6)
        assert float((values.square() * (1 / p - 1)).sum()) == pytest.approx(variance, rel=1e-5)
    p = water_filling(POSITIVE.double(), 3.0)
    assert p.tolist() == pytest.approx([0.048, 0.032, 1, 0.112, 0.144, 0.896, 0.4, 0.368])
    assert float(p.sum()) == pytest.approx(3.0)
    assert float((POSITIVE.double().square() * (1 / p - 1)).sum()) == pytest.approx(3379.5)
    codec = build("atomo")
    assert isinstance(codec, LowRank)
    decoded = draws(codec.fitted([(2, 4)]), POSITIVE, 1.3, 4000)
    assert float((decoded - POSITIVE).square().sum(1).mean()) == pytest.approx(15689.283, rel=0.05)
    # Drawing again when nothing came out would make everything larger by this.
    empty = (1 - 0.695219) * (1 - 0.304781)
    assert 1 / (1 - empty) == pytest.approx(1.2689, abs=1e-4)
    assert float((decoded == 0).all(1).double().mean()) == pytest.approx(empty, rel=0.1)


@pytest.mark.parametrize("budget", [0.5, 1.0, 2.0, 3.7, 6.0, 9.0])
def test_water_filling_is_the_best_spending(budget: float) -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.rand(20, 7, generator=generator, dtype=torch.float64) ** 3
    values[0, 3:] = 0
    p = water_filling(values, budget)
    positive = (values > 0).sum(1)
    assert torch.allclose(p.sum(1), positive.clamp(max=budget).double().minimum(torch.tensor(budget)))

    def cost(chances: Tensor) -> Tensor:
        return torch.where(values > 0, values.square() / chances, 0.0).sum(1)

    for _ in range(200):  # no other way of spending the same is cheaper
        other = (torch.rand(p.shape, generator=generator, dtype=torch.float64) * p).clamp_min(1e-9)
        other = (other * (p.sum(1, keepdim=True) / other.sum(1, keepdim=True))).clamp(max=1.0)
        assert bool((cost(other) >= cost(p) * (1 - 1e-9)).all())


@pytest.mark.parametrize(
    ("rows", "cf", "omega"), [(1, 2.0, 1.0), (2, 2.0, 1.5), (1, 8 / 3, 1.75), (1, 1.0, 0.0)]
)
def test_count_sketch_variance(rows: int, cf: float, omega: float) -> None:
    """Balanced hash: Σ c(c - 1)/n over the rows; with independent hashes it would be (n - 1)/(rows · w)."""
    codec = build(f"countsketch:rows={rows}")
    assert codec.bound(8, cf).omega == omega
    errors = (draws(codec, LECTURE, cf, 3000) - LECTURE).square().sum(1)
    assert float(errors.mean()) == pytest.approx(omega * ENERGY, rel=0.06, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "omega"),
    [("int8", 0.0040), ("int4", 0.163), ("qsgd:bits=2", 22.63), ("natural", 0.125), ("terngrad", 499.5)],
)
def test_bounds_by_number(text: str, omega: float) -> None:
    assert build(text).bound(10**6, 1.0).omega == pytest.approx(omega, rel=0.01)
