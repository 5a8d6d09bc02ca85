"""Count sketch: adding, fixed hashes, heavy hitters."""

import pytest
import torch

from gravac.compressors import build
from gravac.compressors.countsketch import CountSketch, HeavyHitters
from tests.support.maths.checks import ENERGY, KEY, LECTURE, draws, vector


def test_with_a_fixed_hash_encode_of_decode_multiplies_by_the_load() -> None:
    codec = CountSketch()
    payload = codec.compress(vector("gauss", 100), 4.0, KEY, torch.float32)
    again = codec.compress(codec.decode(payload), 4.0, KEY, torch.float32)
    torch.testing.assert_close(again.values, 4 * payload.values)


def test_loads_are_balanced_and_a_full_width_is_lossless() -> None:
    x = vector("gauss", 103)
    (bucket, sign), *_ = CountSketch().hashes(103, 10, KEY, torch.device("cpu"))
    assert sorted(set(torch.bincount(bucket).tolist())) == [10, 11]
    assert set(sign.tolist()) == {-1.0, 1.0}
    assert torch.equal(CountSketch().decode(CountSketch().compress(x, 1.0, KEY, torch.float32)), x)


def spikes(seed: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(10_000, generator=generator)[:20].sort().values
    x = noise * torch.randn(10_000, generator=generator)
    x[places] += 10.0 * (torch.randint(2, (20,), generator=generator) * 2 - 1)
    return x, places


def test_heavy_hitters_are_found() -> None:
    codec = HeavyHitters(rows=5, hitters=20)  # CF 1: 2,000 buckets a row
    for seed in range(20):
        x, places = spikes(seed, 0.1)
        decoded = codec.decode(codec.compress(x, 1.0, KEY._replace(step=seed), torch.float32))
        assert torch.equal(decoded.nonzero().squeeze(1), places)
    x, places = spikes(0, 0.0)
    decoded = codec.decode(codec.compress(x, 1.0, KEY, torch.float32))
    assert torch.equal(decoded, x)


def test_on_dense_data_they_are_useless() -> None:
    n, x = 2**16, vector("gauss", 2**16)
    codec = HeavyHitters(rows=5, hitters=n // 100)
    payload = codec.compress(x, 10.0, KEY, torch.float32)  # five rows of n / 50
    energy = float(x.square().sum())
    assert codec.kept_energy(payload, x) / energy < 0.012
    assert codec.energy(payload) / energy > 1.0


def test_medians_resist_a_spike_that_spoils_the_mean() -> None:
    x = vector("gauss", 1000)
    x[17] = 1e4
    others = torch.arange(1000) != 17
    errors = {}
    for name in ("countsketch:rows=5", "countsketch-median:rows=5"):
        decoded = build(name).decode(build(name).compress(x, 2.0, KEY, torch.float32))
        errors[name] = float((decoded - x)[others].square().sum())
    assert errors["countsketch-median:rows=5"] < errors["countsketch:rows=5"] / 1000


@pytest.mark.parametrize(
    ("rows", "cf", "omega"), [(1, 2.0, 1.0), (2, 2.0, 1.5), (1, 8 / 3, 1.75), (1, 1.0, 0.0)]
)
def test_count_sketch_variance(rows: int, cf: float, omega: float) -> None:
    """Balanced hash: Σ c(c - 1)/n over the rows; with independent hashes it would be (n - 1)/(rows · w)."""
    codec = build(f"countsketch:rows={rows}")
    assert codec.bound(8, cf).omega == omega
    errors = (draws(codec, LECTURE, cf, 3000) - LECTURE).square().sum(1)
    assert float(errors.mean()) == pytest.approx(omega * ENERGY, rel=0.06, abs=1e-6)
