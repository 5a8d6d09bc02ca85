"""Blocks rounded by Triton's kernels."""

import pytest
import torch

from gravac import kernels
from tests.support.maths.backends import vector
from tests.support.maths.triton_device import alike


@pytest.mark.parametrize("block", [1, 7, 32, 200, 10**6])
def test_blocks_are_rounded_alike(block: int) -> None:
    for n, width, kind in ((1, 2, "normal"), (300, 4, "wild"), (400, 8, "mixed"), (260, 3, "normal")):
        x = vector(n, n + block, kind)
        scales, packed = alike(lambda put, x=x, w=width: kernels.quantize(put(x), block, w, 11))
        alike(lambda put, s=scales, p=packed, n=n, w=width: kernels.dequantize(put(s), put(p), n, block, w))
    for nothing in alike(lambda put: kernels.quantize(put(torch.empty(0)), block, 4, 1)):
        assert not nothing.numel()
