"""States of several ranks in one dictionary, and what is none."""

from typing import Any

import pytest
import torch

from gravac_agent import SetupError
from gravac_agent.state.by_rank import has_residual, pack, unpack


def state(rank: int, *names: str) -> dict[str, Any]:
    return {"version": 1, "rank": rank, "residual": {name: torch.full((2,), float(rank)) for name in names}}


def test_each_rank_comes_back_as_it_was_saved() -> None:
    """From one dictionary of all ranks, from theirs in a list, and beside what is not the agent's."""
    one, two = state(0, "b", "a"), state(1)
    packed = [pack(one, "rank0"), pack(two, "rank1-group4")]
    for given in (packed, packed[0] | packed[1] | {"other": 3}, [one, two]):
        found = unpack(given)
        assert [{**each, "residual": None} for each in found] == [
            {**each, "residual": None} for each in (one, two)
        ]
        assert found[0]["residual"].keys() == {"a", "b"}
        assert torch.equal(found[0]["residual"]["b"], one["residual"]["b"])
    assert [has_residual(each) for each in (one, two, *packed)] == [True, False, True, False]
    assert has_residual(packed)


def test_a_residual_that_was_not_read_is_named() -> None:
    """DCP reads no tensor that nobody asks it for."""
    packed = pack(state(0, "b", "a"), "rank0")
    del packed["rank0"]["residual"]["a"]
    with pytest.raises(SetupError, match=r"residual of 1 parameters .*\(rank0, such as 'a'\).*LoadPlanner"):
        unpack(packed)
    del packed["rank0"]["residual"]
    assert has_residual(packed), "the facts alone say so"
    with pytest.raises(SetupError, match="residual of 2 parameters"):
        unpack(packed)


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(SetupError, match="the keys model, optimizer is none of this Agent's"):
        unpack({"model": {}, "optimizer": {}})
    with pytest.raises(SetupError, match="is none of this Agent's"):
        unpack(pack(state(0), "rank0") | {"gravac_agent": 2})
    with pytest.raises(SetupError, match="is no state of an Agent"):
        unpack([state(0), 3])  # type: ignore[list-item]
