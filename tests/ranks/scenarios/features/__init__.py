"""Each feature of DDP, trained plainly, with an agent that is off, and compressed."""

from typing import Any

from tests.ranks.scenarios.features.base import HOW, Feature
from tests.ranks.scenarios.features.loops import LOOPS
from tests.ranks.scenarios.features.modules import MODULES

FEATURES: tuple[type[Feature], ...] = (*LOOPS, *MODULES)


def features(rank: int, world: int, folder: str, only: str = "") -> dict[str, dict[str, Any]]:
    """Run every feature, or ``only`` one, in each way, one after another in the same processes."""
    found: dict[str, dict[str, Any]] = {}
    for feature in FEATURES:
        if only in feature.__name__:
            found[feature.title()] = {
                how: feature(rank, how, f"{folder}/{feature.__name__}").run() for how in HOW
            }
    return found
