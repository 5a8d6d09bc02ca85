"""A predicted threshold saves counting and never changes a result: equal sums, equal elements, or None."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.kernels import Sifted, Sifter, energy, inner, take_top, tally
from gravac.kernels.sifting import SLACK
from tests.support.maths.backends import LENGTHS, on, vector


def at(sifter: Sifter, level: float) -> Sifter:
    sifter.level = level
    return sifter


@settings(deadline=None, max_examples=150)
@given(
    n=LENGTHS,
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["normal", "mixed"]),
    share=st.sampled_from([1.0, 0.25]),
    has_residual=st.booleans(),
    clear=st.booleans(),
    data=st.data(),
)
def test_candidates_give_what_counting_gives(
    n: int, seed: int, kind: str, share: float, has_residual: bool, clear: bool, data: st.DataObject
) -> None:
    n = max(n, 1)
    g, e = vector(n, seed, kind), vector(n, seed + 1, kind) if has_residual else None
    expected, found = torch.empty(n), torch.full((n,), 7.0)
    hint = tally(g, e, share=share, out=expected, sums=True)
    sizes = expected.abs()
    k = data.draw(st.integers(1, n))
    level = float(sizes[data.draw(st.integers(0, n - 1))])
    with on("cpu"):
        sifter = at(Sifter(k, n), level)
        if not sifter.takes(g):
            assert level == 0.0
            return
        sifted = sifter.sift(g, e, found, share)
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
        assert sifted.energy == pytest.approx(hint.energy)
        assert sifted.gradient_sq == pytest.approx(hint.gradient_sq)
        slack = 1e-9 * math.sqrt(energy(g) * (0.0 if e is None else energy(e)))
        assert sifted.residual_dot_gradient == pytest.approx(
            0.0 if e is None else inner(g, e), rel=1e-4, abs=slack
        )
        assert sifted.residual_dot_gradient == pytest.approx(hint.residual_dot_gradient, abs=slack)
        passed = int((sizes >= level).sum())
        usable = k <= passed <= min(n, math.ceil(k * (n / k) ** (2 * SLACK))) and math.isfinite(sifted.energy)
        assert (sifted.places is not None) == usable
        taken, values = take_top(found, k, sifted, clear=clear)
    places, same = take_top(expected, k, hint, clear=clear)
    assert torch.equal(taken, places)
    assert torch.equal(values.view(torch.int32), same.view(torch.int32))
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@settings(deadline=None, max_examples=40)
@given(n=LENGTHS, seed=st.integers(0, 10**6), kind=st.sampled_from(["normal", "wild"]))
def test_over_the_residual_it_gives_what_counting_gives(n: int, seed: int, kind: str) -> None:
    n = max(n, 1)
    g, e = vector(n, seed, kind), vector(n, seed + 1, "normal")
    expected, found = e.clone(), e.clone()
    hint = tally(g, expected, out=expected, sums=True)
    with on("cpu"):
        sifted = at(Sifter(1, n), float(expected.abs().max()) / 2 or 1.0).sift(g, found, found)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    assert math.isfinite(sifted.energy) == bool(g.isfinite().all())
    if math.isfinite(sifted.energy):
        assert sifted.energy == pytest.approx(hint.energy)
        assert sifted.gradient_sq == pytest.approx(hint.gradient_sq)
        assert sifted.residual_dot_gradient == pytest.approx(inner(g, e), rel=1e-4, abs=1e-4 * energy(g))
    else:
        assert sifted.places is None


def test_the_guess_follows_a_gradient_that_grows_and_shrinks() -> None:
    """Thirty steps, 5 % up or down each; all but the first one or two find their candidates."""
    generator, n, k = torch.Generator().manual_seed(0), 20_000, 200
    with on("cpu"):
        sifter, out, hits = Sifter(k, n), torch.empty(n), 0
        for step in range(30):
            g = torch.randn(n, generator=generator) * 1.05 ** (step if step < 15 else 30 - step)
            if not sifter.takes(g):
                sifter.update_threshold(tally(g))
                assert step == 0
                continue
            sifted = sifter.sift(g, None, out)
            hits += sifted.places is not None
            if sifted.places is None:
                sifter.update_threshold(tally(out))
    assert hits >= 27


def test_a_histogram_gives_a_guess_of_the_right_size() -> None:
    x = vector(50_000, 3, "normal")
    sifter = Sifter(500, 50_000)
    sifter.update_threshold(tally(x))
    passed = int((x.abs() >= sifter.level).sum())
    assert sifter.wanted <= passed <= 1.1 * sifter.wanted
    assert sifter.wanted == math.ceil(500 * 100**SLACK)


@pytest.mark.parametrize(("level", "why"), [(1e30, "nothing is so large"), (1e-30, "all are")])
def test_a_wrong_guess_is_reported_and_corrected(level: float, why: str) -> None:
    x = vector(5000, 1, "normal")
    with on("cpu"):
        sifter = at(Sifter(50, 5000), level)
        sifted = sifter.sift(x, None, torch.empty(5000))
        assert sifted.places is None, why
        assert torch.equal(take_top(x, 50, sifted)[0], take_top(x, 50)[0])
        assert not sifter.takes(x)  # no guess is better than that one


def test_what_is_not_finite_gives_no_candidates() -> None:
    x = torch.ones(1000)
    x[17] = torch.nan
    with on("cpu"):
        sifted = at(Sifter(10, 1000), 0.5).sift(x, None, torch.empty(1000))
    assert sifted.energy == math.inf
    assert sifted.places is None


def test_candidates_of_another_tensor_are_not_used() -> None:
    x, other = vector(1000, 1, "normal"), vector(1000, 2, "normal")
    with on("cpu"):
        level = float(x.abs().sort().values[-15])
        sifted = at(Sifter(10, 1000), level).sift(x, None, torch.empty(1000))
        assert sifted.places is not None
        assert torch.equal(take_top(other, 10, sifted)[0], take_top(other, 10)[0])


def test_unsupported_input_is_refused() -> None:
    g, out = torch.ones(8), torch.empty(8)
    with pytest.raises(ValueError, match="no guess yet"):
        Sifter(1, 8).sift(g, None, out)
    with on("reference"), pytest.raises(ValueError, match="no compiled kernel"):
        at(Sifter(1, 8), 0.5).sift(g, None, out)
    with on("cpu"), pytest.raises(ValueError, match=r"residual is torch.float64"):
        at(Sifter(1, 8), 0.5).sift(g, g.double(), out)
    with on("cpu"), pytest.raises(ValueError, match="out has 8 elements, this sifter is for 9"):
        at(Sifter(1, 9), 0.5).sift(g, None, out)
    assert isinstance(at(Sifter(8, 8), 0.5).sift(g, None, out), Sifted)
