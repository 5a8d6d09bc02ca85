"""The property suite of codecs. It runs over the registry: a new member inherits it by being registered."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gravac.compressors import Key, build
from tests.support.maths import checks, members
from tests.support.maths.checks import LECTURE, vector

NAMES = members.texts()
HAVING = {trait: members.having(trait, NAMES) for trait in ("unbiased", "linear", "homogeneous", "nested")}
VARIABLE = members.having("fixed_size", HAVING["homogeneous"], value=False)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

vectors = st.builds(vector, st.sampled_from(checks.KINDS), st.integers(1, 200), st.integers(0, 50))
factors = st.one_of(st.just(1.0), st.floats(1.0, 500.0))


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_built(name: str) -> None:
    """Its examples are settings that it takes."""
    assert build(name).name


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=25)
@given(x=vectors, cf=factors, dtype=st.sampled_from(DTYPES), front=st.integers(0, 3))
def test_bytes_conservation_travel(name: str, x: Tensor, cf: float, dtype: torch.dtype, front: int) -> None:
    codec = build(name)
    checks.check_bytes(codec, x, cf, dtype)
    checks.check_conservation(codec, x, cf, dtype)
    checks.check_travel(codec, x, cf, dtype, front, build(name))


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=25)
@given(x=vectors, cf=factors)
def test_determinism_and_energies(name: str, x: Tensor, cf: float) -> None:
    checks.check_determinism(build(name), x, cf)
    checks.check_energies(build(name), x, cf)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_input_any_output(name: str, dtype: torch.dtype) -> None:
    for n, cf in ((1, 30.0), (2, 1.0), (7, 4.0), (64, 1.0), (300, 30.0)):
        checks.check_blank(build(name), n, cf, dtype)
        for kind in ("gauss", "zero", "one_hot", "constant"):
            checks.check_dtypes(build(name), vector(kind, n), cf, dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_elements_never_vanish(name: str, bad: float) -> None:
    """The rule of ``Compressor.compress``."""
    for n in (1, 6, 200):
        for cf in (1.0, 10.0, 100.0):
            checks.check_nonfinite(build(name), vector("gauss", n), cf, bad)
            checks.check_nonfinite(build(name), torch.full((n,), bad), cf, bad)


@pytest.mark.parametrize("name", NAMES)
def test_bound(name: str) -> None:
    for kind in ("gauss", "student", "one_hot", "zero"):
        checks.check_bound(build(name), vector(kind, 120), 10.0)
    for n, cf in ((30, 1.5), (120, 100.0)):
        checks.check_bound(build(name), vector("gauss", n), cf)


@pytest.mark.parametrize("name", HAVING["unbiased"])
def test_unbiased(name: str) -> None:
    ramp = torch.linspace(0.5, 1.5, 40) * torch.sign(vector("gauss", 40))
    checks.check_unbiased(build(name), LECTURE, 4.0)
    checks.check_unbiased(build(name), ramp, 12.0, 600)


@pytest.mark.parametrize("name", HAVING["homogeneous"])
@settings(deadline=None, max_examples=15)
@given(x=vectors, cf=factors)
def test_homogeneous(name: str, x: Tensor, cf: float) -> None:
    checks.check_homogeneous(build(name), x, cf)


@pytest.mark.parametrize("name", HAVING["linear"])
@settings(deadline=None, max_examples=25)
@given(x=vectors, seed=st.integers(0, 99), cf=factors)
def test_linear(name: str, x: Tensor, seed: int, cf: float) -> None:
    checks.check_linear(build(name), x, vector("gauss", x.numel(), seed), cf)


@pytest.mark.parametrize("name", HAVING["nested"])
@settings(deadline=None, max_examples=40)
@given(x=vectors, pair=st.tuples(factors, factors).map(sorted))
def test_nested(name: str, x: Tensor, pair: list[float]) -> None:
    checks.check_nested(build(name), x, *pair)


@pytest.mark.parametrize("name", members.having("nested", NAMES, value=False))
def test_a_codec_that_is_not_nested_refuses_to_narrow(name: str) -> None:
    codec = build(name)
    payload = codec.compress(vector("gauss", 100), 4.0, checks.KEY, torch.float32)
    with pytest.raises(ValueError, match=r"is not nested: compress the original tensor at cf=8 instead"):
        codec.narrow(payload, 8.0)


@pytest.mark.parametrize("name", VARIABLE)
def test_expected_bytes(name: str) -> None:
    checks.check_expected_bytes(build(name))


@pytest.mark.parametrize("name", NAMES)
def test_ladder_and_state(name: str) -> None:
    checks.check_ladder(build(name))
    checks.check_state(build(name), build(name), vector("gauss", 100), 10.0)


SAID = re.search(
    r"stays zero under all codecs but these: (.+?)\. They", Path("docs/codecs.md").read_text(), re.DOTALL
)
assert SAID is not None
MOVE_ZEROS = set(re.findall(r"`([\w-]+)`", SAID[1]))
"""Codecs that may decode an exact zero to something else, as the docs say; ``nearest`` with two levels only."""


@pytest.mark.parametrize("name", NAMES)
def test_exact_zeros_stay_zeros(name: str) -> None:
    """Masked weights, rows of ``padding_idx``: what never has a gradient must not be moved."""
    moved = False
    for n, first in ((640, 0), (1000, 3)):
        x, zero = vector("gauss", n), torch.zeros(n, dtype=torch.bool)
        zero[first::7] = zero[100:300] = True
        x[zero] = 0.0
        for cf, step in ((2.0, 0), (10.0, 1), (100.0, 2)):
            codec = build(name).fitted(((n,),))
            moved |= bool(codec.decode(codec.compress(x, cf, Key(0, step, 0, 0), torch.float32))[zero].any())
    kind, _, options = name.partition(":")
    signs = kind != "nearest" or options in ("", "levels=2")
    if not (kind in MOVE_ZEROS and signs):
        assert not moved, "name it in docs/codecs.md"
    elif options == "" and kind != "sparseloco":  # whose default has long chunks, and few elements here
        assert moved, "it keeps zeros: say so in docs/codecs.md"
