"""Random numbers and places drawn by Triton's kernels."""

import pytest
import torch

from gravac import kernels
from tests.support.maths.backends import on, same
from tests.support.maths.triton_device import HERE


@pytest.mark.parametrize("n", [0, 1, 127, 300])
def test_noise_is_the_same(n: int) -> None:
    for seed in (0, 2**62 + 5):
        with on("cuda"):
            mine = kernels.noise(n, seed, HERE).cpu()
        with on("reference"):
            same(mine, kernels.noise(n, seed, torch.device("cpu")))


@pytest.mark.parametrize(
    ("numel", "count"), [(0, 0), (700, 9), (1025, 0), (1100, 300), (1100, 1100), (2**31 - 1, 40)]
)
def test_the_same_places_are_drawn(numel: int, count: int) -> None:
    with on("cuda"):
        mine = kernels.distinct(numel, count, 7, HERE).cpu()
    with on("reference"):
        same(mine, kernels.distinct(numel, count, 7))
