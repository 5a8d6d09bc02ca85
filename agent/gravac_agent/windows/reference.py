"""The dense reference: what the optimizer would have done with uncompressed gradients, on a sample of coordinates.

Compression changes what the optimizer is given, and an optimizer such as Adam answers to that in its own way. So the
loss of progress is measured where it happens: the raw gradients of a few hundred coordinates are averaged over ranks
without compression, a second optimizer of the same class and settings steps these coordinates from where the real one
stands, and the two ways are compared over blocks of steps.
"""

import inspect
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

log = logging.getLogger("gravac.agent")

TENSORS = 16
"""Parameters that the sample is taken from, at most."""
PER_TENSOR = 32
"""Coordinates of each."""
BLOCK_STEPS = 25
"""Steps of a block. Longer blocks average more noise; in shorter ones a delay counts as a loss."""

_OF_PARAMETERS = ("params", "param_names")
"""What a parameter group holds of its parameters, besides settings."""


@dataclass(slots=True)
class ProgressSums:
    """Sums over blocks of steps, for the progress ratio ⟨moved, reference⟩ / ‖reference‖².

    Attributes:
        steps: Steps in complete blocks.
        moved_sq: ‖moved‖², the way that the parameters went in a block.
        reference_sq: ‖reference‖², the way that they would have gone with dense gradients.
        moved_dot_reference: ⟨moved, reference⟩.
        raw_sq: ‖ḡ‖², the mean over ranks of the raw gradients, summed over steps.
        exchanged_sq: ‖u‖², the mean that was exchanged.
        exchanged_dot_raw: ⟨u, ḡ⟩.
        raw_dot_next: ⟨ḡ, ḡ of the next step⟩.
        exchanged_dot_next: ⟨u, ḡ of the next step⟩.
    """

    steps: int = 0
    moved_sq: float = 0.0
    reference_sq: float = 0.0
    moved_dot_reference: float = 0.0
    raw_sq: float = 0.0
    exchanged_sq: float = 0.0
    exchanged_dot_raw: float = 0.0
    raw_dot_next: float = 0.0
    exchanged_dot_next: float = 0.0

    @property
    def ratio(self) -> float | None:
        """Share of the dense way that the parameters went; None where none is known."""
        return self.moved_dot_reference / self.reference_sq if self.reference_sq > 0 else None


@dataclass(frozen=True, slots=True)
class _Piece:
    parameter: nn.Parameter
    places: Tensor
    group: int

    def of(self, flat: Tensor) -> Tensor:
        return flat.detach().reshape(-1).index_select(0, self.places)


