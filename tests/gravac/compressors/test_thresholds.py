"""Selectors by a threshold: which elements they send, and how many."""

import pytest
import torch

from gravac.compressors import build
from gravac.compressors.base import Compressor, kept_count
from gravac.compressors.sparse.thresholds import DGC, RedSync, Survivors, Thresholded
from gravac.kernels import select_top
from tests.support.maths.checks import KEY, achieved, vector

TEN = 10_000


def support(codec: Compressor, x: torch.Tensor, cf: float) -> torch.Tensor:
    found = codec.compress(x, cf, KEY, torch.float32).support
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["dgc", "redsync", "redsync-trimmed", "sidco", "hardthreshold-warmup"])
@pytest.mark.parametrize("kind", ["gauss", "heavy", "student"])
@pytest.mark.parametrize("cf", [4.0, 30.0, 300.0])
def test_thresholds_select_the_largest(name: str, kind: str, cf: float) -> None:
    x = vector(kind, TEN)
    found = support(build(name), x, cf)
    assert torch.equal(found, select_top(x, found.numel()))


@pytest.mark.parametrize("kind", ["gauss", "student"])
@pytest.mark.parametrize("cf", [4.0, 30.0, 300.0])
@pytest.mark.parametrize(
    ("name", "least", "most"), [("dgc", 0.8, 1.0), ("redsync", 1.0, 2.0), ("sidco", 0.5, 2.0)]
)
def test_thresholds_select_about_k(name: str, least: float, most: float, kind: str, cf: float) -> None:
    for seed in range(5):
        x, k = vector(kind, TEN, seed), kept_count(TEN, cf)
        payload = build(name).compress(x, cf, KEY._replace(step=seed), torch.float32)
        assert least * k <= payload.values.numel() <= most * k


@pytest.mark.parametrize("name", ["dgc", "redsync", "redsync-trimmed", "sidco"])
@pytest.mark.parametrize("kind", ["zero", "constant", "one_hot"])
def test_thresholds_on_vectors_without_a_tail(name: str, kind: str) -> None:
    """Ties and zeros neither send nothing nor everything."""
    x = vector(kind, TEN)
    count = support(build(name), x, 100.0).numel()
    assert 1 <= count <= 200
    if kind == "one_hot":
        assert TEN // 2 in support(build(name), x, 100.0).tolist()


@pytest.mark.parametrize("name", ["dgc", "redsync", "sidco", "hardthreshold", "hardthreshold-warmup"])
@pytest.mark.parametrize("cfs", [(4.0, 300.0), (30.0, 33.0), (300.0, 4.0), (5.0, 5.0, 1000.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_levels_are_what_each_alone_would_be(name: str, cfs: tuple[float, ...], dtype: torch.dtype) -> None:
    """Work that is shared between levels changes nothing; DGC's first threshold may miss, lower and higher."""
    codec = build(name)
    assert isinstance(codec, Thresholded)
    for kind in ("gauss", "heavy", "constant"):
        for step in range(3):
            x, key = vector(kind, 3000, step).to(dtype), KEY._replace(step=step)
            for payload, cf in zip(codec.levels(x, cfs, key, dtype), cfs, strict=True):
                assert payload.cf == cf
                assert torch.equal(payload.pack(), codec.compress(x, cf, key, dtype).pack())


def test_a_stronger_level_is_found_among_the_survivors_of_the_weaker() -> None:
    """Without looking at the tensor again: what it costs is the whole point."""
    survivors = Survivors(vector("heavy", TEN))
    weak = survivors.above(1.0)
    survivors.x.fill_(torch.nan)
    strong = survivors.above(3.0)
    assert 0 < strong.count < weak.count
    assert torch.equal(strong.places, weak.places[weak.values.abs() >= 3.0])
    assert survivors.count(2.0) == int((weak.values.abs() >= 2.0).sum())
    assert survivors.mean(1.0) == pytest.approx(float(weak.values.abs().mean()))


def test_trimmed_redsync_is_topk_ties_included() -> None:
    x = torch.tensor([1.0, -3, 2, 3, -3, 0, 2, 1])
    for k in range(1, 9):
        assert torch.equal(support(build("redsync-trimmed"), x, 8 / k), support(build("topk"), x, 8 / k))


def test_the_achieved_cf_is_reported() -> None:
    """Public code stops searching at a tolerance of 0.2 and misses; so does any search above the mean at a low CF."""
    x = vector("gauss", TEN)
    low = build("redsync")
    payload = low.compress(x, 1.5, KEY, torch.float32)
    assert achieved(payload) == pytest.approx(2.4, abs=0.1)  # 43 % of normal elements lie above the mean
    coarse = RedSync(tolerance=0.2)
    assert achieved(coarse.compress(x, 1000.0, KEY, torch.float32)) == 500.0  # cut at 2k, not more


def test_dgc_samples_and_still_finds_the_largest() -> None:
    x = vector("gauss", 200_000)
    found = support(DGC(sample=0.01), x, 1000.0)
    assert 160 <= found.numel() <= 200
    assert set(found.tolist()) <= set(support(build("topk"), x, 1000.0).tolist())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["topk", "dgc", "redsync", "redsync-trimmed", "sidco", "hardthreshold"])
def test_thresholds_never_drop_a_non_finite_element(name: str, bad: float) -> None:
    x = vector("gauss", 1000)
    x[321] = bad
    assert 321 in support(build(name), x, 1000.0).tolist()
