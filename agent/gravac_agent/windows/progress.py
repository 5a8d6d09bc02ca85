"""The progress of the training next to a dense reference: what the optimizer would have done with dense gradients.

Compression changes what the optimizer is given, and an optimizer such as Adam answers to that in its own way. So the
loss of progress is measured where it happens: the raw gradients of a few hundred coordinates are averaged over ranks
without compression, a second optimizer of the same class and settings steps these coordinates from where the real one
stands, and the two ways are compared over blocks of steps.
"""

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gravac import optim
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.exchange.sample import Coordinates
from gravac_agent.windows.meters import ProgressSums, WindowTotals

log = logging.getLogger("gravac.agent")

BLOCK_STEPS = 25
"""Steps of a block. Longer blocks average more noise; in shorter ones a delay counts as a loss."""
CLIPPED = 0.999
"""The trainer clipped where the optimizer's gradients are shorter than this share of the exchanged ones."""
CHANGED = 0.01
"""A trainer that clips multiplies gradients by factors that differ by more than this share. A division has one."""
FOREIGN_CLIPPING = (
    "Gradients were shortened between their exchange and the optimizer's step, by another factor in each step, as "
    "torch.nn.utils.clip_grad_norm_ does. What a codec sends can be longer than the gradient, and is cut too far then. "
    "Use agent.clip_grad_norm_(max_norm); if a GradScaler scales the loss, pass it to the Agent: scaler=scaler."
)
SMOOTHING = 0.1
"""Weight of the newest step in the averages that give the length of a dense gradient relative to the exchanged one."""
NOT_SETTINGS = frozenset({"params", "param_names"})
"""Entries of a parameter group that are no settings."""
UNSCALES = ("grad_scale", "found_inf")
"""Attributes by which a GradScaler passes the loss scale to optimizers that unscale the gradients themselves."""

DENSE: dict[type, type[Optimizer]] = {optim.Adam: torch.optim.Adam, optim.AdamW: torch.optim.AdamW}
"""What steps as an optimizer does where every element arrives in every step."""
LOCAL = frozenset(
    {
        *DENSE,
        *(torch.optim.ASGD, torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW),
        *(torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop),
        torch.optim.SGD,
    }
)
"""Optimizers that step each element of a parameter for itself, draw no random numbers and talk to nobody."""


