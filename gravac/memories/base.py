"""The base classes of error memories: they hold what compression left out and add it to the next gradient.

A step is a transaction. ``compensate`` and ``update`` work on a draft. ``commit`` makes the draft the residual, and
``rollback`` drops it, so that a non-finite step leaves no trace (promise P10). If gradients stay unchanged until
``resolve``, a memory may do without a second buffer and use the gradient to undo a step, to rounding.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gravac.compressors.base import Compressor, Payload
from gravac.kernels import add_finite
from gravac.memories.bucket import Bucket
from gravac.memories.states import VELOCITY, parameter_of, to_dense
from gravac.protocol import Record
from gravac.registry import as_text, check_settings
from gravac.transaction import Transaction

log = logging.getLogger("gravac.memories")

LARGEST = 1e37
"""Magnitude above which a residual counts as overflown, since adding a gradient to it may leave float32."""


class MemorySettings(Record):
    """Base of every memory's settings. By itself it has none."""


class PendingSum(NamedTuple):
    """The sum p = gradient + ``share`` · ``residual``, still to be written to ``out``; all of shape ``(n,)``."""

    residual: Tensor | None
    """float32; None if there is no residual, so that p is the gradient."""
    share: float
    out: Tensor
    """float32, in which the next residual is left. It may be the residual itself; then elements of the gradient that
    are not finite count as 0, since nothing could undo them. It may be the gradient itself, which is not written."""

    def write(self, gradient: Tensor, only_finite: bool) -> None:
        """Write the sum. ``only_finite``: where ``out`` is the residual, elements that are not finite count as 0."""
        residual, share, out = self
        if residual is None:
            out.copy_(gradient)
        elif residual is not out:
            torch.add(gradient, residual, alpha=share, out=out)
        elif only_finite:
            add_finite(out, gradient)
        else:
            out.add_(gradient)


