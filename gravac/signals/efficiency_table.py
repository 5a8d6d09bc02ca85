"""Statistical efficiency of plans as measured in simulations: data only, replaced as a whole when it is measured anew.

Steps that dense training needs, divided by those that the plan needs, to the same held-out loss. Four simulated ranks
with error feedback: a small GPT with AdamW (adam) and an LSTM with SGD and momentum (sgd).
"""

from typing import Literal, NamedTuple

TableKind = Literal["sgd", "adam"]


class Row(NamedTuple):
    """Efficiency of one codec at one CF.

    Attributes:
        kind: of the optimizer.
        codec: name without settings; a stack is named ``selector+quantizer``.
        cf: of a quantizer, its wire CF; of a selector, elements in / elements kept.
        low: lowest that is credible.
        likely: best estimate.
        high: highest that is credible.
    """

    kind: TableKind
    codec: str
    cf: float
    low: float
    likely: float
    high: float


ROWS: tuple[Row, ...] = (
    Row("sgd", "bf16", 2.0, 0.995, 1.0, 1.0),
    Row("sgd", "nearest", 7.5, 0.99, 1.0, 1.0),
    Row("sgd", "nearest", 10.1, 0.98, 0.995, 1.0),
    Row("sgd", "nearest", 11.8, 0.97, 0.99, 1.0),
    Row("sgd", "nearest", 17.3, 0.94, 0.97, 0.99),
    Row("sgd", "nearest", 25.6, 0.88, 0.93, 0.97),
    Row("sgd", "topk", 4.0, 0.90, 0.94, 0.97),
    Row("sgd", "topk", 10.0, 0.83, 0.88, 0.93),
    Row("sgd", "topk", 25.0, 0.74, 0.80, 0.87),
    Row("sgd", "topk", 50.0, 0.62, 0.70, 0.79),
    Row("sgd", "topk", 100.0, 0.48, 0.57, 0.68),
    Row("adam", "bf16", 2.0, 0.995, 1.0, 1.0),
    Row("adam", "nearest", 7.5, 0.975, 0.99, 1.0),
    Row("adam", "nearest", 10.1, 0.96, 0.98, 0.995),
    Row("adam", "nearest", 11.8, 0.94, 0.97, 0.985),
    Row("adam", "nearest", 17.3, 0.89, 0.93, 0.96),
    Row("adam", "nearest", 25.6, 0.78, 0.85, 0.90),
    Row("adam", "topk", 4.0, 0.83, 0.89, 0.94),
    Row("adam", "topk", 10.0, 0.60, 0.70, 0.80),
    Row("adam", "topk", 50.0, 0.28, 0.36, 0.45),
    Row("adam", "powersgd", 20.0, 0.38, 0.48, 0.60),
)
"""By kind, codec and ascending CF."""
ALIASES: dict[str, str] = {"topk+bf16": "topk", "fp16": "bf16"}
"""Codecs that lose as little as another one at equal CF, up to the noise of the measurements."""
ALONE: dict[TableKind, float] = {"sgd": 0.45, "adam": 0.40}
"""Efficiency of ranks that never communicate. A plan that is no better needs no network to be as good."""
