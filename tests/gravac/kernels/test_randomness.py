"""Random numbers that follow from a seed: those published, the same on every backend, and uniform."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.kernels import noise
from gravac.kernels.randomness import mixed, signed, stream, words
from tests.support.maths.backends import everywhere

HOST = torch.device("cpu")


def test_the_published_numbers() -> None:
    """SplitMix64 seeded with 1234567, as its authors' code and Rosetta Code print it."""
    golden = 0x9E3779B97F4A7C15
    printed = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [mixed((1234567 + golden * i) % 2**64) for i in range(1, 5)] == printed
    expected = [signed(mixed((stream(5) + golden * i) % 2**64)) for i in range(3, 7)]
    assert words(4, 5, HOST, first=2).tolist() == expected


@settings(deadline=None, max_examples=40)
@given(n=st.sampled_from([0, 1, 2, 3, 511, 512, 513, 1025, 131_073]), seed=st.integers(0, 2**63 - 1))
def test_noise_is_the_same_everywhere(n: int, seed: int) -> None:
    drawn = everywhere(lambda: noise(n, seed, HOST))
    assert drawn.dtype == torch.float32
    if n:
        assert 0.0 <= float(drawn.min()) <= float(drawn.max()) < 1.0
        assert torch.equal(noise(n + 7, seed, HOST)[:n], drawn)


def test_noise_is_uniform_and_independent_of_its_neighbors() -> None:
    n, limit = 200_000, 4.5
    drawn = noise(n, 3, HOST).double()
    for share in (0.001, 0.0625, 0.5):
        for stride in (1, 2, 8):
            every = drawn[::stride]
            off = float((every < share).sum()) - every.numel() * share
            assert abs(off) < limit * math.sqrt(every.numel() * share * (1 - share))
    centred = (drawn - 0.5) * math.sqrt(12)
    for lag in (1, 2, 3, 8, 512):
        assert abs(float(centred[lag:] @ centred[:-lag])) < limit * math.sqrt(n)
    for other in (4, 5, 3 + 2**32, 3 + 2**62):
        assert abs(float(centred @ ((noise(n, other, HOST).double() - 0.5) * 12**0.5))) < limit * math.sqrt(n)
