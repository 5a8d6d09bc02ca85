"""Statistical efficiency of plans, measured in simulations: data only, made by ``tools/pages/efficiency.py``.

Steps that dense training needs, divided by those that the plan needs, to the same held-out loss: 160 runs of
7 tasks with 4 simulated ranks and error feedback (``benchmarks/tournament``).
"""

from typing import Literal, NamedTuple

TableKind = Literal["sgd", "adam"]


class Row(NamedTuple):
    """Efficiency of one codec at one CF.

    Attributes:
        kind: of the optimizer.
        codec: name without settings; a stack is named ``selector+quantizer``.
        cf: of a quantizer, its wire CF; of a selector, elements in / elements kept.
        low: lowest of all tasks.
        likely: median over tasks of what curves say, averaged with that of what the signals of the runs say.
        high: highest.
    """

    kind: TableKind
    codec: str
    cf: float
    low: float
    likely: float
    high: float


ROWS: tuple[Row, ...] = (
    Row("sgd", "bf16", 2.0, 0.975, 1.000, 1.000),
    Row("sgd", "dither", 10.1, 0.948, 1.000, 1.000),
    Row("sgd", "dither", 17.3, 0.907, 0.979, 1.000),
    Row("sgd", "nearest", 7.5, 0.951, 0.995, 1.000),
    Row("sgd", "nearest", 10.1, 0.934, 0.984, 1.000),
    Row("sgd", "nearest", 17.3, 0.793, 0.904, 1.000),
    Row("sgd", "nearest", 25.6, 0.049, 0.706, 0.998),
    Row("sgd", "powersgd", 20.0, 0.566, 0.762, 0.946),
    Row("sgd", "qsgd", 12.8, 0.545, 0.981, 1.000),
    Row("sgd", "topk", 10.0, 0.855, 0.950, 1.000),
    Row("sgd", "topk", 25.0, 0.701, 0.883, 0.984),
    Row("sgd", "topk", 100.0, 0.642, 0.730, 1.000),
    Row("adam", "bf16", 2.0, 0.974, 0.987, 0.987),
    Row("adam", "dither", 10.1, 0.863, 0.915, 0.929),
    Row("adam", "dither", 17.3, 0.326, 0.572, 0.637),
    Row("adam", "nearest", 7.5, 0.957, 0.988, 1.000),
    Row("adam", "nearest", 10.1, 0.943, 0.977, 1.000),
    Row("adam", "nearest", 17.3, 0.850, 0.924, 0.994),
    Row("adam", "nearest", 25.6, 0.744, 0.797, 0.805),
    Row("adam", "powersgd", 20.0, 0.666, 0.734, 0.734),
    Row("adam", "qsgd", 12.8, 0.291, 0.525, 0.579),
    Row("adam", "topk", 10.0, 0.871, 0.878, 1.000),
    Row("adam", "topk", 25.0, 0.585, 0.711, 1.000),
    Row("adam", "topk", 100.0, 0.358, 0.500, 0.808),
)
"""By kind, codec and ascending CF."""
ALIASES: dict[str, str] = {"topk+bf16": "topk", "fp16": "bf16"}
"""Codecs that lose as little as another one at equal CF, up to the noise of the measurements."""
