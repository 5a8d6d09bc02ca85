"""Gradient estimators, one per file. To add one, write its file and name its class in ``ESTIMATORS``."""

import inspect
from typing import Any

from torch import Tensor

from gravac.registry import Registry, no_setting
from gravac_lab.estimators.base import Estimator, EstimatorSample, FiniteSum
from gravac_lab.estimators.importance import Importance, Uniform
from gravac_lab.estimators.lsvrg import LSVRG

ESTIMATORS: Registry[Estimator] = Registry("estimator", (Uniform, Importance, LSVRG), base=Estimator)


def build(name: str, scores: Tensor, **settings: Any) -> Estimator:
    """Build an estimator for one worker, for example ``build("lsvrg", scores, base="importance", refresh=0.02)``.

    Args:
        name: A name in ``ESTIMATORS``.
        scores: Smoothness of each sample's loss, shape ``(m,)``. ``uniform`` uses only their number.
        settings: Those of the estimator.

    Raises:
        ValueError: There is no such estimator or setting, or a value is out of range.
    """
    make = ESTIMATORS.find(name).over
    known = list(inspect.signature(make).parameters)[1:]
    for setting in settings:
        if setting not in known:
            raise no_setting("estimator", name, setting, known)
    return make(scores, **settings)


__all__ = [
    "ESTIMATORS",
    "LSVRG",
    "Estimator",
    "EstimatorSample",
    "FiniteSum",
    "Importance",
    "Uniform",
    "build",
]
