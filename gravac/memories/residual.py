"""Error feedback: what was not sent is added to the next gradient, all of it or a share.

p = g + (1-β) e and e' = e + g - C(p), in units of gradients: the learning rate is applied afterwards. β changes how
much is added, and nothing is lost. For selectors it is exact: every element is either sent or in the residual.

There are two ways to make a step a transaction. With a draft, p and e' are made in a second buffer, and a skipped step
leaves the first one as it was, bit for bit. In place, if the gradient stays until ``resolve``, there is one buffer. It
becomes e + g, then e + g - s. Adding s and subtracting g undoes a skipped step, with an error of at most
2^-23 (3 |e + g| + |s|) per element, a few roundings of float32.
"""

import logging
from enum import Enum, auto

import torch
from torch import Tensor

from gravac.compressors.base import Compressor, Payload
from gravac.kernels import add_finite, subtract_unless
from gravac.memories.base import Memory, PendingSum
from gravac.memories.bucketed import FlatMemory

log = logging.getLogger("gravac.memories")


class _Stage(Enum):
    """The content of the buffer in a step in place. It is true wherever a failure interrupts the step."""

    ADDING = auto()  # unknown: a sum or an undo has begun and has not ended
    ADDED = auto()  # e + g
    REMOVED = auto()  # e + g - s
    SENT = auto()  # e + g, all of which was sent
    KEPT = auto()  # e; a step that sends everything has its e + g elsewhere
    EMPTIED = auto()  # e, all of which was sent
    SETTLED = auto()  # the residual of a step that counts; nothing can undo it any more
    DECIDED = auto()  # the residual after the step, kept or undone by a tensor that the host has not read


