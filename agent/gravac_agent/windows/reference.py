"""The dense reference: what the optimizer would have done with uncompressed gradients, on a sample of coordinates.

Compression changes what the optimizer is given, and an optimizer such as Adam answers to that in its own way. So the
loss of progress is measured where it happens: the raw gradients of a few hundred coordinates are averaged over ranks
without compression, a second optimizer of the same class and settings steps these coordinates from where the real one
stands, and the two ways are compared over blocks of steps.
"""

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gravac_agent.exchange.sample import Coordinates
from gravac_agent.windows.second_optimizer import follow, second_optimizer, step, steps_elements_alone

BLOCK_STEPS = 25
"""Steps of a block. Longer blocks average more noise; in shorter ones a delay counts as a loss."""
CLIPPED = 0.999
"""The trainer clipped where the optimizer's gradients are shorter than this share of the exchanged ones."""
SMOOTHING = 0.1
"""Weight of the newest step in the averages that give the length of a dense gradient relative to the exchanged one."""


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

    def __add__(self, other: "ProgressSums") -> "ProgressSums":
        return ProgressSums(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def is_finite(self) -> bool:
        """Return whether all of them are finite."""
        return all(math.isfinite(getattr(self, each.name)) for each in fields(self))

    @property
    def ratio(self) -> float | None:
        """Share of the dense way that the parameters went; None where none is known."""
        return self.moved_dot_reference / self.reference_sq if self.reference_sq > 0 else None


class DenseReference:
    """Steps a sample of coordinates as the optimizer would with dense gradients. Equal on all ranks.

    A step: the sampled means of the raw gradients and of what was exchanged go to ``exchanged``, then
    ``before_step`` and ``after_step`` around the optimizer's own. It begins with the optimizer's own state (moments,
    momentum), so that it may begin in the middle of a training, as after a checkpoint.

    The coordinates of each parameter group form one flat parameter of the second optimizer, which makes its step cheap.
    Where the parameters of a group differ, as when some have no gradient in a step, each gets a flat one of its own.

    Args:
        optimizer: The optimizer.
        parameters: The module's parameters by name, without those that get sparse gradients.
        coordinates: The sample.
    """

    def __init__(
        self, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], coordinates: Coordinates
    ) -> None:
        self._optimizer = optimizer
        self.exact = steps_elements_alone(optimizer)
        """Whether it does exactly what the optimizer would; else, as for LAMB, its norms are of the sample only."""
        groups = {
            id(param): at for at, group in enumerate(optimizer.param_groups) for param in group["params"]
        }
        pieces: dict[tuple[object, ...], list[_Piece]] = {}
        self._owned = torch.zeros(coordinates.size, dtype=torch.float64)
        self._owners: dict[int, _Piece] = {}
        for name, places in coordinates.places.items():
            one, slot = parameters[name], coordinates.slots[name]
            if id(one) in groups:
                piece = _Piece(one, places, slot, groups[id(one)])
                key = (piece.group, one.dtype) if self.exact else (name,)
                pieces.setdefault(key, []).append(piece)
                self._owned[slot] = 1.0
                self._owners.update(dict.fromkeys(range(slot.start, slot.stop), piece))
        self._flats = [_Flat(tuple(found)) for found in pieces.values()]
        self._reference = second_optimizer(
            optimizer, optimizer.param_groups, [(flat.group, flat.parameter) for flat in self._flats]
        )
        self._raw, self._sent, self._last_raw, self._last_sent = torch.zeros(
            4, coordinates.size, dtype=torch.float64
        )
        self._fresh = self._began = self._has_last = self._adopted = False
        self._share = 1.0
        self._squares = self._energies = (0.0, 0.0)
        self._block = 0
        self.sums = ProgressSums()

    def exchanged(self, raw: Tensor, sent: Tensor) -> None:
        """Take in a step's exchange, in the order of the coordinates.

        Args:
            raw: The sample of the mean raw gradient over ranks.
            sent: The sample of the mean that was exchanged.
        """
        self._raw.copy_(raw)
        self._sent.copy_(sent)
        self._fresh = True

    def forget_exchange(self) -> None:
        """Forget what was exchanged and not yet stepped with."""
        self._fresh = self._began = False

    def change_plan(self) -> ProgressSums:
        """Return the sums since the last ``pop``, and compare nothing across this point.

        The reference goes on from the optimizer's own state, so that no plan answers for what the one before did to it.
        """
        self._has_last = False
        sums = self.pop()
        self._restart()
        return sums

    @torch.no_grad()
    def before_step(self, loss_scale: float = 1.0, clipped_as_dense: bool = False) -> None:
        """Call it right before the optimizer steps, when its gradients are final.

        Args:
            loss_scale: Of a GradScaler: the factor of the exchanged gradients.
            clipped_as_dense: They were clipped by the norm of a dense gradient, as ``Clipper`` does.
        """
        self._began = self._fresh and self._count()
        if not self._began:
            return
        if not self._adopted:
            self._adopt()
        raw = self._raw * self._dense_share(loss_scale, clipped_as_dense)
        for flat in list(self._flats):
            missing = sum(piece.parameter.grad is None for piece in flat.pieces)
            for part in self._split(flat) if 0 < missing < len(flat.pieces) else (flat,):
                part.begin(raw)
        follow(self._reference, self._optimizer)

    @torch.no_grad()
    def after_step(self) -> None:
        """Call it right after the optimizer stepped."""
        if not self._began:
            return
        self._fresh = self._began = False
        step(self._reference)
        for flat in self._flats:
            flat.end()
        self._block += 1
        if self._block == BLOCK_STEPS:
            self.close_block()

    def close_block(self) -> None:
        """End the running block, such as at a change of plan or the end of a window."""
        if self._block:
            moved, way = (
                torch.cat([_NO_STEPS, *(getattr(flat, name) for flat in self._flats)])
                for name in ("moved", "way")
            )
            block = ProgressSums(self._block, float(moved @ moved), float(way @ way), float(moved @ way))
            if block.is_finite():
                self.sums += block
            else:
                self._restart()
            self._block = 0
            for flat in self._flats:
                flat.moved.zero_()
                flat.way.zero_()

    def pop(self, *, running: bool = True) -> ProgressSums:
        """Return the sums since the last call.

        Args:
            running: End the running block and include it.
        """
        if running:
            self.close_block()
        sums, self.sums = self.sums, ProgressSums()
        return sums

    def _restart(self) -> None:
        """Let the reference begin again with the optimizer's state."""
        self._reference.state.clear()
        self._adopted = False

    def _count(self) -> bool:
        """Add up how the exchanged gradient and the raw one agree, with each other and with the next raw one.

        Returns:
            Whether they are finite; else the sums leave the step out.
        """
        raw, sent, sums = self._raw, self._sent, self.sums
        raw_sq, exchanged_sq = float(raw @ raw), float(sent @ sent)
        if not (math.isfinite(raw_sq) and math.isfinite(exchanged_sq)):
            self._has_last = False
            return False
        self._squares = exchanged_sq, raw_sq
        sums.raw_sq += raw_sq
        sums.exchanged_sq += exchanged_sq
        sums.exchanged_dot_raw += float(sent @ raw)
        if self._has_last:
            sums.raw_dot_next += float(self._last_raw @ raw)
            sums.exchanged_dot_next += float(self._last_sent @ raw)
        self._last_raw.copy_(raw)
        self._last_sent.copy_(sent)
        self._has_last = True
        return True

    def _dense_share(self, loss_scale: float, clipped_as_dense: bool) -> float:
        """Return what the trainer multiplied the gradients by, for a dense gradient: clipping depends on its length.

        One parameter shows what the exchanged gradients were multiplied by, the one with the largest sampled element.
        """
        sent = self._sent * self._owned
        largest = int(sent.abs().argmax())
        piece = self._owners.get(largest)
        gradient = None if piece is None else piece.parameter.grad
        if piece is not None and gradient is not None and float(sent[largest]):
            part = sent[piece.slot]
            self._share = float(piece.of(gradient).double() @ part) / float(part @ part)
            keep = 1.0 - SMOOTHING if self._energies[0] > 0 else 0.0
            before, now = self._energies, self._squares
            self._energies = (keep * before[0] + (1 - keep) * now[0], keep * before[1] + (1 - keep) * now[1])
        clipping = self._share * loss_scale
        if clipped_as_dense or clipping >= CLIPPED or self._energies[1] <= 0.0:
            return self._share
        return min(1.0, clipping * math.sqrt(self._energies[0] / self._energies[1])) / loss_scale

    def _adopt(self) -> None:
        """Begin with the optimizer's own state, where it has one: in mid-training, or after a checkpoint."""
        self._adopted = True
        for flat in list(self._flats):
            states = [piece.state(self._optimizer) for piece in flat.pieces]
            scalars = [{key: value for key, value in one.items() if not _is_long(value)} for one in states]
            alike = all(one.keys() == states[0].keys() for one in states)
            if alike and all(scalar == scalars[0] for scalar in scalars):
                merged = dict(scalars[0])
                for key in states[0].keys() - merged.keys():
                    merged[key] = torch.cat([one[key] for one in states])
                self._set_state(flat, merged)
            else:
                for part, state in zip(self._split(flat), states, strict=True):
                    self._set_state(part, state)

    def _set_state(self, flat: "_Flat", state: Mapping[Any, Any]) -> None:
        if state:
            self._reference.state[flat.parameter] = {
                key: value.clone() if isinstance(value, Tensor) else copy(value)
                for key, value in state.items()
            }

    def _split(self, flat: "_Flat") -> "list[_Flat]":
        """Replace a flat parameter of several pieces by one of each, with its part of everything."""
        state = self._reference.state.pop(flat.parameter, {})
        parts = [_Flat((piece,)) for piece in flat.pieces]
        at = self._flats.index(flat)
        self._flats[at : at + 1] = parts
        params = self._reference.param_groups[flat.group]["params"]
        params[:] = [param for param in params if param is not flat.parameter] + [
            part.parameter for part in parts
        ]
        start = 0
        for part in parts:
            span = slice(start, start := start + part.parameter.numel())
            part.moved, part.way = flat.moved[span].clone(), flat.way[span].clone()
            self._set_state(
                part,
                {key: value[span] if _is_long(value) else value for key, value in state.items()},
            )
        return parts