class Progress:
    """Calls the dense reference around each step of the optimizer, and hands its sums to the window, by level.

    All methods run on the training thread. A failure turns it off; nothing is raised, and the training does not notice.

    Args:
        optimizer: The training's optimizer, without wrappers.
        parameters: The module's parameters by name.
        coordinates: The sample, which the ticks exchange.
        note: Puts a sentence into log and journal.

    Attributes:
        on: Whether it is measured.
    """

    def __init__(
        self,
        optimizer: Any,
        parameters: Mapping[str, nn.Parameter],
        coordinates: Coordinates,
        note: Callable[[str], None],
    ) -> None:
        self._note, self.on = note, False
        self._reference: DenseReference | None = None
        self._plan: StepPlan | None = None
        self._factor: float | None = None  # that the trainer last shortened a compressed gradient by
        if not coordinates.size:
            return
        # Nothing of an unknown optimizer runs on made-up parameters, not even its constructor.
        if not steps_elements_alone(optimizer):
            kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
            self._turn_off(f"{kind} is not known to step each element of a parameter for itself")
            return
        try:
            self._reference, self.on = DenseReference(optimizer, parameters, coordinates), True
        except Exception as error:
            log.debug("no dense reference", exc_info=True)
            self._turn_off(f"a second {type(optimizer).__name__} cannot be made ({type(error).__name__})")

    def exchanged(self, plan: StepPlan, raw: Tensor, sent: Tensor, window: WindowTotals) -> None:
        """Take in a finite step's exchange.

        Args:
            plan: The step's plan.
            raw: The sample of the mean raw gradient.
            sent: The sample of the mean that was exchanged.
            window: The running window.
        """
        if self._reference is None:
            return
        try:
            # What a plan did in the steps before may not count for the next one.
            if self._plan is not None and self._plan.level != plan.level:
                window.add_progress(self._plan, self._reference.change_plan())
            self._plan = plan
            self._reference.exchanged(raw, sent)
        except Exception:
            self._fail()

    def before_step(self, loss_scale: float, clipped_as_dense: bool) -> None:
        """Call it right before the optimizer steps; see ``DenseReference.before_step``."""
        if self._reference is None:
            return
        try:
            self._reference.before_step(loss_scale, clipped_as_dense)
            if not clipped_as_dense and self._plan is not None and self._plan.cf > 1.0:
                self._look_for_clipping(self._reference.share * loss_scale)
        except Exception:
            self._fail()

    def _look_for_clipping(self, factor: float) -> None:
        if factor > 1.0 - CHANGED:
            return
        if self._factor is not None and abs(factor - self._factor) > CHANGED * self._factor:
            self._note(FOREIGN_CLIPPING)
        self._factor = factor

    def after_step(self, evaluated: bool) -> None:
        """Call it right after the optimizer stepped. ``evaluated``: it computed the gradients itself, by a closure."""
        if self._reference is None:
            return
        if evaluated:
            self._turn_off("the optimizer is stepped with a closure")
            return
        try:
            self._reference.after_step()
        except Exception:
            self._fail()

    def close_window(self, window: WindowTotals) -> None:
        """Hand the sums over at the end of a window."""
        if self._reference is None or self._plan is None:
            return
        try:
            self._reference.forget_exchange()
            window.add_progress(self._plan, self._reference.pop())
        except Exception:
            self._fail()

    def _fail(self) -> None:
        log.debug("the dense reference failed", exc_info=True)
        self._turn_off("the optimizer cannot be followed any more")

    def _turn_off(self, why: str) -> None:
        self._reference, self.on = None, False
        self._note(f"The progress next to dense training is not measured: {why}.")


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
        self._owned = torch.zeros(coordinates.size, dtype=torch.float64, device="cpu")
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
        self._raw, self._sent, self._last_raw = torch.zeros(
            3, coordinates.size, dtype=torch.float64, device="cpu"
        )
        self._fresh = self._began = self._has_last = self._adopted = False
        self.share = 1.0
        self._energies = (0.0, 0.0)
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
            loss_scale: Loss scale of a GradScaler: the factor of the exchanged gradients.
            clipped_as_dense: They were clipped by the norm of a dense gradient, as ``Clipper`` does.
        """
        self._began = False
        if not self._fresh:
            return
        raw, sums = self._raw, self.sums
        raw_sq, exchanged_sq = float(raw @ raw), float(self._sent @ self._sent)
        if not (math.isfinite(raw_sq) and math.isfinite(exchanged_sq)):
            self._has_last = False
            return
        sums.raw_sq += raw_sq
        if self._has_last:
            sums.raw_dot_next += float(self._last_raw @ raw)
        self._last_raw.copy_(raw)
        self._began = self._has_last = True
        if not self._adopted:
            self._adopt()
        raw = raw * self._dense_share(loss_scale, clipped_as_dense, exchanged_sq, raw_sq)
        for flat in list(self._flats):
            missing = sum(piece.parameter.grad is None for piece in flat.pieces)
            for part in self._split(flat) if 0 < missing < len(flat.pieces) else (flat,):
                part.read(part.befores)
                part.parameter.copy_(part.before)
                if part.pieces[0].parameter.grad is None:  # then none of them has one
                    part.parameter.grad = None
                else:
                    part.parameter.grad = part.gradient.copy_(raw.index_select(0, part.slots))
        follow(self._reference, self._optimizer)

    @torch.no_grad()
    def after_step(self) -> None:
        """Call it right after the optimizer stepped."""
        if not self._began:
            return
        self._fresh = self._began = False
        step(self._reference)
        for flat in self._flats:
            flat.read(flat.nows)
            flat.moved += flat.now - flat.before
            flat.way += flat.parameter - flat.before
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

    def _dense_share(
        self, loss_scale: float, clipped_as_dense: bool, exchanged_sq: float, raw_sq: float
    ) -> float:
        """Return what the trainer multiplied the gradients by, for a dense gradient: clipping depends on its length.

        One parameter shows what the exchanged gradients were multiplied by, the one with the largest sampled element.
        Where something was added to them, as the gradient of a penalty, the factor is not known: none is taken.
        """
        sent = self._sent * self._owned
        largest = int(sent.abs().argmax())
        piece = self._owners.get(largest)
        gradient = None if piece is None else piece.parameter.grad
        if piece is not None and gradient is not None and float(sent[largest]):
            part = sent[piece.slot]
            stepped = piece.of(gradient).double()
            added = (stepped != 0) & (part == 0) & (self._owned[piece.slot] != 0)
            self.share = 1.0 / loss_scale if added.any() else float(stepped @ part) / float(part @ part)
            keep = 1.0 - SMOOTHING if self._energies[0] > 0 else 0.0
            exchanged, dense = self._energies
            self._energies = keep * exchanged + (1 - keep) * exchanged_sq, keep * dense + (1 - keep) * raw_sq
        clipping = self.share * loss_scale
        if clipped_as_dense or clipping >= CLIPPED or self._energies[1] <= 0.0:
            return self.share
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
    memory: Tensor = field(init=False)
    """The parameter as it lies in memory, in one dimension, when it was at ``pointer``."""
    pointer: int = -1

    def of(self, like: Tensor) -> Tensor:
        """Return the values at these coordinates of a tensor of the parameter's shape, such as its gradient."""
        if like.stride() != self.parameter.stride():
            like = torch.empty_like(self.parameter, dtype=like.dtype).copy_(like)
        return like.detach().as_strided((like.numel(),), (1,)).index_select(0, self.places)

    def state(self, optimizer: Optimizer) -> dict[Any, Any]:
        """Return what the optimizer keeps of these coordinates: of tensors of the parameter's shape, these elements.

        Not their ages: every element of a dense gradient arrives.
        """
        shape = self.parameter.shape
        return {
            key: self.of(value) if isinstance(value, Tensor) and value.shape == shape else value
            for key, value in optimizer.state.get(self.parameter, {}).items()
            if key != "age"
        }


