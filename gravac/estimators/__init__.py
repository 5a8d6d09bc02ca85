"""Gradient estimators: one a file. To add one, write its file and name it in ``ESTIMATORS``."""

import inspect
from typing import Any

from torch import Tensor

from gravac.estimators.base import Estimator, FiniteSum, Sample
from gravac.estimators.importance import Importance, Uniform
from gravac.estimators.lsvrg import LSVRG
from gravac.wording import did_you_mean

ESTIMATORS: dict[str, type[Estimator]] = {
    estimator.name: estimator for estimator in (Uniform, Importance, LSVRG)
}


def build(name: str, scores: Tensor, **settings: Any) -> Estimator:
    """A new estimator of that name for one worker, e.g. ``build("lsvrg", scores, base="importance", refresh=0.02)``.

    ``scores``: shape ``(m,)``, smoothness of each sample's loss (only their number matters to ``uniform``). Raises
    ValueError naming the known estimators or settings, or for a value out of range.
    """
    if name not in ESTIMATORS:
        raise ValueError(
            f"estimator={name!r} is unknown{did_you_mean(name, ESTIMATORS)}; choose one of "
            f"{', '.join(sorted(ESTIMATORS))}"
        )
    known = list(inspect.signature(ESTIMATORS[name].over).parameters)[1:]
    for setting in settings:
        if setting not in known:
            raise ValueError(
                f"estimator={name!r} has no setting {setting!r}; it has {', '.join(known) or 'none'}"
            )
    return ESTIMATORS[name].over(scores, **settings)


__all__ = ["ESTIMATORS", "LSVRG", "Estimator", "FiniteSum", "Importance", "Sample", "Uniform", "build"]