@dataclass(slots=True)
class _Piece:
    """The sampled coordinates of one parameter. ``slot``: where they are in the sample."""

    parameter: nn.Parameter
    places: Tensor
    slot: slice
    group: int
    _memory: Tensor = field(init=False)
    _pointer: int = -1

    def read(self, out: Tensor) -> None:
        """Write the parameter's values at these coordinates into ``out``."""
        if self._pointer != self.parameter.data_ptr():
            self._memory, self._pointer = _in_memory(self.parameter), self.parameter.data_ptr()
        torch.index_select(self._memory, 0, self.places, out=out)

    def of(self, like: Tensor) -> Tensor:
        """Return the values at these coordinates of a tensor of the parameter's shape, such as its gradient."""
        if like.stride() != self.parameter.stride():
            like = torch.empty_like(self.parameter, dtype=like.dtype).copy_(like)
        return _in_memory(like).index_select(0, self.places)

    def state(self, optimizer: Optimizer) -> dict[Any, Any]:
        """Return what the optimizer keeps of these coordinates: of tensors of the parameter's shape, these elements."""
        shape = self.parameter.shape
        return {
            key: self.of(value) if isinstance(value, Tensor) and value.shape == shape else value
            for key, value in optimizer.state.get(self.parameter, {}).items()
        }


