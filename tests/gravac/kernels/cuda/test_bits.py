"""Packed bits and places by Triton's kernels."""

import pytest
import torch

from gravac import kernels
from gravac.kernels.packing import pack_wide, unpack_wide
from tests.support.maths.backends import same
from tests.support.maths.triton_device import alike, triton


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 9, 17, 31])
def test_codes_are_packed_and_come_back(width: int) -> None:
    for n in (0, 1, 7, 200):
        codes = torch.randint(1 << width, (n,), generator=torch.Generator().manual_seed(n)).int()
        packed = alike(lambda put, codes=codes: pack_wide(put(codes), width))
        assert torch.equal(triton(lambda put, p=packed, n=n: unpack_wide(put(p), n, width)), codes)
        if width <= 8:
            same(alike(lambda put, codes=codes: kernels.pack(put(codes), width)), packed)
            alike(lambda put, p=packed, n=n: kernels.unpack(put(p), n, width))


@pytest.mark.parametrize(
    ("numel", "count"), [(0, 0), (1, 1), (65, 2), (700, 700), (700, 300), (3000, 300), (3000, 1)]
)
def test_places_are_packed_and_come_back(numel: int, count: int) -> None:
    order = torch.randperm(numel, generator=torch.Generator().manual_seed(count))
    places = order[:count].sort().values
    packed = alike(lambda put: kernels.pack_positions(put(places), numel))
    same(alike(lambda put: kernels.pack_positions(put(places.int()), numel)), packed)
    back = triton(lambda put: kernels.unpack_positions(put(packed), count, numel))
    assert torch.equal(back, places.int())


def test_the_ends_of_the_range() -> None:
    numel = 2**31 - 1
    for places in ([0, numel - 1], [numel - 1], [0]):
        packed = alike(lambda put, p=places: kernels.pack_positions(put(torch.tensor(p)), numel))
        count = len(places)
        back = triton(lambda put, p=packed, k=count: kernels.unpack_positions(put(p), k, numel))
        assert back.tolist() == places


def test_a_damaged_payload_stays_within_its_bounds() -> None:
    packed = kernels.pack_positions(torch.arange(0, 1000, 20), 1000)
    for value, missing in ((0, True), (255, False)):
        broken = packed.clone()
        broken[-4:] = value
        places = triton(lambda put, b=broken: kernels.unpack_positions(put(b), 50, 1000))
        assert places.shape == (50,)
        assert bool((places == -1).any()) == missing
    with pytest.raises(ValueError, match="bytes given, 50 places of 1000 take"):
        triton(lambda put: kernels.unpack_positions(put(packed[:-1]), 50, 1000))