class ResidualPart(FlatMemory):
    """The part of one bucket. While the first four stages last, it is ``unresolved``."""

    stage: _Stage | None
    """Stage of a step in place; None: none has begun, or it is undone."""
    after: tuple[bool, bool]
    """Values of ``has_residual`` in stage DECIDED: if the step is undone, and if not."""

    def load(self, pieces: dict[str, Tensor]) -> None:
        super().load(pieces)
        self.stage, self.after = None, (True, True)

    def pending_sum(self, gradient: Tensor, *, dense: bool = False) -> PendingSum | None:
        if self.unresolved:  # a backward did not end, and its gradient, which could undo it, is gone
            self._lose("belongs to a backward that did not end")
        self.stage, self.sent, self.sent_places = None, None, None
        # In place only if p is all of e + g: a share held back would be overwritten.
        if not self.gradient_stays or not (dense or self._share == 1.0):
            return super().pending_sum(gradient, dense=dense)
        self.draft, self.draft_has_residual, self._pending_share = None, None, 1.0
        buffer = self.begin(gradient.device) if self.residual is None else self.residual
        residual = buffer if self.has_residual else None
        if not dense:
            self.stage, self.unresolved = _Stage.ADDING, True
            return PendingSum(residual, 1.0, buffer)
        # A dense step leaves e where it is, so that undoing it costs nothing. p is needed only until it is sent.
        self.stage = _Stage.KEPT
        as_is = residual is None and gradient.dtype == torch.float32
        return PendingSum(residual, 1.0, gradient if as_is else torch.empty_like(buffer))

    def sum_written(self) -> None:
        self.offered = self._pending_share
        if self.stage is _Stage.ADDING:
            self.stage = _Stage.ADDED

    def update(self, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        if self.stage is None or self.offered is None:
            return super().update(compressor, payload)
        self.offered = None
        if payload is None:
            self.stage = _Stage.EMPTIED if self.stage is _Stage.KEPT else _Stage.SENT
            return None
        assert compressor is not None
        assert self.residual is not None
        if self.stage is _Stage.KEPT:
            raise ValueError("a step that began with dense=True sends all of p: pass payload=None")
        self.stage = _Stage.ADDING  # until it is done: half of a subtraction could not be undone
        compressor.remove(payload, self.residual)
        self.stage, self.sent = _Stage.REMOVED, (compressor, payload)
        return self.residual

    def sent_by_device(self, places: Tensor | None = None) -> bool:
        """Take what a device left in ``out`` of ``pending_sum`` for the residual after the step.

        Args:
            places: What it sent, int64 or int32; None: everything.

        Returns:
            Whether the device has to undo a step that does not count, as there is no second buffer. Then call
            ``resolved_by_device`` once that is queued.
        """
        self.offered = None
        if self.stage is None:
            self.draft_has_residual, self.sent_places = True, None
            if places is not None and self.keeps_before:
                self.sent_places = (places,)
            return False
        self.stage, self.after = _Stage.REMOVED, (self.has_residual, True)
        return True

    def resolved_by_device(self) -> None:
        """Note that the device keeps or undoes the step, by a tensor that the host has not read."""
        self.has_residual, self.stage, self.unresolved = True, _Stage.DECIDED, False

    def resolve(self, gradient: Tensor, counts: bool | Tensor) -> None:
        stage, residual = self.stage, self.residual
        if not self.unresolved and stage is not _Stage.EMPTIED:
            return
        assert residual is not None
        if stage is _Stage.ADDING:
            self._lose("could not be computed")
        elif isinstance(counts, Tensor):
            self._settle_unread(residual, gradient, counts)
        elif counts and stage in (_Stage.REMOVED, _Stage.SENT):
            self.has_residual, self.stage = stage is _Stage.REMOVED, _Stage.SETTLED
        elif stage is not _Stage.EMPTIED:
            self.stage = _Stage.ADDING
            if self.has_residual:  # else zero is restored by saying so
                self._undo(residual, gradient)
            self.stage = None
        self.unresolved, self.sent = False, None

    def commit(self) -> None:
        match self.stage:
            case _Stage.SENT | _Stage.EMPTIED:
                self.has_residual = False
            case _Stage.ADDED | _Stage.REMOVED:
                self.has_residual = True
            case _Stage.DECIDED:
                self.has_residual = self.after[True]
            case _Stage.ADDING:
                self._lose("could not be computed")
        self.stage, self.unresolved, self.offered, self.sent = None, False, None, None
        if self.draft_has_residual is not None or self.excess is not None:
            super().commit()

    def rollback(self) -> None:
        if self.stage is _Stage.SETTLED:
            self.has_residual = False
        elif self.stage is _Stage.DECIDED:
            self.has_residual = self.after[False]
        elif self.unresolved:
            self._lose("belongs to a step that was not undone")
        self.stage = None
        super().rollback()

    def _settle_unread(self, residual: Tensor, gradient: Tensor, counts: Tensor) -> None:
        """Settle by a tensor that is not read: compute both outcomes and let the device choose."""
        stage, self.stage, had = self.stage, _Stage.ADDING, self.has_residual
        if had and self.sent is not None and self.sent[1].support is not None:
            # Only what was sent is added back and taken again, so that a step that counts reads no whole bucket.
            compressor, payload = self.sent
            places = self.sent[1].support.long()
            after = residual.index_select(0, places)
            compressor.decompress(payload, residual)
            subtract_unless(counts, residual, gradient)
            undone = residual.index_select(0, places)
            residual.index_copy_(0, places, torch.where(counts, after, undone))
            self.after, self.stage = (True, True), _Stage.DECIDED
            return
        before = residual.clone() if had else torch.zeros_like(residual)
        if had and stage is not _Stage.EMPTIED:
            self._undo(before, gradient)
        match stage:
            case _Stage.REMOVED:
                torch.where(counts, residual, before, out=residual)
            case _Stage.ADDED:
                residual.copy_(before)
            case _:
                torch.where(counts, torch.zeros_like(before), before, out=residual)
        # The host learns the outcome in ``commit`` or ``rollback``. Until then the residual counts as there.
        self.after = had, stage is _Stage.REMOVED or (had and stage is _Stage.ADDED)
        self.has_residual, self.stage = True, _Stage.DECIDED

    def _lose(self, why: str) -> None:
        if self.has_residual:
            log.warning(
                "memory %s: the residual of %s %s and is lost", self.memory.spec, self.bucket.names[0], why
            )
        self.has_residual, self.stage, self.unresolved, self.sent = False, None, False, None

    def _undo(self, residual: Tensor, gradient: Tensor) -> None:
        """Turn what a step has left in the buffer into the residual from before it, up to rounding."""
        if self.sent is not None:
            compressor, payload = self.sent
            compressor.decompress(payload, residual)
        add_finite(residual, gradient, -1.0)


class ResidualMemory(Memory):
    """Error feedback: what was not sent is added to the next gradient.

    The whole residual is added each step: p = g + e, e' = p - C(p).
    """

    name = "residual"
    source = "Seide et al. 2014, 1-bit SGD; Karimireddy et al. 2019, Error feedback fixes SignSGD"
    exact = True
    part = ResidualPart
