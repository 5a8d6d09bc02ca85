"""Statistical efficiency of plans, measured in simulations: data only, made by ``tools/pages/efficiency.py``.

Steps that dense training needs, divided by those that the plan needs, to the same held-out loss: 77 runs of
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
    Row("sgd", "nearest", 7.5, 0.926, 0.977, 1.000),
    Row("sgd", "nearest", 10.1, 0.940, 0.965, 1.000),
    Row("sgd", "nearest", 17.3, 0.822, 0.893, 1.000),
    Row("sgd", "nearest", 25.6, 0.049, 0.667, 0.998),
    Row("sgd", "powersgd", 20.0, 0.566, 0.724, 0.946),
    Row("sgd", "qsgd", 12.8, 0.545, 0.976, 1.000),
    Row("sgd", "topk", 10.0, 0.827, 0.931, 0.995),
    Row("sgd", "topk", 25.0, 0.701, 0.860, 0.984),
    Row("sgd", "topk", 100.0, 0.492, 0.733, 0.940),
    Row("adam", "nearest", 7.5, 0.977, 0.988, 0.991),
    Row("adam", "nearest", 10.1, 0.967, 0.973, 0.985),
    Row("adam", "nearest", 17.3, 0.905, 0.905, 0.923),
    Row("adam", "nearest", 25.6, 0.744, 0.766, 0.805),
    Row("adam", "powersgd", 20.0, 0.666, 0.702, 0.731),
    Row("adam", "qsgd", 12.8, 0.291, 0.522, 0.579),
    Row("adam", "topk", 10.0, 0.843, 0.862, 1.000),
    Row("adam", "topk", 25.0, 0.585, 0.705, 1.000),
    Row("adam", "topk", 100.0, 0.279, 0.459, 0.774),
    Row("sgd", "bf16", 2.0, 0.995, 1.0, 1.0),
    Row("adam", "bf16", 2.0, 0.995, 1.0, 1.0),
)
"""By kind, codec and ascending CF."""
ALIASES: dict[str, str] = {"topk+bf16": "topk", "fp16": "bf16"}
"""Codecs that lose as little as another one at equal CF, up to the noise of the measurements."""
ALONE: dict[TableKind, float] = {"sgd": 0.34, "adam": 0.37}
"""Efficiency of ranks that never communicate. A plan that is no better needs no network to be as good."""
