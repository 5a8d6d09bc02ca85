"""What a training ends with, and how two of them differ."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gravac_agent.exchange.step import StepResult


@dataclass(slots=True)
class Outcome:
    """What a rank has after its training."""

    parameters: list[Tensor]
    residual: dict[str, Tensor]
    learned: dict[str, Tensor]
    results: list[StepResult] = field(default_factory=list)


def differences(mine: Sequence[Outcome], theirs: Sequence[Outcome], tolerance: float = 0.0) -> list[str]:
    """What differs between two trainings, rank by rank; empty when they are equal to the bit, or where there is a
    ``tolerance``, when no element of a tensor differs by more."""

    def equal(a: Tensor, b: Tensor, rtol: float = 0.0) -> bool:
        return torch.allclose(a, b, rtol=rtol, atol=tolerance) if rtol or tolerance else torch.equal(a, b)

    found = []
    for rank, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        for number, (a, b) in enumerate(zip(one.parameters, other.parameters, strict=True)):
            if not equal(a, b):
                found.append(f"rank {rank}: parameter {number}")
        for kind in ("residual", "learned"):
            left, right = getattr(one, kind), getattr(other, kind)
            for name in sorted({*left, *right}):
                a, b = left.get(name), right.get(name)
                a = torch.zeros_like(b) if a is None and b is not None else a
                b = torch.zeros_like(a) if b is None and a is not None else b
                if not equal(a, b, 1e-5 if name.startswith("through/") else 0.0):
                    found.append(f"rank {rank}: {kind} of {name}")
        for step, (a, b) in enumerate(zip(one.results, other.results, strict=True)):
            found += [f"rank {rank}, step {step}: {what}" for what in _different(a, b)]
    return found


def _different(a: StepResult, b: StepResult) -> list[str]:
    found = []
    if (a.dense_bytes, a.payload_bytes) != (b.dense_bytes, b.payload_bytes):
        found.append("bytes")
    if not (a.tick.agreed and b.tick.agreed) or a.tick.directive != b.tick.directive:
        found.append("agreement")
    if (a.tick.sums.nonfinite > 0, a.tick.sums.failed) != (b.tick.sums.nonfinite > 0, b.tick.sums.failed):
        found.append("flags")
    if not a.tick.sums.nonfinite:
        for name in ("gradient_sq", "compensated_sq", "sent_sq", "candidate_sq"):
            x, y = getattr(a.tick.sums, name), getattr(b.tick.sums, name)
            if abs(x - y) > 1e-5 * max(abs(x), abs(y), 1e-30):
                found.append(f"{name} {x} {y}")
        if (a.mean_sq is None) != (b.mean_sq is None) or (
            a.mean_sq is not None and b.mean_sq is not None and abs(a.mean_sq - b.mean_sq) > 1e-5 * b.mean_sq
        ):
            found.append(f"mean {a.mean_sq} {b.mean_sq}")
        if (a.curve is None) != (b.curve is None) or (
            a.curve is not None and b.curve is not None and not _close(a.curve.gains(), b.curve.gains())
        ):
            found.append("curve")
    return found


def _close(mine: Sequence[float | None], theirs: Sequence[float | None]) -> bool:
    return all(
        a == b or (a is not None and b is not None and abs(a - b) <= 1e-5)
        for a, b in zip(mine, theirs, strict=True)
    )
