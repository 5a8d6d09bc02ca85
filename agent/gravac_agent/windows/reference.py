"""The dense reference: what the optimizer would have done with uncompressed gradients, on a sample of coordinates.

Compression changes what the optimizer is given, and an optimizer such as Adam answers to that in its own way. So the
loss of progress is measured where it happens: the raw gradients of a few hundred coordinates are averaged over ranks
without compression, a second optimizer of the same class and settings steps these coordinates from where the real one
stands, and the two ways are compared over blocks of steps.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

TENSORS = 16
"""Parameters that the sample is taken from, at most."""
PER_TENSOR = 32
"""Coordinates of each."""
BLOCK_STEPS = 25
"""Steps of a block. Longer blocks average more noise; in shorter ones a delay counts as a loss."""


@dataclass(slots=True)
class ProgressSums:
    """Sums over blocks of steps, for the progress ratio ⟨moved, reference⟩ / ‖reference‖².

    Attributes:
        steps: Steps in complete blocks.
        moved_sq: ‖moved‖², the way that the parameters went in a block.
        reference_sq: ‖reference‖², the way that they would have gone with dense gradients.
        moved_dot_reference: ⟨moved, reference⟩.
    """

    steps: int = 0
    moved_sq: float = 0.0
    reference_sq: float = 0.0
    moved_dot_reference: float = 0.0

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
    ``before_step`` and ``after_step`` around the optimizer's own.

    Args:
        optimizer: The optimizer; it must treat each coordinate for itself, as SGD and Adam do.
        parameters: The trained parameters by name.
        seed: Seed of the choice of coordinates, equal on all ranks.
    """

    def __init__(self, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], seed: int = 0) -> None:
        self._optimizer = optimizer
        groups = {id(one): at for at, group in enumerate(optimizer.param_groups) for one in group["params"]}
        chosen = _choose({name: one for name, one in parameters.items() if id(one) in groups}, seed)
        self._pieces = {
            name: _Piece(one := parameters[name], places, groups[id(one)]) for name, places in chosen.items()
        }
        self._shadows = {
            name: nn.Parameter(piece.of(piece.parameter)) for name, piece in self._pieces.items()
        }
        self._reference = self._second_optimizer()
        self._raw: dict[str, Tensor] = {}
        self._sent: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}
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
        self._before = {name: piece.of(piece.parameter) for name, piece in self._pieces.items()}
        share = self._share()
        with torch.no_grad():
            for name, shadow in self._shadows.items():
                shadow.copy_(self._before[name])
                raw = self._raw.get(name)
                shadow.grad = None if raw is None else raw * share
        for mine, theirs in zip(self._reference.param_groups, self._optimizer.param_groups, strict=True):
            mine.update({key: value for key, value in theirs.items() if key != "params"})

    def after_step(self) -> None:
        """Call it right after the optimizer stepped."""
        if not self._before or not self._raw:
            return
        self._reference.step()
        with torch.no_grad():
            for name, piece in self._pieces.items():
                self._moved[name] += piece.of(piece.parameter) - self._before[name]
                self._way[name] += self._shadows[name].detach() - self._before[name]
        self._raw.clear()
        self._block += 1
        if self._block == BLOCK_STEPS:
            self.close_block()

    def close_block(self) -> None:
        """End the running block, such as at a change of plan or the end of a window."""
        if self._block:
            moved, way = (
                torch.cat(list(self._moved.values())).double(),
                torch.cat(list(self._way.values())).double(),
            )
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
            {key: value for key, value in group.items() if key != "params"} | {"params": []}
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
        return {name: torch.zeros(piece.places.numel()) for name, piece in self._pieces.items()}


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
