"""Scaling efficiency by the what-if model: computation of a step / its duration, for many ranks. Predicted, not run."""

from collections.abc import Iterator

from gravac.predict.nominal import NominalJob, link

ELEMENTS, COMPUTE_SECONDS = 3_511_616, 0.64
"""The LSTM of ``gravac bench train`` and what a step of it computes on one core (its method ``none``)."""
RANKS = (2, 4, 8, 16, 32)
RATES = {"100 Mbit/s": 100e6, "1 Gbit/s": 1e9}
PLANS = (
    ("dense", 1.0),
    ("bf16", 2.0),
    ("nearest:levels=7", 10.1),
    ("dither:levels=3", 17.3),
    ("topk+bf16", 100.0),
)


def scaling() -> Iterator[str]:
    """Yield the table."""
    yield "| link | plan | " + " | ".join(f"{ranks} ranks" for ranks in RANKS) + " |"
    yield "|---|---|" + "---:|" * len(RANKS)
    for rate, bits in RATES.items():
        for codec, cf in PLANS:
            cells = []
            for ranks in RANKS:
                step = NominalJob(ELEMENTS, ranks, COMPUTE_SECONDS).step(codec, cf, link(bits)).seconds
                cells.append(f"{COMPUTE_SECONDS / step:.0%} ({step:.2f} s)")
            name = codec if cf == 1.0 else f"{codec}@{cf:g}"
            yield f"| {rate} | `{name}` | " + " | ".join(cells) + " |"
