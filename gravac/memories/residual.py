"""Error feedback: what was not sent is added to the next gradient, all of it or a share.

p = g + (1-β) e and e' = e + g - C(p), in units of gradients: the learning rate is applied afterwards. β changes how
much is added, and nothing is lost. For selectors it is exact: every element is either sent or in the residual.

There are two ways to make a step a transaction. With a draft, p and e' are made in a second buffer, and a skipped step
leaves the first one as it was, bit for bit. In place, if the gradient stays until ``resolve``, there is one buffer. It
becomes e + g, then e + g - s. Adding s and subtracting g undoes a skipped step, with an error of at most
2^-23 (3 |e + g| + |s|) per element, a few roundings of float32.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import Tensor

from gravac.compressors.base import Compressor, Payload
from gravac.kernels import add_finite, subtract_unless
from gravac.memories.base import Bucket, PendingSum
from gravac.memories.bucketed import BucketedMemory, multiply_pieces

log = logging.getLogger("gravac.memories")


class _Stage(Enum):
    """The content of a slot's buffer in a step in place. It is true wherever a failure interrupts the step."""

    ADDING = auto()  # unknown: a sum or an undo has begun and has not ended
    ADDED = auto()  # e + g
    REMOVED = auto()  # e + g - s
    SENT = auto()  # e + g, all of which was sent
    KEPT = auto()  # e; a step that sends everything has its e + g elsewhere
    EMPTIED = auto()  # e, all of which was sent
    SETTLED = auto()  # the residual of a step that counts; nothing can undo it any more
    DECIDED = auto()  # the residual after the step, kept or undone by a tensor that the host has not read


_OPEN = (_Stage.ADDING, _Stage.ADDED, _Stage.REMOVED, _Stage.SENT)


@dataclass(slots=True)
class _Slot:
    """float32 buffers of a bucket's length. ``has_residual`` False means that ``residual`` counts as zero."""

    bucket: Bucket
    residual: Tensor
    draft: Tensor | None = None  # swapped with ``residual`` on commit; None if steps are in place
    has_residual: bool = False
    draft_has_residual: bool | None = None  # None: no draft in this step
    offered: float | None = None  # the share of the residual in p
    stage: _Stage | None = None  # None: no step in place has begun, or it is undone
    after: tuple[bool, bool] = (True, True)  # in stage DECIDED: ``has_residual`` if it is undone, and if not


