"""Packed positions: about as many bits as their entropy, a size known beforehand, equal bytes on every backend."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.kernels import pack_positions, position_bytes, unpack, unpack_positions
from tests.support.maths.backends import everywhere, on


def some(numel: int, count: int, seed: int) -> torch.Tensor:
    """``count`` different places, ascending."""
    order = torch.randperm(numel, generator=torch.Generator().manual_seed(seed))
    return order[:count].sort().values


@settings(deadline=None, max_examples=80)
@given(data=st.data(), numel=st.integers(0, 3000), seed=st.integers(0, 10**6), wide=st.booleans())
def test_packing_positions_is_lossless(data: st.DataObject, numel: int, seed: int, wide: bool) -> None:
    count = data.draw(st.integers(0, numel) | st.integers(0, min(numel, 20)))
    indices = some(numel, count, seed).to(torch.int64 if wide else torch.int32)
    packed = everywhere(lambda: pack_positions(indices, numel))
    assert packed.dtype == torch.uint8
    assert packed.numel() == position_bytes(count, numel)
    assert torch.equal(everywhere(lambda: unpack_positions(packed, count, numel)), indices.int())


@pytest.mark.parametrize("numel", [1, 2, 65, 10_000_000, 2**31 - 1])
def test_the_ends_of_the_range(numel: int) -> None:
    ends = torch.tensor([0, numel - 1])[: min(2, numel)]
    for indices in (ends, ends[:1], ends[-1:]):
        packed = everywhere(lambda indices=indices: pack_positions(indices, numel))
        assert unpack_positions(packed, indices.numel(), numel).tolist() == indices.tolist()


@pytest.mark.parametrize("ratio", [2, 3, 4, 10, 30, 100, 1000, 10_000])
def test_no_more_bits_than_promised(ratio: int) -> None:
    numel = 1_000_000
    count = numel // ratio
    share = count / numel
    entropy = numel * -(share * math.log2(share) + (1 - share) * math.log2(1 - share))
    bits = 8 * position_bytes(count, numel)
    assert bits <= min(numel, count * (2 + math.log2(ratio))) + 16
    assert bits <= (1.14 if ratio >= 10 else 1.24) * entropy + 16


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_a_damaged_payload_is_refused(name: str) -> None:
    packed = pack_positions(some(1000, 50, 1), 1000)
    with on(name):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=rf"{packed.numel() - 1} bytes given, 50 places of 1000 take"):
            unpack_positions(packed[:-1], 50, 1000)
        for value in (0, 255):
            broken = packed.clone()
            broken[-4:] = value
            with pytest.raises(ValueError, match="places found in a payload of 50: it is damaged"):
                unpack_positions(broken, 50, 1000)
        for places in ([-1, 3], [3, 1000], [3, 5000]):
            with pytest.raises(ValueError, match=r"outside 0\.\.999"):
                pack_positions(torch.tensor(places), 1000)
        with pytest.raises(ValueError, match="2 bytes cannot hold 5 codes of 4 bits"):
            unpack(torch.zeros(2, dtype=torch.uint8), 5, 4)
    with pytest.raises(ValueError, match="count=11 must be between 0 and numel=10"):
        position_bytes(11, 10)
