"""Allocation: one CF for each layer, so that all together send the fewest bytes within an error budget. Pure.

Layers differ in how much a CF loses of them, so the same bytes buy more where a layer compresses well. L-GreCo's budget
is what the layers lose together at one CF, so the result loses no more than that CF for all, in fewer bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerOption:
    """A CF that a layer may have.

    Attributes:
        cf: the CF.
        error: norm of what it loses of the layer's gradient, ‖x − C(x)‖.
        nbytes: bytes that the layer then sends.
    """

    cf: float
    error: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """The chosen option of each layer, in order."""

    chosen: tuple[LayerOption, ...]

    @property
    def error(self) -> float:
        """Sum of the layers' errors."""
        return math.fsum(option.error for option in self.chosen)

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(option.nbytes for option in self.chosen)


def allocate(layers: Sequence[Sequence[LayerOption]], budget: float, steps: int = 1000) -> Allocation | None:
    """Choose an option for each layer: the fewest bytes of all choices whose errors add up to at most ``budget``.

    Dynamic programming over errors rounded up to whole parts of the budget. So the budget holds exactly, and no choice
    within ``budget · (1 − layers / steps)`` sends fewer bytes. Nor does the best choice that takes options of the same
    position from every layer (one CF for all).

    Args:
        layers: the options of each layer, at least one each.
        budget: largest sum of errors; in L-GreCo, the sum at one CF for all layers.
        steps: parts of the budget that errors are rounded up to, at least one for each layer.

    Returns:
        The choice; None if even the smallest errors add up to more than the budget.

    Raises:
        ValueError: ``steps`` are too few, a layer has no option, or an error, size or budget is negative or not a
            number.

    Source: Markov et al. 2024, L-GreCo: Layerwise-adaptive gradient compression, algorithm 1.
    """
    _check(layers, budget, steps)
    found = _programmed(layers, budget, steps)
    for same in zip(*layers, strict=False):
        found = _better(found, Allocation(same), budget)
    return _better(found, Allocation(tuple(min(options, key=_loss) for options in layers)), budget)


def _programmed(layers: Sequence[Sequence[LayerOption]], budget: float, steps: int) -> Allocation | None:
    """The best choice with rounded errors. ``sizes[e]``: fewest bytes of the layers so far with e parts of error."""
    sizes: list[float] = [0.0] + [math.inf] * steps
    picks: list[list[int]] = []
    for options in layers:
        costs = [_parts(option.error, budget, steps) for option in options]
        reached, picked = [math.inf] * (steps + 1), [-1] * (steps + 1)
        least = math.inf
        for used, size in enumerate(sizes):
            if size >= least:  # fewer parts send no more bytes
                continue
            least = size
            for number, cost in enumerate(costs):
                total = used + cost
                if total <= steps and size + options[number].nbytes < reached[total]:
                    reached[total], picked[total] = size + options[number].nbytes, number
        sizes = reached
        picks.append(picked)
    used = min(range(steps + 1), key=sizes.__getitem__)
    if sizes[used] == math.inf:
        return None
    chosen: list[LayerOption] = []
    for options, picked in zip(reversed(layers), reversed(picks), strict=True):
        option = options[picked[used]]
        chosen.append(option)
        used -= _parts(option.error, budget, steps)
    return _better(None, Allocation(tuple(reversed(chosen))), budget)


def _parts(error: float, budget: float, steps: int) -> int:
    """An error in parts of the budget, rounded up; more than all if it is larger than the budget."""
    if error > budget:
        return steps + 1
    return math.ceil(error / budget * steps) if error else 0


def _better(one: Allocation | None, other: Allocation, budget: float) -> Allocation | None:
    """``other`` if it keeps the budget and sends fewer bytes than ``one``."""
    if other.error > budget:
        return one
    return other if one is None or other.nbytes < one.nbytes else one


def _loss(option: LayerOption) -> tuple[float, int]:
    return option.error, option.nbytes


def _check(layers: Sequence[Sequence[LayerOption]], budget: float, steps: int) -> None:
    if not 0.0 <= budget < math.inf:
        raise ValueError(f"budget={budget} must be a number of 0 or more")
    if steps < max(1, len(layers)):
        raise ValueError(f"steps={steps} must be at least one for each of {len(layers)} layers")
    for number, options in enumerate(layers):
        if not options:
            raise ValueError(f"layer {number} has no option")
        for option in options:
            if not (0.0 <= option.error < math.inf and option.nbytes >= 0):
                raise ValueError(f"layer {number}: {option} must have an error and a size of 0 or more")