class _Flat:
    """Coordinates of parameters of one group as one flat parameter, and how far they and the optimizer's own went."""

    def __init__(self, pieces: tuple[_Piece, ...]) -> None:
        self.group, self.pieces = pieces[0].group, pieces
        size = sum(piece.places.numel() for piece in pieces)
        self.parameter = nn.Parameter(torch.zeros(size, dtype=pieces[0].parameter.dtype))
        self._before, self._now = torch.empty(2, size, dtype=self.parameter.dtype)
        self._gradient = torch.empty(size, dtype=self.parameter.dtype)
        self._slots = torch.cat(
            [torch.arange(piece.slot.start, piece.slot.stop, dtype=torch.int64) for piece in pieces]
        )
        counts = [piece.places.numel() for piece in pieces]
        self._outs = list(zip(pieces, self._before.split(counts), self._now.split(counts), strict=True))
        self.moved, self.way = torch.zeros(2, size, dtype=torch.float64)

    def begin(self, raw: Tensor) -> None:
        """Put the flat parameter where the parameters stand, with the dense gradients ``raw`` of the whole sample."""
        for piece, before, _ in self._outs:
            piece.read(before)
        self.parameter.copy_(self._before)
        if self.pieces[0].parameter.grad is None:  # then none of them has one
            self.parameter.grad = None
        else:
            self.parameter.grad = self._gradient.copy_(raw.index_select(0, self._slots))

    def end(self) -> None:
        """Add the ways that both went."""
        for piece, _, now in self._outs:
            piece.read(now)
        self.moved += self._now - self._before
        self.way += self.parameter - self._before


_NO_STEPS = torch.empty(0, dtype=torch.float64)


def _in_memory(tensor: Tensor) -> Tensor:
    """Return a tensor without gaps as it lies in memory, in one dimension."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _is_long(value: object) -> bool:
    """Return whether it holds a number for each coordinate. A number of steps may be a tensor without dimensions."""
    return isinstance(value, Tensor) and value.dim() == 1
