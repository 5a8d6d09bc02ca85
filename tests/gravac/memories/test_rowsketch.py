"""Sketches of rows: linear, balanced, and unbiased over hashes."""

import pytest
import torch

from gravac.memories import build
from gravac.memories.rowsketch import RowSketch


def load(sketcher: RowSketch, numel: int) -> int:
    """Elements in the fullest bucket of a parameter."""
    _, length, width = sketcher.shape(numel)
    return -(-length // width)


@pytest.mark.parametrize("size", [0.01, 0.1, 0.3, 1 / 3, 0.4, 0.5, 0.51, 0.7, 0.9, 0.99, 1.0])
def test_no_bucket_holds_more_than_the_default_beta_expects(size: float) -> None:
    """At the default a full send takes back at most what the fullest bucket of any parameter holds."""
    memory, sketcher = build(f"conef-sketch:size={size}"), RowSketch(size, 256, 0)
    loads = {numel: load(sketcher, numel) for numel in (*range(257, 1200), 4096, 1 << 20)}
    assert max(loads.values()) * memory.offered_share() <= 1.0 + 1e-9
    assert (1.0 - memory.offered_share()) <= 1.0 - size + 0.5  # not far more than is needed


@pytest.mark.parametrize("numel", [1, 7, 255, 256, 257, 300, 4096, 5003])
@pytest.mark.parametrize("size", [0.1, 0.4, 1.0])
def test_row_sketches_are_linear_and_balanced(size: float, numel: int) -> None:
    sketcher = RowSketch(size, 256, 0)
    rows, length, width = sketcher.shape(numel)
    assert 0 <= rows * length - numel < rows or length <= 256
    x, y = (torch.randn(numel, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
    s = sketcher.encode(x)
    assert s.shape == (rows * width,)
    assert s.numel() <= (size * numel + 2 * rows if numel > 256 else numel)
    torch.testing.assert_close(sketcher.encode(x + y), s + sketcher.encode(y))
    torch.testing.assert_close(sketcher.encode(sketcher.least_norm(s, numel)), s)
    loads = torch.bincount(sketcher._hash(length, width, x.device).bucket.int(), minlength=width)
    assert int(loads.max() - loads.min()) <= 1
    assert int(loads.max()) == load(sketcher, numel)
    if size == 1.0 or numel <= 256:  # nothing collides: lossless
        torch.testing.assert_close(sketcher.decode(s, numel), x)
    assert torch.equal(RowSketch(size, 256, 0).encode(x), s)
    if numel > 256 and size < 1.0:
        assert not torch.equal(RowSketch(size, 256, 1).encode(x), s)


def test_sketches_are_unbiased_over_hashes() -> None:
    x = torch.randn(512, generator=torch.Generator().manual_seed(0))
    decoded = torch.stack(
        [RowSketch(0.25, 256, seed).decode(RowSketch(0.25, 256, seed).encode(x), 512) for seed in range(4000)]
    )
    deviations = (decoded.mean(0) - x).abs() / (decoded.std(0) / 4000**0.5)
    assert float(deviations.max()) < 4.5
    noise = float((decoded - x).square().sum(1).mean() / x.square().sum())
    assert noise == pytest.approx(256 / 64 - 1, rel=0.05)  # ω = n/w - 1
