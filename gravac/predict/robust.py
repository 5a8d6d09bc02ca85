"""Robust linear regression with non-negative terms, for measurements with outliers.

Iteratively reweighted least squares with Huber's weights (P. J. Huber, "Robust estimation of a location parameter",
Annals of Mathematical Statistics 35, 1964). Plain Python: a fit has at most four terms and a few hundred rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

HUBER = 1.345
"""Residuals beyond this many spreads count by their size, not its square: 95 % efficient on normal noise."""
ROUNDS = 20
MAD_OF_A_NORMAL = 0.6745
"""Median absolute deviation of a normal distribution with standard deviation 1."""


@dataclass(frozen=True, slots=True)
class LinearFit:
    """Result of ``fit``.

    Attributes:
        terms: Terms, one for each column; 0 for a column that was left out.
        spread: Standard deviation of the residuals, in units of ``scale``.
        loss: Huber's loss of the residuals, in units of ``scale``.
    """

    terms: tuple[float, ...]
    spread: float
    loss: float


def fit(
    rows: Sequence[Sequence[float]], values: Sequence[float], scale: Sequence[float], weights: Sequence[float]
) -> LinearFit:
    """Fit terms t ≥ 0 so that Σ row·t ≈ value. A column whose term would be negative is left out.

    Args:
        rows: Rows, one for each measurement, with one value for each term.
        values: The measurements.
        scale: Worth of one unit of error in each row; relative errors have the values themselves.
        weights: Weight of each row.
    """
    columns = list(range(len(rows[0])))
    while True:
        terms = _reweighted([[row[c] for c in columns] for row in rows], values, scale, weights)
        worst = min(range(len(columns)), key=lambda at: terms[at], default=0)
        if not columns or terms[worst] >= 0:
            break
        columns.pop(worst)
    full = [0.0] * len(rows[0])
    for column, term in zip(columns, terms, strict=True):
        full[column] = term
    residuals = _residuals(rows, values, scale, full)
    size = _spread(residuals)
    return LinearFit(tuple(full), size, sum(w * _huber(r) for r, w in zip(residuals, weights, strict=True)))


def _reweighted(
    rows: list[list[float]], values: Sequence[float], scale: Sequence[float], weights: Sequence[float]
) -> list[float]:
    initial = [w / s**2 for w, s in zip(weights, scale, strict=True)]
    current = initial
    terms: list[float] = []
    for _ in range(ROUNDS):
        before, terms = terms, _solve(rows, values, current)
        residuals = _residuals(rows, values, scale, terms)
        limit = HUBER * max(_spread(residuals), 1e-12)
        current = [w * min(1.0, limit / max(abs(r), 1e-300)) for w, r in zip(initial, residuals, strict=True)]
        if before and all(abs(a - b) <= 1e-9 * abs(b) for a, b in zip(before, terms, strict=True)):
            break
    return terms


def _solve(rows: list[list[float]], values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Solve the weighted normal equations, columns scaled to one size; a linearly dependent column gets 0."""
    count = len(rows[0]) if rows else 0
    sizes = [sum(w * row[c] ** 2 for row, w in zip(rows, weights, strict=True)) ** 0.5 for c in range(count)]
    table = [
        [
            sum(w * row[a] * row[b] for row, w in zip(rows, weights, strict=True))
            / ((sizes[a] or 1.0) * (sizes[b] or 1.0))
            for b in range(count)
        ]
        + [sum(w * row[a] * v for row, v, w in zip(rows, values, weights, strict=True)) / (sizes[a] or 1.0)]
        for a in range(count)
    ]
    free = [False] * count
    for c in range(count):
        pivot = table[c][c]
        if pivot <= 1e-9:
            free[c] = True
            continue
        for r in range(count):
            if r != c:
                share = table[r][c] / pivot
                table[r] = [x - share * y for x, y in zip(table[r], table[c], strict=True)]
    return [0.0 if free[c] else table[c][-1] / table[c][c] / (sizes[c] or 1.0) for c in range(count)]


def _residuals(
    rows: Sequence[Sequence[float]], values: Sequence[float], scale: Sequence[float], terms: Sequence[float]
) -> list[float]:
    return [
        (value - sum(x * t for x, t in zip(row, terms, strict=True))) / size
        for row, value, size in zip(rows, values, scale, strict=True)
    ]


def _spread(residuals: Sequence[float]) -> float:
    return median(abs(residual) for residual in residuals) / MAD_OF_A_NORMAL


def _huber(residual: float) -> float:
    """Huber's loss with its corner at 2 %: smaller deviations are noise."""
    size, corner = abs(residual), 0.02
    return size**2 if size <= corner else corner * (2 * size - corner)