class BucketMemory(ABC):
    """The part of a memory that belongs to one bucket. ``Memory.open`` makes it.

    Most memories derive theirs from ``FlatMemory``. A part that overrides ``commit``, ``rollback`` or ``load`` calls
    that of its base class last, last and first.

    Args:
        memory: The memory.
        bucket: The parameters that its gradients are made of.
    """

    loaded: dict[str, Tensor]
    """What ``load`` was given, by key of ``Memory.state_dict``."""
    has_residual: bool
    """Whether these parameters have, or may have, a residual."""
    unresolved: bool
    """Whether the running step needs ``resolve`` before the gradient changes. It does so only if ``gradient_stays`` was
    set. Otherwise ``commit`` and ``rollback`` are enough."""
    offered: Any
    """What ``compensate`` leaves to ``update``; None except between the two."""
    sent: tuple[Compressor, Payload] | None
    """What ``update`` was given, if ``resolve`` needs it to resolve the step."""

    def __init__(self, memory: "Memory", bucket: Bucket) -> None:
        self.memory, self.bucket = memory, bucket
        self.gradient_stays = False
        """Whether the next gradient stays unchanged until ``resolve`` is called for it. The caller sets it before
        ``compensate`` or ``pending_sum``."""
        self.keeps_before = False
        """Whether to keep what ``Memory.cut`` needs after the next step. Set like ``gradient_stays``, which is False
        then."""
        self.load({})

    @abstractmethod
    def compensate(self, gradient: Tensor, *, dense: bool = False) -> Tensor:
        """Add the residual to a gradient. The sum p = gradient + share · residual is what the codec compresses.

        Args:
            gradient: Shape ``(n,)``. Not changed, and must not change until ``update``.
            dense: Whether to add the whole residual, for a step that sends all of p. Afterwards there is no residual,
                even in a memory that usually holds a share back.

        Returns:
            p, shape ``(n,)``; ``gradient`` itself if there is no residual and will be none. If ``unresolved`` is then
            True, elements that are not finite in the gradient may be finite in p.

        Raises:
            ValueError: A loaded residual has another size than the gradient of its parameter.
        """

    def pending_sum(self, gradient: Tensor, *, dense: bool = False) -> PendingSum | None:
        """Return the sum that ``compensate`` would make, so that the caller can compute it and call ``sum_written``.

        A kernel can then measure p in the same pass. Nothing has happened until ``sum_written``. Arguments and errors
        are those of ``compensate``.

        Returns:
            The terms; None if this memory needs more than one sum, so that ``compensate`` must be called.
        """
        return None

    def sum_written(self) -> None:
        """Report that ``out`` of ``pending_sum`` holds p. The step goes on as after ``compensate``.

        Do not call it for a sum that failed, half of which would become a residual.
        """
        raise TypeError(f"memory {self.memory.name!r} has no pending sum")

    @abstractmethod
    def update(self, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        """Make residual + gradient - decoded payload the draft.

        Call it once after ``compensate``; it does nothing otherwise. If it raises, because a codec cannot decode, the
        residual from before the step remains, and the gradient of the step is lost.

        Args:
            compressor: The codec of the payload; may be None if ``payload`` is.
            payload: The payload that was sent of p; None if all of p was sent.

        Returns:
            The draft residual, shape ``(n,)``, before the memory's own rounding; None if there is none.
        """

    def withhold(self, p: Tensor, unused: Tensor) -> None:
        """Set elements of p to zero and leave their residual as it is, because nobody would use what is sent of it.

        Call it between ``compensate`` and ``update``, with ``gradient_stays`` False.

        Args:
            p: The sum that ``compensate`` returned. Changed.
            unused: The elements, bool of shape ``(n,)``. The gradient is zero there.
        """
        self.hold_back(torch.where(unused, p, 0.0))
        p.masked_fill_(unused, 0.0)

    @abstractmethod
    def hold_back(self, excess: Tensor) -> None:
        """Add ``excess`` to the residual if this step counts: it was sent but did not arrive.

        For example, it does not fit the gradient's format. Call it after ``compensate``. A memory that holds nothing
        loses the excess.

        Args:
            excess: float32 of shape ``(n,)``; copied.
        """

    def resolve(self, gradient: Tensor, counts: bool | Tensor) -> None:
        """Keep the residual of the running step if the step counts, else undo the step to rounding.

        ``commit`` or ``rollback`` still follows when all buckets are resolved. What they do depends on ``counts``:

        - True: nothing can undo the step any more. ``commit`` keeps the residual, ``rollback`` drops it.
        - False: the residual is that from before the step, and both keep it.
        - A tensor: ``commit`` must follow if it is true, ``rollback`` if it is false. Both keep the residual, and tell
          ``has_residual`` whether it is zero. Until then ``has_residual`` is True.

        Args:
            gradient: The gradient that was given to ``compensate``, still unchanged.
            counts: Whether the step counts. A bool tensor of shape ``()`` on the gradient's device is not read, so
                that nothing waits for it.
        """
        return

    def commit(self) -> None:
        """Make the draft the residual: the step counts."""
        self.unresolved, self.offered, self.sent = False, None, None

    def rollback(self) -> None:
        """Drop the draft, and what has overflown: see ``Memory.rollback``."""
        interrupted = self.offered is not None
        self.unresolved, self.offered, self.sent = False, None, None
        # A step that ends between ``compensate`` and ``update`` had a p that is not finite. If the residual caused
        # that, it would do so in every step to come.
        held = self.state() if interrupted else {}
        if lost := {parameter_of(key) for key, piece in held.items() if overflown(piece)}:
            self.memory.dropped += 1
            log.warning(
                "memory %s: the residual of %s overflowed and is dropped; the memory is unstable at this compression",
                self.memory.spec,
                ", ".join(sorted(lost))[:200],
            )
            self.load({key: piece for key, piece in held.items() if parameter_of(key) not in lost})

    def load(self, pieces: dict[str, Tensor]) -> None:
        """Hold these tensors, by key of ``Memory.state_dict``, and nothing else. The running step leaves no trace."""
        self.loaded, self.has_residual = pieces, not pieces.keys().isdisjoint(self.bucket.names)
        self.unresolved, self.offered, self.sent, self._most = False, None, None, 0

    def state(self) -> dict[str, Tensor]:
        """Return what is held between steps, by key of ``Memory.state_dict``: the tensors themselves if possible."""
        return self.loaded

    def rescale(self, factor: float, chosen: Callable[[str], bool]) -> None:
        """Multiply what is held under the keys that are ``chosen``."""
        # A schedule changes the rate in every step, so it is one launch and not one a parameter.
        if pieces := [piece for key, piece in self.state().items() if chosen(key)]:
            torch._foreach_mul_(pieces, factor)

    def cut(self, share: float, rest: float) -> None:
        """Let this step's gradient wait as ``share`` times itself. See ``Memory.cut``."""
        if rest != 1.0:
            self.rescale(rest, lambda key: True)

    def nbytes(self) -> int:
        """Return the most bytes that were held in the last step. See ``Memory.nbytes``."""
        return max(self._most, sum(_nbytes(value) for name, value in vars(self).items() if name != "offered"))

    def note_bytes(self) -> None:
        """Note what is held, for ``nbytes``. A ``commit`` that frees the draft calls it first."""
        self._most = 0
        self._most = self.nbytes()


class Memory(Transaction):
    """The error memory of one rank. It holds residuals by parameter, in a part for each bucket.

    Args:
        **given: Settings of this memory.

    Raises:
        ValueError: A setting is unknown or its value is not allowed.
    """

    source: ClassVar[str]
    """Paper that the update comes from."""
    exact: ClassVar[bool]
    """Whether sent + residual = what came in, to rounding. Otherwise the error has mean zero."""
    transforms: ClassVar[bool] = False
    """Whether the memory sends something else than gradients, such as their momentum. Then it takes part in dense steps
    even without a residual, and residuals are in those units (``amplification``)."""
    part: ClassVar[type[BucketMemory]]
    Settings: ClassVar[type[MemorySettings]] = MemorySettings
    examples: ClassVar[tuple[str, ...]] = ()
    """Settings that tests run beside the defaults."""

    def __init__(self, **given: Any) -> None:
        self.settings: Any = check_settings("memory", self.name, self.Settings, given)
        self.world_size = 1
        """Ranks that average; set by the caller that makes a memory for a job."""
        self.dropped = 0
        """How often an overflown residual was dropped so that training could go on."""
        self.amplification = 1.0
        """The sum over all steps of what one gradient adds to residual and sent values: 1/(1 - m) under momentum m."""
        self.parts: list[BucketMemory] = []
        self._waiting: dict[str, Tensor] = {}  # by key: of parameters whose bucket is not open

    @property
    def spec(self) -> str:
        """Name and settings as ``gravac.memories.build`` parses them."""
        return as_text(self.name, self.settings)

    def open(self, bucket: Bucket) -> BucketMemory:
        """Return the part of one bucket, with the residuals of its parameters.

        For a bucket with the same parameters it is the same part. Parts that share only some of them are closed, as DDP
        has regrouped its buckets: do not use those any more. What they held of other parameters waits for its bucket.
        """
        for part in self.parts:
            if (part.bucket.names, part.bucket.numels) == (bucket.names, bucket.numels):
                part.bucket = bucket
                return part
        names = set(bucket.names)
        for part in [part for part in self.parts if not names.isdisjoint(part.bucket.names)]:
            part.rollback()
            self._waiting |= {key: piece.float() for key, piece in part.state().items()}
            self.parts.remove(part)
        self.parts.append(self.part(self, bucket))
        self.parts[-1].load(self._taken(bucket))
        return self.parts[-1]

    def forget(self, names: Collection[str]) -> None:
        """Drop all that the buckets of these parameters hold, without reading it, because the memory failed on them."""
        for part in self.parts:
            if not set(part.bucket.names).isdisjoint(names):
                part.load({})
        for key in [key for key in self._waiting if parameter_of(key) in names]:
            del self._waiting[key]

    def commit(self) -> None:
        for part in self.parts:
            part.commit()

    def rollback(self) -> None:
        """Drop the draft. The memory is as before the step, bit for bit. For steps without a draft see ``resolve``.

        Only the residual of a parameter that has overflown is dropped, as it would make every later step non-finite
        too. That is logged, and ``dropped`` counts it.
        """
        for part in self.parts:
            part.rollback()

    def rescale(self, factor: float, names: Collection[str] | None = None) -> None:
        """Multiply everything that is held in units of gradients. Call it between steps.

        After the loss scale went from S to S', multiply by S'/S. For a learning rate see ``change_rate``.

        Args:
            factor: Finite and above zero.
            names: Parameters to change; None for all.

        Raises:
            ValueError: The factor is not finite or not above zero.
        """
        self._rescale(factor, lambda key: names is None or parameter_of(key) in names)

    def change_rate(self, factor: float, names: Collection[str] | None = None) -> None:
        """Multiply the residual by η/η' after the learning rate went from η to η', so that it keeps its effect.

        Momentum is not multiplied, just as ``torch.optim.SGD`` leaves its own. Otherwise as ``rescale``.
        """
        self._rescale(factor, lambda key: key in names if names is not None else not key.startswith(VELOCITY))

    def cut(self, share: float, rest: float, turn: float) -> None:
        """Let what was not sent of the last step's gradients g wait as ``share`` · g, as what was sent was clipped.

        Call it after ``commit``, before anything else changes the residual. It is exact where a memory still has
        the residual e from before the step: of elements that were not sent, e + g becomes e + ``share`` · g, to
        rounding. Called again, the shares multiply.

        Args:
            share: Above 0. 1 changes nothing.
            rest: What else waits of the step is multiplied by it: what is left of elements that were sent, and all of
                a residual of which e is not known.
            turn: Then everything is multiplied by it, as by ``change_rate``.
        """
        for part in self.parts:
            part.cut(share, rest)
        if turn != 1.0:
            self.change_rate(turn)

    def nbytes(self) -> int:
        """Return the most bytes that were held in the last step, drafts and hash tables included.

        The work space of one bucket, which is gone when ``update`` returns, does not count.
        """
        return sum(part.nbytes() for part in self.parts) + _nbytes(self._waiting)

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the residuals as plain tensors: float32 by parameter name, or a tagged sketch."""
        state = _copies(self._waiting)
        for part in self.parts:
            state |= _copies(part.state())
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replace the residuals by a state of this or of any other memory.

        Raises:
            ValueError: A value is not a 1-D float tensor.
        """
        self._waiting = _copies(self.pieces_of(state))
        for part in self.parts:
            part.load(self._taken(part.bucket))

    def pieces_of(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return what to hold of a state of this or of any other memory, by key. Raise as ``load_state_dict``."""
        return to_dense(state)

    def offered_share(self) -> float:
        """Return 1 - β, the share of the residual that is added in each step; β is 0 if it is no setting."""
        return 1.0 - float(getattr(self.settings, "beta", 0.0))

    def noise(self, compressor: Compressor, cf: float, numel: int) -> float | None:
        """Return θ in ``E‖C(y) - y‖² <= θ‖y‖²``, proven for the way in which the residual y is stored.

        It is 0 for exact storage and None if nothing is proven.
        """
        return 0.0

    def _taken(self, bucket: Bucket) -> dict[str, Tensor]:
        names = set(bucket.names)
        keys = [key for key in self._waiting if parameter_of(key) in names]
        return {key: self._waiting.pop(key) for key in keys}

    def _rescale(self, factor: float, chosen: Callable[[str], bool]) -> None:
        if not 0.0 < factor < float("inf"):
            raise ValueError(
                f"factor={factor} must be above 0 and finite; keep the old one while a rate is 0"
            )
        for key, piece in self._waiting.items():
            if chosen(key):
                piece.mul_(factor)
        for part in self.parts:
            part.rescale(factor, chosen)


def convert(old: Memory, new: Memory) -> Memory:
    """Load the residuals of ``old`` into ``new``, between steps, and return ``new``.

    Residuals are taken over bit for bit, and so are sketches of the same geometry. A sketch becomes the shortest
    residual that has it; a residual becomes its sketch. Momentum is no residual: only ``momentum`` takes it over.

    Raises:
        ValueError: ``new`` cannot hold a residual and ``old`` has one.
    """
    new.load_state_dict(old.state_dict())
    return new


def overflown(residual: Tensor) -> bool:
    """Return whether adding this residual would make a finite gradient non-finite, now or soon."""
    return residual.numel() > 0 and not float(torch.linalg.vector_norm(residual, float("inf"))) < LARGEST


def _copies(pieces: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: piece.detach().to(torch.float32, copy=True) for key, piece in pieces.items()}


def _nbytes(held: object) -> int:
    if isinstance(held, Tensor):
        return held.nbytes
    inside = held.values() if isinstance(held, dict) else held if isinstance(held, tuple) else ()
    return sum(map(_nbytes, inside))