class ResidualMemory(BucketedMemory[_Slot]):
    """Error feedback: what was not sent is added to the next gradient.

    The whole residual is added each step: p = g + e, e' = p - C(p).
    """

    name = "residual"
    source = "Seide et al. 2014, 1-bit SGD; Karimireddy et al. 2019, Error feedback fixes SignSGD"
    exact = True

    def compensate(self, bucket: Bucket, gradient: Tensor, *, dense: bool = False) -> Tensor:
        residual, share, out = self.pending_sum(bucket, gradient, dense=dense)
        if residual is None:
            out.copy_(gradient)
        elif residual is out:
            add_finite(out, gradient)
        else:
            torch.add(gradient, residual, alpha=share, out=out)
        self.sum_written(bucket, dense=dense)
        return out

    def pending_sum(self, bucket: Bucket, gradient: Tensor, *, dense: bool = False) -> PendingSum:
        slot = self._slot(bucket, gradient.device)
        if slot.stage in _OPEN:  # a backward did not end, and its gradient, which could undo it, is gone
            self._lose(slot, "belongs to a backward that did not end")
        slot.stage = None
        share = self._share(dense)
        residual = slot.residual if slot.has_residual else None
        # In place only if p is all of e + g: a share held back would be overwritten.
        if not self.gradient_stays or share != 1.0:
            if slot.draft is None:
                slot.draft = torch.empty_like(slot.residual)
            return PendingSum(residual, share, slot.draft)
        slot.draft = None
        if not dense:
            slot.stage = _Stage.ADDING
            return PendingSum(residual, share, slot.residual)
        # A dense step leaves e where it is, so that undoing it costs nothing. p is needed only until it is sent.
        slot.stage = _Stage.KEPT
        as_is = residual is None and gradient.dtype == torch.float32
        return PendingSum(residual, share, gradient if as_is else torch.empty_like(slot.residual))

    def sum_written(self, bucket: Bucket, *, dense: bool = False) -> None:
        slot = self._slots[bucket.names]
        slot.offered = self._share(dense)
        if slot.stage is _Stage.ADDING:
            slot.stage = _Stage.ADDED

    def _share(self, dense: bool) -> float:
        return 1.0 if dense else self.offered_share()

    def update(self, bucket: Bucket, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        slot = self._slots.get(bucket.names)
        if slot is None or slot.offered is None:
            return None
        held_back, slot.offered = 1.0 - slot.offered, None
        if slot.stage is not None:
            return self._update_in_place(slot, compressor, payload)
        assert slot.draft is not None
        if payload is None:
            slot.draft_has_residual = slot.has_residual and held_back > 0.0
            if slot.draft_has_residual:
                torch.mul(slot.residual, held_back, out=slot.draft)
        else:
            assert compressor is not None
            compressor.remove(payload, slot.draft)
            if slot.has_residual and held_back > 0.0:
                slot.draft.add_(slot.residual, alpha=held_back)
            slot.draft_has_residual = True
        return slot.draft if slot.draft_has_residual else None

    def _update_in_place(
        self, slot: _Slot, compressor: Compressor | None, payload: Payload | None
    ) -> Tensor | None:
        if payload is None:
            slot.stage = _Stage.EMPTIED if slot.stage is _Stage.KEPT else _Stage.SENT
            return None
        assert compressor is not None
        if slot.stage is _Stage.KEPT:
            raise ValueError("a step that began with dense=True sends all of p: pass payload=None")
        slot.stage = _Stage.ADDING  # until it is done: half of a subtraction could not be undone
        compressor.remove(payload, slot.residual)
        slot.stage = _Stage.REMOVED
        return slot.residual

    def unsettled(self, bucket: Bucket) -> bool:
        slot = self._slots.get(bucket.names)
        return slot is not None and slot.stage in _OPEN

    def resolve(
        self,
        bucket: Bucket,
        gradient: Tensor,
        counts: bool | Tensor,
        compressor: Compressor | None = None,
        payload: Payload | None = None,
    ) -> None:
        slot = self._slots.get(bucket.names)
        if slot is None or slot.stage in (None, _Stage.KEPT, _Stage.SETTLED, _Stage.DECIDED):
            return
        if slot.stage is _Stage.ADDING:
            self._lose(slot, "could not be computed")
        elif isinstance(counts, Tensor):
            self._settle_unread(slot, gradient, counts, compressor, payload)
        elif counts and slot.stage in (_Stage.REMOVED, _Stage.SENT):
            slot.has_residual, slot.stage = slot.stage is _Stage.REMOVED, _Stage.SETTLED
        elif slot.stage is not _Stage.EMPTIED:
            stage, slot.stage = slot.stage, _Stage.ADDING
            if slot.has_residual:  # else zero is restored by saying so
                _undo(slot.residual, stage, gradient, compressor, payload)
            slot.stage = None

    def _settle_unread(
        self,
        slot: _Slot,
        gradient: Tensor,
        counts: Tensor,
        compressor: Compressor | None,
        payload: Payload | None,
    ) -> None:
        """Settle by a tensor that is not read: compute both outcomes and let the device choose."""
        assert slot.stage is not None
        stage, slot.stage, had = slot.stage, _Stage.ADDING, slot.has_residual
        if had and stage is _Stage.REMOVED and payload is not None and payload.support is not None:
            # Only what was sent is added back and taken again, so that a step that counts reads no whole bucket.
            places = payload.support.long()
            after = slot.residual.index_select(0, places)
            assert compressor is not None
            compressor.decompress(payload, slot.residual)
            subtract_unless(counts, slot.residual, gradient)
            undone = slot.residual.index_select(0, places)
            slot.residual.index_copy_(0, places, torch.where(counts, after, undone))
            slot.after, slot.stage = (True, True), _Stage.DECIDED
            return
        before = slot.residual.clone() if slot.has_residual else torch.zeros_like(slot.residual)
        if slot.has_residual and stage is not _Stage.EMPTIED:
            _undo(before, stage, gradient, compressor, payload)
        match stage:
            case _Stage.REMOVED:
                torch.where(counts, slot.residual, before, out=slot.residual)
            case _Stage.ADDED:
                slot.residual.copy_(before)
            case _:
                torch.where(counts, torch.zeros_like(before), before, out=slot.residual)
        # The host learns the outcome in ``commit`` or ``rollback``. Until then the residual counts as there.
        slot.after = had, stage is _Stage.REMOVED or (had and stage is _Stage.ADDED)
        slot.has_residual, slot.stage = True, _Stage.DECIDED

    def rescale(self, factor: float, names: Collection[str] | None = None) -> None:
        factor = self._factor(factor)
        self._rescale_unassigned(factor, names)
        for slot in self._slots.values():
            if slot.has_residual:
                multiply_pieces(slot.bucket, slot.residual, factor, names)

    def nbytes(self) -> int:
        return self._bytes_of(
            tensor for slot in self._slots.values() for tensor in (slot.residual, slot.draft)
        )

    def _open(self, bucket: Bucket, device: torch.device, residual: Tensor | None) -> _Slot:
        if residual is not None:
            return _Slot(bucket, residual, has_residual=True)
        return _Slot(bucket, torch.zeros(sum(bucket.numels), device=device, dtype=torch.float32))

    def _dense(self, slot: _Slot) -> Tensor | None:
        return slot.residual if slot.has_residual else None

    def _accept(self, slot: _Slot) -> None:
        if slot.draft_has_residual is not None:
            assert slot.draft is not None
            slot.residual, slot.draft = slot.draft, slot.residual
            slot.has_residual, slot.draft_has_residual = slot.draft_has_residual, None
        match slot.stage:
            case _Stage.SENT | _Stage.EMPTIED:
                slot.has_residual = False
            case _Stage.ADDED | _Stage.REMOVED:
                slot.has_residual = True
            case _Stage.DECIDED:
                slot.has_residual = slot.after[True]
            case _Stage.ADDING:
                self._lose(slot, "could not be computed")
        slot.stage = None

    def _discard(self, slot: _Slot) -> None:
        slot.draft_has_residual = None
        if slot.stage is _Stage.SETTLED:
            slot.has_residual = False
        elif slot.stage is _Stage.DECIDED:
            slot.has_residual = slot.after[False]
        elif slot.stage in _OPEN:
            self._lose(slot, "belongs to a step that was not undone")
        slot.stage = None

    def _lose(self, slot: _Slot, why: str) -> None:
        if slot.has_residual:
            log.warning("memory %s: the residual of %s %s and is lost", self.spec, slot.bucket.names[0], why)
        slot.has_residual, slot.stage = False, None


def _undo(
    residual: Tensor, stage: _Stage, gradient: Tensor, compressor: Compressor | None, payload: Payload | None
) -> None:
    """Turn what a step has left in the buffer into the residual from before it, up to rounding."""
    if stage is _Stage.REMOVED:
        if compressor is None or payload is None:
            raise ValueError("resolve needs the compressor and the payload that update was given")
        compressor.decompress(payload, residual)
    add_finite(residual, gradient, -1.0)