class _Flat:
    """Coordinates of parameters of one group as one flat parameter, and how far they and the optimizer's own went."""

    def __init__(self, pieces: tuple[_Piece, ...]) -> None:
        self.group, self.pieces = pieces[0].group, pieces
        size = sum(piece.places.numel() for piece in pieces)
        self.parameter = nn.Parameter(torch.zeros(size, dtype=pieces[0].parameter.dtype, device="cpu"))
        self.before, self.now, self.gradient = torch.empty(3, size, dtype=self.parameter.dtype, device="cpu")
        self.slots = torch.cat(
            [
                torch.arange(piece.slot.start, piece.slot.stop, dtype=torch.int64, device="cpu")
                for piece in pieces
            ]
        )
        counts = [piece.places.numel() for piece in pieces]
        self.befores, self.nows = self.before.split(counts), self.now.split(counts)
        self.moved, self.way = torch.zeros(2, size, dtype=torch.float64, device="cpu")

    def read(self, outs: Sequence[Tensor]) -> None:
        """Write the parameters' values at these coordinates into ``outs``: ``befores`` or ``nows``."""
        for piece, out in zip(self.pieces, outs, strict=True):
            parameter = piece.parameter
            if piece.pointer != parameter.data_ptr():
                piece.memory = parameter.detach().as_strided((parameter.numel(),), (1,))
                piece.pointer = parameter.data_ptr()
            torch.index_select(piece.memory, 0, piece.places, out=out)


_NO_STEPS = torch.empty(0, dtype=torch.float64, device="cpu")


def _is_long(value: object) -> bool:
    """Return whether it holds a number for each coordinate. A number of steps may be a tensor without dimensions."""
    return isinstance(value, Tensor) and value.dim() == 1


def second_optimizer(
    optimizer: Optimizer, groups: Sequence[Mapping[str, Any]], parameters: Sequence[tuple[int, nn.Parameter]]
) -> Optimizer:
    """Return an optimizer of the same class for other parameters, or of the one that is it with dense gradients.

    Args:
        optimizer: The first one.
        groups: Its groups, for their settings.
        parameters: The other parameters, each with the number of its group.
    """
    copied: list[dict[str, Any]] = [
        {key: value for key, value in group.items() if key not in NOT_SETTINGS} | {"params": []}
        for group in groups
    ]
    for group, parameter in parameters:
        copied[group]["params"].append(parameter)
    kind: Any = DENSE.get(type(optimizer), type(optimizer))
    known = inspect.signature(kind).parameters
    defaults = {key: value for key, value in optimizer.defaults.items() if key in known}
    second: Optimizer = kind(copied, **defaults)
    return second


def follow(second: Optimizer, optimizer: Optimizer) -> None:
    """Give the second optimizer the settings that the first one has now, such as its learning rates."""
    for mine, theirs in zip(second.param_groups, optimizer.param_groups, strict=True):
        for key, value in theirs.items():
            if key not in NOT_SETTINGS:
                mine[key] = value
    for name in UNSCALES:
        setattr(second, name, getattr(optimizer, name, None))


def step(optimizer: Optimizer) -> None:
    """Step without the hooks of all optimizers, which are about steps of the training."""
    getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)(optimizer)


def steps_elements_alone(optimizer: Optimizer) -> bool:
    """Return whether the optimizer is known to step each element of a parameter for itself, as SGD and Adam do.

    Subclasses and other classes are not tried out: a step of them may talk to other ranks, draw random numbers of the
    training, or count how often it runs.
    """
    return type(optimizer) in LOCAL
