"""Statistical efficiency of plans, measured in simulations: data only, made by ``tools/pages/efficiency.py``.

Steps that dense training needs, divided by those that the plan needs, to the same held-out loss: 480 runs of
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
    Row("sgd", "bf16", 2.0, 0.967, 1.000, 1.000),
    Row("sgd", "dither", 10.1, 0.976, 0.998, 1.000),
    Row("sgd", "dither", 17.3, 0.917, 0.994, 1.000),
    Row("sgd", "int8", 3.9, 0.973, 1.000, 1.000),
    Row("sgd", "nearest", 5.7, 0.961, 1.000, 1.000),
    Row("sgd", "nearest", 7.5, 0.958, 0.993, 1.000),
    Row("sgd", "nearest", 10.1, 0.952, 0.984, 1.000),
    Row("sgd", "nearest", 17.3, 0.744, 0.924, 0.971),
    Row("sgd", "nearest", 25.6, 0.050, 0.659, 0.723),
    Row("sgd", "powersgd", 20.0, 0.567, 0.695, 0.964),
    Row("sgd", "qsgd", 12.8, 0.917, 0.987, 1.000),
    Row("sgd", "topk", 10.0, 0.886, 0.954, 0.969),
    Row("sgd", "topk", 25.0, 0.798, 0.882, 1.000),
    Row("sgd", "topk", 100.0, 0.643, 0.725, 1.000),
    Row("sgd", "topk+twobit", 6.0, 0.794, 0.911, 1.000),
    Row("sgd", "topk+twobit", 12.0, 0.781, 0.889, 1.000),
    Row("adam", "bf16", 2.0, 0.975, 1.000, 1.000),
    Row("adam", "dither", 10.1, 0.760, 0.843, 0.946),
    Row("adam", "dither", 17.3, 0.270, 0.500, 0.711),
    Row("adam", "int8", 3.9, 0.979, 0.995, 1.000),
    Row("adam", "nearest", 5.7, 0.941, 0.985, 1.000),
    Row("adam", "nearest", 7.5, 0.941, 0.979, 1.000),
    Row("adam", "nearest", 10.1, 0.914, 0.960, 1.000),
    Row("adam", "nearest", 17.3, 0.784, 0.856, 0.964),
    Row("adam", "nearest", 25.6, 0.745, 0.747, 0.747),
    Row("adam", "powersgd", 20.0, 0.349, 0.654, 0.734),
    Row("adam", "qsgd", 12.8, 0.266, 0.483, 0.648),
    Row("adam", "topk", 10.0, 0.759, 0.874, 0.987),
    Row("adam", "topk", 25.0, 0.641, 0.771, 0.947),
    Row("adam", "topk", 100.0, 0.375, 0.562, 0.735),
    Row("adam", "topk+twobit", 6.0, 0.782, 0.857, 0.913),
    Row("adam", "topk+twobit", 12.0, 0.700, 0.823, 0.894),
)
"""By kind, codec and ascending CF."""
ALIASES: dict[str, str] = {"topk+bf16": "topk", "fp16": "bf16"}
"""Codecs that lose as little as another one at equal CF, up to the noise of the measurements."""
