"""One CF for each layer: the budget holds, and hardly any choice that brute force finds sends fewer bytes."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac_lab.simulate.allocation import Allocation, LayerOption, allocate

OPTIONS = st.builds(
    LayerOption,
    cf=st.sampled_from([1.0, 10.0, 100.0]),
    error=st.one_of(st.just(0.0), st.floats(1e-3, 10.0)),
    nbytes=st.integers(0, 1000),
)
LAYERS = st.lists(st.lists(OPTIONS, min_size=1, max_size=4), min_size=1, max_size=5)


def fewest(layers: list[list[LayerOption]], budget: float) -> int | None:
    """Bytes of the best choice of all."""
    choices = (Allocation(chosen) for chosen in product(*layers))
    return min((choice.nbytes for choice in choices if choice.error <= budget), default=None)


@given(layers=LAYERS, budget=st.floats(0.0, 30.0), steps=st.sampled_from([5, 20, 400]))
def test_against_brute_force(layers: list[list[LayerOption]], budget: float, steps: int) -> None:
    found, best = allocate(layers, budget, steps), fewest(layers, budget)
    assert (found is None) == (best is None)
    if found is None or best is None:
        return
    assert all(option in options for option, options in zip(found.chosen, layers, strict=True))
    assert found.error <= budget
    assert best <= found.nbytes
    rounded = fewest(layers, budget * (1 - len(layers) / steps) * (1 - 1e-9))
    assert rounded is None or found.nbytes <= rounded


def test_it_never_sends_more_than_one_cf_for_all() -> None:
    """At the very budget of that CF, where rounding up alone would leave no room for it."""
    layers = [
        [LayerOption(10.0, error, 40), LayerOption(100.0, 9 * error, 4)] for error in (1 / 3, 1 / 7, 2 / 3)
    ]
    budget = sum(options[0].error for options in layers)
    found = allocate(layers, budget, steps=3)
    assert found is not None
    assert found.nbytes <= 120
    assert found.error <= budget


def test_bytes_go_where_they_lose_least() -> None:
    """A large layer that compresses well and a small one that does not: the budget of CF 10 for both."""
    large = [LayerOption(10.0, 1.0, 1000), LayerOption(100.0, 1.5, 100)]
    small = [LayerOption(1.0, 0.0, 100), LayerOption(10.0, 1.0, 10)]
    found = allocate([large, small], 2.0)
    assert found is not None
    assert [option.cf for option in found.chosen] == [100.0, 1.0]
    assert found.nbytes == 200


def test_no_layers_send_nothing() -> None:
    assert allocate([], 1.0) == Allocation(())


def test_what_makes_no_sense_is_refused() -> None:
    one = [LayerOption(1.0, 0.0, 4)]
    for layers, budget, steps, message in (
        ([one], -1.0, 10, "budget=-1.0 must be a number of 0 or more"),
        ([one], float("nan"), 10, "budget=nan must be"),
        ([one, one], 1.0, 1, "steps=1 must be at least one for each of 2 layers"),
        ([one, []], 1.0, 10, "layer 1 has no option"),
        ([[LayerOption(1.0, float("nan"), 4)]], 1.0, 10, "layer 0: .* must have an error"),
    ):
        with pytest.raises(ValueError, match=message):
            allocate(layers, budget, steps)
