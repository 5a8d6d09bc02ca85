"""A fixed table of efficiencies: tests of rules must not change with what the tournament measures."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from gravac import offers
from gravac.offers import Kept

KEPT: dict[str, tuple[Kept, Kept]] = {
    "bf16": ({2.0: (0.995, 1.0, 1.0)}, {2.0: (0.995, 1.0, 1.0)}),
    "int8": ({3.9: (0.995, 1.0, 1.0)}, {3.9: (0.99, 0.995, 1.0)}),
    "nearest": (
        {
            7.5: (0.99, 1.0, 1.0),
            10.1: (0.98, 0.995, 1.0),
            11.8: (0.97, 0.99, 1.0),
            17.3: (0.94, 0.97, 0.99),
            25.6: (0.88, 0.93, 0.97),
        },
        {
            7.5: (0.975, 0.99, 1.0),
            10.1: (0.96, 0.98, 0.995),
            11.8: (0.94, 0.97, 0.985),
            17.3: (0.89, 0.93, 0.96),
            25.6: (0.78, 0.85, 0.90),
        },
    ),
    "dither": (
        {10.1: (0.98, 0.99, 1.0), 17.3: (0.94, 0.97, 0.99)},
        {10.1: (0.86, 0.91, 0.95), 17.3: (0.40, 0.55, 0.65)},
    ),
    "dither-subtractive": ({17.3: (0.93, 0.97, 0.99)}, {17.3: (0.50, 0.65, 0.75)}),
    "topk": (
        {
            4.0: (0.90, 0.94, 0.97),
            10.0: (0.83, 0.88, 0.93),
            25.0: (0.74, 0.80, 0.87),
            50.0: (0.62, 0.70, 0.79),
            100.0: (0.48, 0.57, 0.68),
        },
        {4.0: (0.83, 0.89, 0.94), 10.0: (0.60, 0.70, 0.80), 50.0: (0.28, 0.36, 0.45)},
    ),
    "powersgd": ({}, {20.0: (0.38, 0.48, 0.60)}),
    "qsgd": ({}, {}),
}
"""Under SGD and under Adam, by codec."""


@contextmanager
def fixed_efficiencies() -> Iterator[None]:
    """Use this table instead of the measured one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, (sgd, adam) in KEPT.items():
            patch.setitem(offers._REGISTERED, name, replace(offers.of(name), sgd=sgd, adam=adam))
        offers.of.cache_clear()
        yield
    offers.of.cache_clear()
