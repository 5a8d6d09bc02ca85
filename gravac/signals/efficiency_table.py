"""Statistical efficiency of plans, measured in simulations: data only, made by ``tools/pages/efficiency.py``.

Steps that dense training needs, divided by those that the plan needs, to the same held-out loss: 630 runs of
10 tasks with 4 simulated ranks and error feedback (``lab/benchmarks/tournament``).
"""

from typing import Literal, NamedTuple

TableKind = Literal["sgd", "adam"]


class Row(NamedTuple):
    """Efficiency of one codec at one CF.

    Attributes:
        kind: of the optimizer.
        codec: name without settings; a stack is named ``selector+quantizer``.
        cf: of a quantizer, its wire CF; of a selector, elements in / elements kept.
        low: of the task that bears it worst, the median over seeds.
        likely: median over tasks of what curves say, averaged with that of what the signals of the runs say.
        high: of the task that bears it best.
    """

    kind: TableKind
    codec: str
    cf: float
    low: float
    likely: float
    high: float


ROWS: tuple[Row, ...] = (
    Row("sgd", "bf16", 2.0, 0.960, 1.000, 1.000),
    Row("sgd", "dither", 10.1, 0.993, 1.000, 1.000),
    Row("sgd", "dither", 17.3, 0.987, 0.993, 1.000),
    Row("sgd", "dither-subtractive", 17.3, 0.940, 0.984, 1.000),
    Row("sgd", "int8", 3.9, 0.980, 1.000, 1.000),
    Row("sgd", "nearest", 5.7, 0.986, 0.997, 1.000),
    Row("sgd", "nearest", 7.5, 0.985, 0.994, 1.000),
    Row("sgd", "nearest", 10.1, 0.931, 0.974, 1.000),
    Row("sgd", "nearest", 17.3, 0.728, 0.924, 0.972),
    Row("sgd", "nearest", 25.6, 0.033, 0.661, 0.705),
    Row("sgd", "powersgd", 20.0, 0.597, 0.694, 0.936),
    Row("sgd", "qsgd", 12.8, 0.942, 1.000, 1.000),
    Row("sgd", "topk", 10.0, 0.897, 0.958, 1.000),
    Row("sgd", "topk", 25.0, 0.784, 0.879, 1.000),
    Row("sgd", "topk", 100.0, 0.672, 0.725, 0.996),
    Row("sgd", "topk+twobit", 6.0, 0.717, 0.910, 0.995),
    Row("sgd", "topk+twobit", 12.0, 0.801, 0.889, 1.000),
    Row("adam", "bf16", 2.0, 0.996, 1.000, 1.000),
    Row("adam", "dither", 10.1, 0.759, 0.848, 0.943),
    Row("adam", "dither", 17.3, 0.269, 0.496, 0.720),
    Row("adam", "dither-subtractive", 10.1, 0.755, 0.879, 0.973),
    Row("adam", "dither-subtractive", 11.8, 0.709, 0.817, 0.954),
    Row("adam", "dither-subtractive", 17.3, 0.340, 0.684, 0.855),
    Row("adam", "int8", 3.9, 0.995, 0.996, 1.000),
    Row("adam", "nearest", 5.7, 0.964, 0.993, 1.000),
    Row("adam", "nearest", 7.5, 0.957, 0.984, 0.995),
    Row("adam", "nearest", 10.1, 0.911, 0.963, 0.992),
    Row("adam", "nearest", 17.3, 0.808, 0.866, 0.922),
    Row("adam", "nearest", 25.6, 0.701, 0.723, 0.723),
    Row("adam", "powersgd", 20.0, 0.350, 0.648, 0.750),
    Row("adam", "qsgd", 12.8, 0.265, 0.483, 0.609),
    Row("adam", "topk", 10.0, 0.769, 0.876, 0.985),
    Row("adam", "topk", 25.0, 0.597, 0.764, 0.946),
    Row("adam", "topk", 100.0, 0.381, 0.563, 0.739),
    Row("adam", "topk+twobit", 6.0, 0.781, 0.852, 0.901),
    Row("adam", "topk+twobit", 12.0, 0.729, 0.828, 0.887),
)
"""By kind, codec and ascending CF."""
ALIASES: dict[str, str] = {"topk+bf16": "topk", "fp16": "bf16"}
"""Codecs that lose as little as another one at equal CF, up to the noise of the measurements."""
