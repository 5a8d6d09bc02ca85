"""A fixed table of efficiencies: tests of rules must not change with what the tournament measures."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gravac.signals import efficiency
from gravac.signals.efficiency_table import Row

ROWS: tuple[Row, ...] = (
    Row("sgd", "bf16", 2.0, 0.995, 1.0, 1.0),
    Row("sgd", "int8", 3.9, 0.995, 1.0, 1.0),
    Row("sgd", "nearest", 7.5, 0.99, 1.0, 1.0),
    Row("sgd", "nearest", 10.1, 0.98, 0.995, 1.0),
    Row("sgd", "nearest", 11.8, 0.97, 0.99, 1.0),
    Row("sgd", "nearest", 17.3, 0.94, 0.97, 0.99),
    Row("sgd", "nearest", 25.6, 0.88, 0.93, 0.97),
    Row("sgd", "dither", 10.1, 0.98, 0.99, 1.0),
    Row("sgd", "dither", 17.3, 0.94, 0.97, 0.99),
    Row("sgd", "dither-subtractive", 17.3, 0.93, 0.97, 0.99),
    Row("sgd", "topk", 4.0, 0.90, 0.94, 0.97),
    Row("sgd", "topk", 10.0, 0.83, 0.88, 0.93),
    Row("sgd", "topk", 25.0, 0.74, 0.80, 0.87),
    Row("sgd", "topk", 50.0, 0.62, 0.70, 0.79),
    Row("sgd", "topk", 100.0, 0.48, 0.57, 0.68),
    Row("adam", "bf16", 2.0, 0.995, 1.0, 1.0),
    Row("adam", "int8", 3.9, 0.99, 0.995, 1.0),
    Row("adam", "nearest", 7.5, 0.975, 0.99, 1.0),
    Row("adam", "nearest", 10.1, 0.96, 0.98, 0.995),
    Row("adam", "nearest", 11.8, 0.94, 0.97, 0.985),
    Row("adam", "nearest", 17.3, 0.89, 0.93, 0.96),
    Row("adam", "nearest", 25.6, 0.78, 0.85, 0.90),
    Row("adam", "dither", 10.1, 0.86, 0.91, 0.95),
    Row("adam", "dither", 17.3, 0.40, 0.55, 0.65),
    Row("adam", "dither-subtractive", 17.3, 0.50, 0.65, 0.75),
    Row("adam", "topk", 4.0, 0.83, 0.89, 0.94),
    Row("adam", "topk", 10.0, 0.60, 0.70, 0.80),
    Row("adam", "topk", 50.0, 0.28, 0.36, 0.45),
    Row("adam", "powersgd", 20.0, 0.38, 0.48, 0.60),
)


@contextmanager
def fixed_efficiencies() -> Iterator[None]:
    """Use this table instead of the measured one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(efficiency, "ROWS", ROWS)
        efficiency._rows.cache_clear()
        yield
    efficiency._rows.cache_clear()
