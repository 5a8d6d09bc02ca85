"""Runs of neighbours that go round the end: what block Random-k sends. One or two slices, nothing gathered."""

import torch
from torch import Tensor


def run_start(numel: int, seed: int) -> int:
    """Where the run of a shared seed (63 bits) begins: uniform over all places, so that none is sent less often."""
    return seed % numel


def run_places(numel: int, start: int, count: int, device: torch.device | None = None) -> Tensor:
    """The places of a run, int64 of shape ``(count,)``, in its order."""
    pieces = [torch.arange(*piece, device=device) for piece in _slices(numel, start, count)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def take_run(x: Tensor, start: int, count: int, *, clear: bool = False, out: Tensor | None = None) -> Tensor:
    """``count`` values of ``x`` of shape ``(n,)`` from ``start``, in ``out`` if given; ``clear`` leaves 0 behind."""
    slices = _slices(x.numel(), start, count)
    out = torch.empty(count, dtype=x.dtype, device=x.device) if out is None else out
    at = 0
    for begin, end in slices:
        out[at : at + end - begin] = x[begin:end]
        if clear:
            x[begin:end] = 0.0
        at += end - begin
    return out


def add_run(out: Tensor, start: int, values: Tensor, scale: float = 1.0) -> None:
    """``out += scale · values`` at the run's places."""
    at = 0
    for begin, end in _slices(out.numel(), start, values.numel()):
        out[begin:end].add_(values[at : at + end - begin], alpha=scale)
        at += end - begin


def _slices(numel: int, start: int, count: int) -> list[tuple[int, int]]:
    if not (0 <= start < numel and 0 <= count <= numel):
        raise ValueError(
            f"start={start} must be between 0 and {numel - 1}, count={count} between 0 and {numel}, the elements"
        )
    end = start + count
    return [(start, end)] if end <= numel else [(start, numel), (0, end - numel)]
