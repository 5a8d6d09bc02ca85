"""Huffman coding: lossless, the same on every backend, near the entropy, and safe against damaged bytes."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gravac.compressors import build
from gravac.kernels.entropy.canonical import CODED, HEAD_BYTES, RAW
from gravac.kernels.entropy.huffman import huffman_decode, huffman_encode
from tests.support.maths.backends import everywhere
from tests.support.maths.checks import KEY


def bytes_of(n: int, seed: int, steep: float) -> Tensor:
    """n bytes with frequencies that fall off, the faster the larger ``steep`` is."""
    uniform = torch.rand(n, generator=torch.Generator().manual_seed(seed))
    return (uniform.pow(steep) * 256).clamp(max=255).to(torch.uint8)


def entropy(symbols: Tensor) -> float:
    """Bits of a symbol."""
    shares = torch.bincount(symbols, minlength=256).double() / symbols.numel()
    return float(-(shares[shares > 0] * shares[shares > 0].log2()).sum())


@settings(deadline=None, max_examples=60)
@given(
    n=st.one_of(st.integers(0, 9), st.integers(100, 2000)),
    seed=st.integers(0, 10**6),
    steep=st.sampled_from([1.0, 3.0, 9.0, 60.0, 2000.0]),
    behind=st.integers(0, 5),
)
def test_bytes_come_back_and_are_coded_the_same_everywhere(
    n: int, seed: int, steep: float, behind: int
) -> None:
    symbols = bytes_of(n, seed, steep)
    packed = everywhere(lambda: huffman_encode(symbols))
    assert packed.numel() <= n + 1
    longer = torch.cat((packed, torch.full((behind,), 255, dtype=torch.uint8)))
    decoded = everywhere(lambda: huffman_decode(longer, n)[0])
    assert torch.equal(decoded, symbols)
    assert huffman_decode(longer, n)[1] == packed.numel()


@pytest.mark.parametrize("steep", [2.0, 4.0, 9.0])
def test_within_three_percent_of_the_entropy(steep: float) -> None:
    symbols = bytes_of(100_000, 1, steep)
    bits = 8 * (huffman_encode(symbols).numel() - HEAD_BYTES) / symbols.numel()
    assert entropy(symbols) <= bits <= 1.03 * entropy(symbols)


def test_bytes_that_do_not_get_shorter_are_sent_as_they_are() -> None:
    symbols = torch.arange(256, dtype=torch.uint8).repeat(8)
    packed = huffman_encode(symbols)
    assert packed[0] == RAW
    assert torch.equal(packed[1:], symbols)


def test_damaged_bytes_are_refused_or_decode_to_as_many() -> None:
    """Never an index outside an array, which compiled code would not notice, and no hang."""
    symbols, pick = bytes_of(3000, 5, 9.0), random.Random(7)
    packed, refused = huffman_encode(symbols), []
    assert packed[0] == CODED
    for trial in range(600):
        damaged = packed.clone()
        for _ in range(1 + trial % 3):
            damaged[pick.randrange(packed.numel() if trial % 2 else HEAD_BYTES)] = pick.randrange(256)
        if trial % 5 == 0:
            damaged = damaged[: pick.randrange(packed.numel())]
        try:
            found, taken = huffman_decode(damaged, symbols.numel())
        except ValueError as error:
            refused.append(str(error))
        else:
            assert found.shape == symbols.shape
            assert taken <= damaged.numel()
    assert len(refused) > 300
    assert all("do not begin with a Huffman code of 3000 bytes" in message for message in refused)


def test_no_more_than_one_byte_is_added_near_the_limit() -> None:
    """Where codes save about as much as their head takes: each of four streams fills its last word, too."""
    kinds = set()
    for n in range(200, 600):
        packed = huffman_encode(bytes_of(n, n, 9.0))
        kinds.add(int(packed[0]))
        assert packed.numel() <= n + 1, n
    assert kinds == {RAW, CODED}


@pytest.mark.parametrize("codec", ["nearest:levels=15", "dither:levels=5", "dither-subtractive:levels=3"])
def test_coding_changes_bytes_and_no_value(codec: str) -> None:
    x = torch.randn(30_000, generator=torch.Generator().manual_seed(6)) ** 3
    plain, coded = build(codec), build(f"{codec},coding=huffman")
    one, other = (each.compress(x, 1.0, KEY, torch.float32) for each in (plain, coded))
    arrived = coded.layout(x.numel(), 1.0, torch.float32).unpack(other.pack(), KEY)
    assert torch.equal(plain.decode(one), coded.decode(other))
    assert torch.equal(plain.decode(one), coded.decode(arrived))
    assert other.nbytes < 0.85 * one.nbytes
    assert (plain.traits.fixed_size, coded.traits.fixed_size, coded.traits.sync_free) == (True, False, False)


def test_an_unknown_coding_is_refused() -> None:
    with pytest.raises(ValueError, match="nearest: coding='zip' must be one of digits, huffman"):
        build("nearest:coding=zip")
