"""The compression factors a policy may choose, fixed for the whole run: absolute, ascending, dense not counted.

Candidates are absolute so that a moving minimum never moves them (the printed algorithm multiplies by its
minimum, which rises, and so drifts to factors nobody evaluated).
"""

from functools import lru_cache
from typing import Literal

LadderName = Literal["exponential", "geometric"]
MAX_RUNGS = 60
"""Rungs a ladder may have; decisions list every one of them."""


def exponential(cf_min: float, cf_max: float) -> tuple[float, ...]:
    """cf_min times 1, 2, 2², 2⁴, 2⁸, …, capped at cf_max (GraVAC §III-C): 10, 20, 40, 160, 1000."""
    rungs, multiplier = [cf_min], 2.0
    while rungs[-1] < cf_max:
        rungs.append(min(cf_min * multiplier, cf_max))
        multiplier *= multiplier
    return tuple(rungs)


def geometric(cf_min: float, cf_max: float) -> tuple[float, ...]:
    """cf_min, doubled until cf_max, which is the last rung (GraVAC §III-C): 10, 20, 40, …, 640, 1000."""
    rungs = [cf_min]
    while rungs[-1] < cf_max:
        rungs.append(min(rungs[-1] * 2.0, cf_max))
    return tuple(rungs)


@lru_cache(maxsize=64)  # asked for in every window
def rungs(ladder: LadderName | tuple[float, ...], cf_min: float, cf_max: float) -> tuple[float, ...]:
    """The rungs above dense. Raises ValueError unless they are above 1 and strictly ascending, 1 to 60 of them."""
    if isinstance(ladder, tuple):
        made = ladder
    else:
        if not 1.0 < cf_min <= cf_max:
            raise ValueError(f"cf_min must be above 1 and at most cf_max, got {cf_min:g} and {cf_max:g}")
        made = exponential(cf_min, cf_max) if ladder == "exponential" else geometric(cf_min, cf_max)
    if not 1 <= len(made) <= MAX_RUNGS:
        raise ValueError(f"ladder must have 1 to {MAX_RUNGS} rungs, got {len(made)}")
    if any(lower >= upper for lower, upper in zip((1.0, *made), made, strict=False)):
        raise ValueError(f"ladder must ascend strictly from above 1 (dense is always there), got {made}")
    return made
