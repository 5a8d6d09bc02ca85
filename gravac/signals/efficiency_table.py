"""Statistical efficiency of plans, measured in simulations: data only, made by ``tools/pages/efficiency.py``.

Steps that dense training needs, divided by those that the plan needs, to the same held-out loss: 291 runs of
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
        high: of the task that bears it best.
    """

    kind: TableKind
    codec: str
    cf: float
    low: float
    likely: float
    high: float


ROWS: tuple[Row, ...] = (
    Row("sgd", "bf16", 2.0, 0.975, 1.000, 1.000),
    Row("sgd", "dither", 10.1, 0.974, 0.993, 1.000),
    Row("sgd", "dither", 17.3, 0.912, 0.987, 1.000),
    Row("sgd", "int8", 3.9, 0.973, 1.000, 1.000),
    Row("sgd", "nearest", 7.5, 0.951, 0.995, 1.000),
    Row("sgd", "nearest", 10.1, 0.959, 0.984, 1.000),
    Row("sgd", "nearest", 17.3, 0.793, 0.900, 1.000),
    Row("sgd", "nearest", 25.6, 0.049, 0.696, 0.998),
    Row("sgd", "powersgd", 20.0, 0.566, 0.754, 0.946),
    Row("sgd", "qsgd", 12.8, 0.545, 0.986, 1.000),
    Row("sgd", "topk", 10.0, 0.870, 0.940, 1.000),
    Row("sgd", "topk", 25.0, 0.701, 0.880, 0.984),
    Row("sgd", "topk", 100.0, 0.642, 0.712, 1.000),
    Row("adam", "bf16", 2.0, 0.974, 0.991, 1.000),
    Row("adam", "dither", 10.1, 0.412, 0.823, 0.929),
    Row("adam", "dither", 17.3, 0.154, 0.438, 0.637),
    Row("adam", "int8", 3.9, 0.978, 0.993, 1.000),
    Row("adam", "nearest", 7.5, 0.940, 0.969, 0.985),
    Row("adam", "nearest", 10.1, 0.913, 0.935, 0.991),
    Row("adam", "nearest", 17.3, 0.679, 0.850, 0.947),
    Row("adam", "nearest", 25.6, 0.744, 0.746, 0.805),
    Row("adam", "powersgd", 20.0, 0.340, 0.664, 0.764),
    Row("adam", "qsgd", 12.8, 0.153, 0.413, 0.579),
    Row("adam", "topk", 10.0, 0.758, 0.839, 1.000),
    Row("adam", "topk", 25.0, 0.582, 0.648, 1.000),
    Row("adam", "topk", 100.0, 0.349, 0.414, 0.808),
)
"""By kind, codec and ascending CF."""
ALIASES: dict[str, str] = {"topk+bf16": "topk", "fp16": "bf16"}
"""Codecs that lose as little as another one at equal CF, up to the noise of the measurements."""
