"""The curve of gain against CF: never above the truth, close to it, and what adds up to what."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gravac.compressors import build
from gravac.compressors.base import kept_count
from gravac.kernels import take_top, tally
from gravac.signals.spectrum import LADDER, Spectrum
from tests.support.maths.backends import vector

CFS = tuple(1.5 * (1000 / 1.5) ** (step / 60) for step in range(61))


def spectrum(x: Tensor) -> Spectrum:
    return Spectrum.of(tally(x))


def truth(x: Tensor, cfs: tuple[float, ...] = CFS) -> list[float]:
    """By sorting."""
    energies = x.double().square().sort(descending=True).values.cumsum(0)
    return [float(energies[kept_count(x.numel(), cf) - 1] / energies[-1]) for cf in cfs]


def shortfall(x: Tensor, found: Spectrum) -> float:
    """How much too low the worst gain is; fails if one is too high."""
    off = [true - said for true, said in zip(truth(x), found.curve(CFS).gains(), strict=True)]  # type: ignore[operator]
    assert min(off) >= 0.0
    return max(off)


@settings(deadline=None, max_examples=80)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
    cf=st.floats(1.0, 60.0),
)
def test_the_gain_is_never_too_high(values: list[float], cf: float) -> None:
    """In exact arithmetic; also where numbers are tiny, huge, or all the same."""
    squares = sorted((Fraction(value) ** 2 for value in values), reverse=True)
    said = spectrum(torch.tensor(values)).gain(cf)
    if not sum(squares):
        assert said is None
        return
    k = kept_count(len(values), cf)
    true = sum(squares[:k]) / sum(squares)
    assert said is not None
    assert Fraction(said) <= true
    if k == len(values):
        assert said == 1.0
    # A bin spans a ratio of 17/16 of magnitudes, except of denormal ones.
    if min(abs(value) for value in values) > 1e-37:
        assert said >= float(true) * (16 / 17) ** 2


def quantiles(name: str, n: int) -> Tensor:
    """``n`` numbers spread exactly as the law says, not at random."""
    share = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    if name == "gauss":
        return (math.sqrt(2) * torch.erfinv(2 * share - 1)).float()
    return (-torch.sign(share - 0.5) * torch.log1p(-2 * (share - 0.5).abs())).float()


def closed(name: str, cf: float) -> float:
    """gain at threshold t with P(|x| > t) = 1/cf. Laplace: (1 + L + L²/2)/cf, L = ln cf; Gauss: 2(t·φ(t) + Q(t))."""
    if name == "laplace":
        log = math.log(cf)
        return (1 + log + log**2 / 2) / cf
    t = -math.sqrt(2) * float(torch.erfinv(torch.tensor(1 / cf - 1, dtype=torch.float64)))
    return 2 * (t * math.exp(-t * t / 2) / math.sqrt(2 * math.pi) + 0.5 / cf)


@pytest.mark.parametrize("name", ["gauss", "laplace"])
def test_closed_forms(name: str) -> None:
    found = spectrum(quantiles(name, 400_000))
    for cf, said in zip(CFS, found.curve(CFS).gains(), strict=True):
        assert said == pytest.approx(closed(name, cf), abs=1e-3)
    assert shortfall(quantiles(name, 400_000), found) <= 8e-4


def fed(cf: float, steps: int = 40) -> Tensor:
    """Gradient and residual of a small network in training with Top-k at that CF."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(256, 32, generator=generator)
    labels = (data @ torch.randn(32, 8, generator=generator)).argmax(1)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 128), nn.Tanh(), nn.Linear(128, 8))
    parameters = list(net.parameters())
    residual = torch.zeros(sum(p.numel() for p in parameters))
    p = residual.clone()
    for step in range(steps):
        part = slice(32 * (step % 8), 32 * (step % 8 + 1))
        loss = nn.functional.cross_entropy(net(data[part]), labels[part])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        hint = tally(gradient, residual, out=p)
        residual.copy_(p)
        indices, values = take_top(residual, kept_count(p.numel(), cf), hint, clear=True)
        sent = torch.zeros_like(p)
        sent[indices.long()] = values
        with torch.no_grad():
            for parameter, piece in zip(parameters, sent.split([q.numel() for q in parameters]), strict=True):
                parameter -= 0.2 * piece.view_as(parameter)
    assert torch.equal(sent + residual, p)  # nothing is lost on the way
    return p


@pytest.mark.parametrize("cf", [1.0, 10.0, 100.0, 1000.0])
def test_gradients_with_error_feedback(cf: float) -> None:
    """Error feedback makes tails light: all that is large has been sent. That is the hardest case for bins."""
    x = fed(cf)
    found = spectrum(x)
    assert shortfall(x, found) <= 2e-3


def test_added_spectra_are_the_spectrum_of_all_together() -> None:
    one, two = vector(3000, 1, "normal"), 100 * vector(2000, 2, "normal")
    both = spectrum(torch.cat((one, two)))
    added = spectrum(one) + spectrum(two)
    assert torch.equal(added.counts, both.counts)
    assert added.curve().gains() == pytest.approx(both.curve().gains(), rel=1e-12)


def test_added_curves_are_what_buckets_keep_each_for_itself() -> None:
    """One threshold for both would keep more: that is why spectra must not be added for DDP's buckets."""
    generator = torch.Generator().manual_seed(1)
    one, two = torch.randn(3000, generator=generator), 4 * torch.randn(2000, generator=generator)
    curve = spectrum(one).curve(CFS) + spectrum(two).curve(CFS)
    energies = [float(x.double().square().sum()) for x in (one, two)]
    each = [truth(x) for x in (one, two)]
    for place, said in enumerate(curve.gains()):
        true = sum(e * gains[place] for e, gains in zip(energies, each, strict=True)) / sum(energies)
        assert said is not None
        assert true - 2e-3 <= said <= true
        assert int(curve.elements[place]) == kept_count(3000, CFS[place]) + kept_count(2000, CFS[place])
    together = (spectrum(one) + spectrum(two)).curve(CFS).gains()
    assert max(t - s for t, s in zip(together, curve.gains(), strict=True)) > 0.05  # type: ignore[operator]
    ranks = spectrum(one).curve(CFS)
    assert ranks.summed(ranks.sums() + spectrum(two).curve(CFS).sums()).gains() == curve.gains()
    with pytest.raises(ValueError, match="curves of different CFs cannot be added"):
        _ = curve + spectrum(one).curve()


def test_wire_bytes_are_the_codecs() -> None:
    codec = build("topk")
    curve = spectrum(vector(10_000, 1)).curve(LADDER, lambda n, cf: codec.wire_bytes(n, cf, torch.float32))
    assert curve.wire_bytes.tolist() == [codec.wire_bytes(10_000, cf, torch.float32) for cf in LADDER]
    assert LADDER[0] == 1.0
    assert LADDER[-1] == 1000.0


def test_empty_and_non_finite_tensors() -> None:
    for empty in (torch.zeros(10), torch.empty(0)):
        found = spectrum(empty)
        assert found.gain(10.0) is None
        assert found.energy == 0.0
    assert spectrum(torch.empty(0)).curve().elements.tolist() == [0] * len(LADDER)
    with pytest.raises(ValueError, match="2 elements are infinite or NaN"):
        spectrum(torch.tensor([1.0, math.inf, math.nan]))
