"""NUQSGD rounds to neighboring powers of two of the norm."""

import pytest
import torch

from gravac.compressors import build
from tests.support.maths.checks import KEY, sent, vector


@pytest.mark.parametrize(("bits", "lowest"), [(2, 0), (3, 2), (4, 6)])
def test_elements_are_rounded_to_a_neighboring_level(bits: int, lowest: int) -> None:
    x = vector("heavy", 512).double()
    shares = x / x.norm()
    found = sent(build(f"nuqsgd:bits={bits}"), x.float()) / x.norm()
    levels = torch.tensor([0.0, *(2.0**-power for power in range(lowest, -1, -1))], dtype=torch.float64)
    place = torch.searchsorted(levels, shares.abs(), right=True)
    off = torch.minimum((found.abs() - levels[place - 1]).abs(), (found.abs() - levels[place]).abs())
    assert float(off.max()) < 1e-6
    assert bool((found * shares >= 0).all())
    assert len(found.abs().unique()) > 1


def test_an_element_at_a_level_is_sent_exactly() -> None:
    """Four elements of half the norm each."""
    x = torch.tensor([4.0, -4.0, 4.0, 4.0])
    for step in range(8):
        assert sent(build("nuqsgd:bits=4"), x, key=KEY._replace(step=step)).tolist() == x.tolist()
