"""The spectrum pass: counts and energies exact, equal on all backends, the residual added in the same pass."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.kernels import Tally, add_finite, tally
from tests.support.maths.backends import LENGTHS, everywhere, on, vector

KINDS = st.sampled_from(["normal", "mixed", "wild"])


def facts(found: Tally) -> tuple[torch.Tensor, torch.Tensor]:
    return found.counts, found.energies


@settings(deadline=None, max_examples=40)
@given(n=LENGTHS, seed=st.integers(0, 10**6), kind=KINDS)
def test_counts_and_energies_are_exact(n: int, seed: int, kind: str) -> None:
    x = vector(n, seed, kind)
    counts, energies = everywhere(lambda: facts(tally(x)))
    bins: dict[int, list[float]] = {}
    for value, bits in zip(x.tolist(), (x.view(torch.int32) & 0x7FFFFFFF).tolist(), strict=True):
        bins.setdefault(bits >> 19, []).append(value)
    assert {b: int(counts[b]) for b in counts.nonzero().flatten().tolist()} == {
        b: len(values) for b, values in bins.items()
    }
    for b, values in bins.items():
        expected = math.fsum(v * v for v in values) if b < 4080 else 0.0
        assert float(energies[b]) == expected


@settings(deadline=None, max_examples=60)
@given(
    n=LENGTHS,
    seed=st.integers(0, 10**6),
    kind=KINDS,
    share=st.sampled_from([1.0, 0.9, 0.3, 0.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_the_residual_is_added_in_the_same_pass(
    n: int, seed: int, kind: str, share: float, dtype: torch.dtype
) -> None:
    g, e = vector(n, seed, kind).to(dtype), vector(n, seed + 1, kind)

    def run() -> tuple[torch.Tensor, ...]:
        p = torch.full((n,), 7.0)
        return p, *facts(tally(g, e, share=share, out=p))

    p, counts, energies = everywhere(run)
    assert torch.equal(p.nan_to_num(1.5), (g.float() + e * share).nan_to_num(1.5))
    again = facts(tally(p))
    assert torch.equal(counts, again[0])
    assert torch.equal(energies, again[1])


@settings(deadline=None, max_examples=30)
@given(n=LENGTHS, seed=st.integers(0, 10**6), given_e=st.booleans(), in_place=st.booleans())
def test_sums_of_the_gradient(n: int, seed: int, given_e: bool, in_place: bool) -> None:
    g, e = vector(n, seed, "normal"), vector(n, seed + 1, "normal") if given_e else None

    def run() -> tuple[Tally, torch.Tensor]:
        p = g.clone() if in_place else torch.empty(n)
        return tally(p if in_place else g, e, out=p, sums=True), p

    expected_p = g if e is None else g + e
    for name in ("cpu", "reference"):
        with on(name):  # type: ignore[arg-type]
            found, p = run()
        assert torch.equal(p, expected_p)
        dot = 0.0 if e is None else math.fsum((g.double() * e.double()).tolist())
        size = 1.0 if e is None else math.fsum((g.double() * e.double()).abs().tolist())
        assert found.gradient_sq == pytest.approx(math.fsum((g.double() ** 2).tolist()), rel=1e-12)
        assert found.residual_dot_gradient == pytest.approx(dot, abs=1e-12 * size)


@settings(deadline=None, max_examples=40)
@given(
    n=LENGTHS,
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    sums=st.booleans(),
)
def test_over_the_residual_elements_that_are_not_finite_count_as_nothing(
    n: int, seed: int, dtype: torch.dtype, sums: bool
) -> None:
    """So that the residual survives them. ‖g‖² shows that they were there."""
    g, e = vector(n, seed, "wild").to(dtype), vector(n, seed + 1)
    shown: list[bool] = []

    def run() -> tuple[torch.Tensor, ...]:
        p = e.clone()
        found = tally(g, p, out=p, sums=sums)
        shown.append(not sums or math.isfinite(found.gradient_sq or 0.0) == bool(g.isfinite().all()))
        return p, *facts(found)

    p, counts, energies = everywhere(run)
    assert torch.equal(p, g.float().nan_to_num(0.0, 0.0, 0.0) + e)
    assert torch.equal(counts, facts(tally(p))[0])
    assert torch.equal(energies, facts(tally(p))[1])
    assert all(shown)
    added = e.clone()
    add_finite(added, g)
    assert torch.equal(added, p)
    add_finite(added, g, -1.0)
    assert torch.equal(added, p - g.float().nan_to_num(0.0, 0.0, 0.0))


def test_the_sum_over_the_residual_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow gradients are widened in parts, with what remains at the end."""
    monkeypatch.setattr("gravac.kernels.reference.AT_ONCE", 64)
    g, e = vector(200, 1, "wild").bfloat16(), vector(200, 2)

    def run() -> tuple[torch.Tensor, ...]:
        p = e.clone()
        return p, *facts(tally(g, p, out=p, sums=True))

    p, counts, _ = everywhere(run)
    assert torch.equal(p, g.float().nan_to_num(0.0, 0.0, 0.0) + e)
    assert int(counts.sum()) == 200


def test_sums_of_many_equal_numbers_do_not_overflow() -> None:
    """All significands at their largest, in one bin: the 64-bit sums hold as many as they claim."""
    x = torch.full((300_007,), 1.9999999)
    counts, energies = everywhere(lambda: facts(tally(x)))
    place = (127 << 4) | 15
    assert int(counts[place]) == x.numel()
    assert float(energies.sum()) == float(energies[place]) == float(x[0].double() ** 2) * x.numel()


def test_a_non_finite_element_is_seen() -> None:
    x = torch.ones(100)
    assert (tally(x).nonfinite, tally(x).energy, int(tally(x).counts.sum())) == (0, 100.0, 100)
    for value in (math.inf, -math.inf, math.nan):
        x[41] = value
        found = tally(x)
        assert (found.nonfinite, found.energy) == (1, math.inf)


def test_without_a_residual_the_gradient_is_copied_or_left() -> None:
    g = vector(1000, 3)

    def run() -> torch.Tensor:
        p = torch.empty(1000)
        tally(g, out=p)
        return p

    assert torch.equal(everywhere(run), g)
    half = g.to(torch.bfloat16)
    assert int(tally(half).counts.sum()) == 1000


def test_strided_tensors_are_taken_too() -> None:
    wide = vector(2000, 5)
    counts, _ = everywhere(lambda: facts(tally(wide[::2])))
    assert torch.equal(counts, tally(wide[::2].clone()).counts)


def test_what_does_not_fit_is_refused() -> None:
    g = torch.ones(10)
    with pytest.raises(ValueError, match="residual is given but out is not"):
        tally(g, torch.ones(10))
    with pytest.raises(ValueError, match=r"residual is torch.float32 of shape \(9,\)"):
        tally(g, torch.ones(9), out=torch.empty(10))
    with pytest.raises(ValueError, match=r"gradient has shape \(2, 5\); flatten it first"):
        tally(g.view(2, 5))
    with pytest.raises(ValueError, match=r"out is torch.bfloat16"):
        tally(g, out=torch.empty(10, dtype=torch.bfloat16))
