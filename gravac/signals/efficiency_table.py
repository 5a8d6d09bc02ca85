"""Statistical efficiency of plans, measured in simulations: data only, made by ``tools/pages/efficiency.py``.

Steps that dense training needs, divided by those that the plan needs, to the same held-out loss: 570 runs of
10 tasks with 4 simulated ranks and error feedback (``benchmarks/tournament``).
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
            From the former the loss of bf16 is taken off, which is an error of the measurement.
        high: of the task that bears it best.
    """

    kind: TableKind
    codec: str
    cf: float
    low: float
    likely: float
    high: float


ROWS: tuple[Row, ...] = (
    Row("sgd", "bf16", 2.0, 0.980, 1.000, 1.000),
    Row("sgd", "dither", 10.1, 0.994, 1.000, 1.000),
    Row("sgd", "dither", 17.3, 0.943, 0.994, 1.000),
    Row("sgd", "int8", 3.9, 0.997, 1.000, 1.000),
    Row("sgd", "nearest", 5.7, 0.987, 1.000, 1.000),
    Row("sgd", "nearest", 7.5, 0.986, 0.997, 1.000),
    Row("sgd", "nearest", 10.1, 0.952, 0.974, 1.000),
    Row("sgd", "nearest", 17.3, 0.744, 0.923, 0.960),
    Row("sgd", "nearest", 25.6, 0.050, 0.664, 0.734),
    Row("sgd", "powersgd", 20.0, 0.598, 0.695, 0.937),
    Row("sgd", "qsgd", 12.8, 0.943, 1.000, 1.000),
    Row("sgd", "topk", 10.0, 0.898, 0.957, 0.969),
    Row("sgd", "topk", 25.0, 0.785, 0.885, 1.000),
    Row("sgd", "topk", 100.0, 0.673, 0.725, 0.997),
    Row("sgd", "topk+twobit", 6.0, 0.794, 0.910, 0.996),
    Row("sgd", "topk+twobit", 12.0, 0.781, 0.889, 1.000),
    Row("adam", "bf16", 2.0, 0.979, 1.000, 1.000),
    Row("adam", "dither", 10.1, 0.763, 0.851, 0.947),
    Row("adam", "dither", 17.3, 0.274, 0.499, 0.717),
    Row("adam", "int8", 3.9, 0.983, 0.997, 1.000),
    Row("adam", "nearest", 5.7, 0.982, 0.995, 1.000),
    Row("adam", "nearest", 7.5, 0.969, 0.981, 1.000),
    Row("adam", "nearest", 10.1, 0.908, 0.962, 1.000),
    Row("adam", "nearest", 17.3, 0.812, 0.858, 0.975),
    Row("adam", "nearest", 25.6, 0.748, 0.749, 0.749),
    Row("adam", "powersgd", 20.0, 0.355, 0.656, 0.755),
    Row("adam", "qsgd", 12.8, 0.269, 0.486, 0.614),
    Row("adam", "topk", 10.0, 0.773, 0.875, 0.990),
    Row("adam", "topk", 25.0, 0.602, 0.772, 0.951),
    Row("adam", "topk", 100.0, 0.385, 0.559, 0.744),
    Row("adam", "topk+twobit", 6.0, 0.785, 0.857, 0.925),
    Row("adam", "topk+twobit", 12.0, 0.734, 0.827, 0.906),
)
"""By kind, codec and ascending CF."""
ALIASES: dict[str, str] = {"topk+bf16": "topk", "fp16": "bf16"}
"""Codecs that lose as little as another one at equal CF, up to the noise of the measurements."""
