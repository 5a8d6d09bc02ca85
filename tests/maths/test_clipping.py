"""What docs/memories.md says of clipping: where gradients are clipped decides what is lost."""

import pytest
import torch

from tests.support.maths.clipping_task import train


def test_clipping_after_the_exchange_loses_exactly_what_is_cut_off() -> None:
    """applied + residual = in - cut: no later step brings it back."""
    out = train("after", 0.2, 100.0, seed=0, steps=60)
    assert out.clipped_steps > 0.5
    torch.testing.assert_close(out.applied + out.residual, out.came - out.cut, rtol=0.0, atol=1e-4)
    assert float(out.cut.norm()) > 0.2 * float(out.came.norm())


def test_clipping_before_the_memory_loses_nothing_of_the_clipped_gradients() -> None:
    """What enters is smaller; all of it is applied or in the residual."""
    out = train("before", 0.2, 100.0, seed=0, steps=60)
    assert out.clipped_steps > 0.5
    torch.testing.assert_close(out.applied + out.residual, out.came - out.cut, rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("cf", [1.0, 100.0])
def test_without_clipping_nothing_is_cut(cf: float) -> None:
    out = train("none", 0.2, cf, seed=0, steps=30)
    torch.testing.assert_close(out.applied + out.residual, out.came, rtol=0.0, atol=1e-4)
    assert not out.cut.any()