class DenseReference:
    """Steps a sample of coordinates as the optimizer would with dense gradients. Equal on all ranks.

    A step: ``sample`` on each rank's raw gradients, their mean and that of what was exchanged to ``exchanged``,
    ``before_step`` and ``after_step`` around the optimizer's own. A step of which nothing was exchanged does not count.
    With an optimizer that no second one can be made of, or that needs a closure, nothing is ever summed.

    Args:
        optimizer: The optimizer. For one that does not treat each coordinate for itself, as SGD and Adam do, the sums
            are approximate.
        parameters: The trained parameters by name.
        seed: Seed of the choice of coordinates, equal on all ranks.
    """

    def __init__(self, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], seed: int = 0) -> None:
        self._optimizer = optimizer
        groups = {id(one): at for at, group in enumerate(optimizer.param_groups) for one in group["params"]}
        chosen = _choose({name: one for name, one in parameters.items() if id(one) in groups}, seed)
        self._pieces = {
            name: _Piece(one := parameters[name], places.to(one.device), groups[id(one)])
            for name, places in chosen.items()
        }
        self._shadows = {
            name: nn.Parameter(piece.of(piece.parameter)) for name, piece in self._pieces.items()
        }
        self._reference: Optimizer | None = None
        try:
            self._reference = self._second_optimizer()
        except Exception as error:
            self._leave_out(error)
        self._raw: dict[str, Tensor] = {}
        self._sent: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}
        self._last: tuple[Tensor, Tensor] | None = None
        self._moved, self._way = self._zeros(), self._zeros()
        self._block = 0
        self.sums = ProgressSums()

    @property
    def size(self) -> int:
        """Coordinates of the sample."""
        return sum(piece.places.numel() for piece in self._pieces.values())

    def sample(self, names: Sequence[str], numels: Sequence[int], flat: Tensor) -> Tensor:
        """Return the sampled coordinates of a bucket.

        Args:
            names: Parameters of the bucket, in order.
            numels: Elements of each.
            flat: The bucket, shape ``(n,)``.
        """
        found, offset = [], 0
        for name, numel in zip(names, numels, strict=True):
            if name in self._pieces:
                found.append(flat.index_select(0, self._pieces[name].places + offset))
            offset += numel
        return torch.cat(found) if found else flat.new_empty(0)

    def exchanged(self, names: Sequence[str], raw: Tensor, sent: Tensor) -> None:
        """Take in a bucket's mean raw gradient over ranks and its exchanged mean, both sampled by ``sample``."""
        sizes = [(name, self._pieces[name].places.numel()) for name in names if name in self._pieces]
        counts = [size for _, size in sizes]
        for (name, _), one, other in zip(sizes, raw.split(counts), sent.split(counts), strict=True):
            self._raw[name], self._sent[name] = one.float(), other.float()

    def before_step(self) -> None:
        """Call it right before the optimizer steps, when its gradients are final."""
        if self._reference is None or not self._raw:
            return
        self._before = {name: piece.of(piece.parameter) for name, piece in self._pieces.items()}
        self._count()
        share = self._share()
        with torch.no_grad():
            for name, shadow in self._shadows.items():
                shadow.copy_(self._before[name])
                raw = self._raw.get(name)
                shadow.grad = None if raw is None else raw * share
        for mine, theirs in zip(self._reference.param_groups, self._optimizer.param_groups, strict=True):
            mine.update({key: value for key, value in theirs.items() if key not in _OF_PARAMETERS})

    def after_step(self) -> None:
        """Call it right after the optimizer stepped."""
        if self._reference is None or not self._before or not self._raw:
            return
        try:
            self._reference.step()
        except Exception as error:
            self._leave_out(error)
            return
        with torch.no_grad():
            for name, piece in self._pieces.items():
                self._moved[name] += piece.of(piece.parameter) - self._before[name]
                self._way[name] += self._shadows[name].detach() - self._before[name]
        self._raw.clear()
        self._sent.clear()
        self._before.clear()
        self._block += 1
        if self._block == BLOCK_STEPS:
            self.close_block()

    def close_block(self) -> None:
        """End the running block, such as at a change of plan or the end of a window."""
        if self._block:
            moved, way = _joined(self._moved), _joined(self._way)
            self.sums.steps += self._block
            self.sums.moved_sq += float(moved @ moved)
            self.sums.reference_sq += float(way @ way)
            self.sums.moved_dot_reference += float(moved @ way)
            self._moved, self._way, self._block = self._zeros(), self._zeros(), 0

    def pop(self) -> ProgressSums:
        """Return the sums since the last call, the running block included."""
        self.close_block()
        sums, self.sums = self.sums, ProgressSums()
        return sums

    def _count(self) -> None:
        """Add up how the exchanged gradient and the raw one agree, with each other and with the next raw one."""
        raw, sent = _joined(self._raw), _joined(self._sent)
        self.sums.raw_sq += float(raw @ raw)
        self.sums.exchanged_sq += float(sent @ sent)
        self.sums.exchanged_dot_raw += float(sent @ raw)
        if self._last is not None and self._last[0].shape == raw.shape:
            self.sums.raw_dot_next += float(self._last[0] @ raw)
            self.sums.exchanged_dot_next += float(self._last[1] @ raw)
        self._last = raw, sent

    def _share(self) -> float:
        """Return what the trainer multiplied the gradients by, which for ``Clipper`` is what a dense one is cut to."""
        dot = squares = 0.0
        for name, piece in self._pieces.items():
            gradient, sent = piece.parameter.grad, self._sent.get(name)
            if gradient is not None and sent is not None:
                dot += float(piece.of(gradient).float() @ sent)
                squares += float(sent @ sent)
        return dot / squares if squares > 0.0 else 1.0

    def _second_optimizer(self) -> Optimizer:
        groups: list[dict[str, Any]] = [
            {key: value for key, value in group.items() if key not in _OF_PARAMETERS} | {"params": []}
            for group in self._optimizer.param_groups
        ]
        for name, piece in self._pieces.items():
            groups[piece.group]["params"].append(self._shadows[name])
        kind: Any = type(self._optimizer)
        known = inspect.signature(kind).parameters
        defaults = {key: value for key, value in self._optimizer.defaults.items() if key in known}
        second: Optimizer = kind(groups, **defaults)
        return second

    def _zeros(self) -> dict[str, Tensor]:
        return {
            name: torch.zeros(piece.places.numel(), device=piece.places.device)
            for name, piece in self._pieces.items()
        }

    def _leave_out(self, error: Exception) -> None:
        """Go on without a reference, which must not stop the training."""
        kind = type(self._optimizer).__name__
        log.info("no dense reference for %s, so progress is not measured: %s", kind, error)
        self._reference = None


def _joined(pieces: Mapping[str, Tensor]) -> Tensor:
    """Return all pieces as one vector, float64."""
    return torch.cat(list(pieces.values())).double()


def _choose(parameters: Mapping[str, nn.Parameter], seed: int) -> dict[str, Tensor]:
    """Choose tensors with probability in proportion to their size, by systematic sampling, and coordinates of each."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(one.numel() for one in parameters.values())
    step = total / TENSORS
    at = step * float(torch.rand((), generator=generator))
    found: dict[str, Tensor] = {}
    end = 0
    for name, parameter in parameters.items():
        end += parameter.numel()
        hits = 0
        while at < end:
            hits, at = hits + 1, at + step
        if hits:
            count = min(parameter.numel(), hits * PER_TENSOR)
            found[name] = torch.randperm(parameter.numel(), generator=generator)[:count].sort().values
    return found
