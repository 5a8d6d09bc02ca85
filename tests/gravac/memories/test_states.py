"""States of memories: resharding conserves the mean residual."""

import pytest
import torch

from gravac.memories import reshard

SIZES = {"a": 30, "b": 7, "c": 120, "d": 1}


@pytest.mark.parametrize("old", [1, 2, 3, 8])
def test_resharding_conserves_the_mean_residual(old: int) -> None:
    states = [{"a": torch.randn(30), **({"b": torch.randn(7)} if rank else {})} for rank in range(old)]
    new = reshard(states)
    for name in new:
        before = sum(state.get(name, torch.zeros(SIZES[name])).double() for state in states) / old
        torch.testing.assert_close(new[name].double(), before, rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match="states is empty"):
        reshard([])
    with pytest.raises(ValueError, match="in two states"):
        reshard([{"a": torch.ones(2)}, {"a": torch.ones(3)}])
