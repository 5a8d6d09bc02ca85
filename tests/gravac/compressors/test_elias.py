"""Elias coding: lossless, and as long as its code says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.compressors import Key, build
from gravac.compressors.quantize.elias import decode, encode
from gravac.kernels import stochastic_round
from gravac.kernels.entropy.elias import omega
from tests.support.maths.checks import vector


@settings(deadline=None, max_examples=60)
@given(
    levels=st.lists(st.one_of(st.just(0), st.integers(-200, 200)), min_size=1, max_size=80),
    zeros=st.integers(0, 5000),
)
def test_elias_coding_is_lossless(levels: list[int], zeros: int) -> None:
    expected = torch.tensor([*levels, *([0] * zeros), levels[0]])
    assert torch.equal(decode(encode(expected), expected.numel()), expected)


def test_elias_code_of_large_gaps_and_of_nothing() -> None:
    far = torch.zeros(3_000_000, dtype=torch.int64)
    assert encode(far).numel() == 0
    assert torch.equal(decode(encode(far), far.numel()), far)
    far[-1] = -127
    assert torch.equal(decode(encode(far), far.numel()), far)
    with pytest.raises(ValueError, match=r"last level belongs to element 2999999 of 1000"):
        decode(encode(far), 1000)


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
