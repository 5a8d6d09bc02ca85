"""The base class of memories that hold one flat tensor per bucket, and split it when DDP regroups its buckets."""

from abc import abstractmethod
from collections.abc import Collection, Iterable
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from gravac.memories.base import Bucket, Memory, overflown
from gravac.memories.states import VELOCITY, to_dense


class Slot(Protocol):
    """The state of one bucket. ``offered`` is None except between ``compensate`` and ``update``."""

    bucket: Bucket
    offered: Any

    @property
    def has_residual(self) -> bool:
        """Whether a residual is committed."""
        ...


SlotT = TypeVar("SlotT", bound=Slot)


class BucketedMemory(Memory, Generic[SlotT]):
    """A memory whose residuals are flat tensors by bucket, for speed.

    They belong to parameters: when DDP regroups its buckets, the new ones take the residuals of their parameters over.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._slots: dict[tuple[str, ...], SlotT] = {}
        self._unassigned: dict[
            str, Tensor
        ] = {}  # by parameter: residuals whose bucket is not, or no longer, known
        self._excess: dict[tuple[str, ...], Tensor] = {}  # held back in the running step

    @abstractmethod
    def _open(self, bucket: Bucket, device: torch.device, residual: Tensor | None) -> SlotT:
        """Return a new slot with ``residual``, float32 of shape ``(n,)``, which the slot owns."""

    @abstractmethod
    def _dense(self, slot: SlotT) -> Tensor | None:
        """Return the committed residual, decoded, float32 of shape ``(n,)``; None if there is none."""

    @abstractmethod
    def _accept(self, slot: SlotT) -> None:
        """Make the slot's draft, if any, its residual."""

    @abstractmethod
    def _discard(self, slot: SlotT) -> None:
        """Drop the slot's draft."""

    def has_residual(self, bucket: Bucket) -> bool:
        slot = self._slots.get(bucket.names)
        if slot is not None:
            return slot.has_residual
        return not self._unassigned.keys().isdisjoint(bucket.names) or any(
            other.has_residual for other in self._overlapping(bucket)
        )

    def hold_back(self, bucket: Bucket, excess: Tensor) -> None:
        self._slot(bucket, excess.device)
        before = self._excess.get(bucket.names)
        self._excess[bucket.names] = excess.clone() if before is None else before.add_(excess)

    def forget(self, names: Collection[str]) -> None:
        for held in [held for held in self._slots if not set(held).isdisjoint(names)]:
            del self._slots[held]
            self._excess.pop(held, None)
        for key in [key for key in self._unassigned if key.removeprefix(VELOCITY) in names]:
            del self._unassigned[key]

    def commit(self) -> None:
        for slot in self._slots.values():
            self._accept(slot)
            slot.offered = None
        for names, excess in self._excess.items():
            # Every kind of slot can be collected again from plain residuals, so the excess needs no code in each of
            # them. It is rare enough to cost the next step a copy.
            slot = self._slots[names]
            self._unassign(slot)
            pieces = torch.split(excess, list(slot.bucket.numels))
            for name, piece in zip(names, pieces, strict=True):
                residual = self._unassigned.get(name)
                self._unassigned[name] = piece.clone() if residual is None else residual.add_(piece)
        self._excess.clear()

    def rollback(self) -> None:
        self._excess.clear()
        for names, slot in list(self._slots.items()):
            # A step that ends between ``compensate`` and ``update`` had a p that is not finite. If the residual caused
            # that, it would do so in every step to come.
            interrupted, slot.offered = slot.offered is not None, None
            self._discard(slot)
            if interrupted and self._overflown(slot):
                self._warn_dropped(names)
                del self._slots[names]

    def state_dict(self) -> dict[str, Tensor]:
        state = {name: residual.clone() for name, residual in self._unassigned.items()}
        for slot in self._slots.values():
            state |= self._pieces(slot)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._slots, self._excess = {}, {}
        self._unassigned = {name: value.detach().float().clone() for name, value in to_dense(state).items()}

    def _overflown(self, slot: SlotT) -> bool:
        """Return whether the committed residual makes p non-finite, now or soon."""
        residual = self._dense(slot)
        return residual is not None and overflown(residual)

    def _bytes_of(self, held: Iterable[Any]) -> int:
        """Return the bytes of what the slots hold (``held``; None counts nothing) and of the unassigned residuals."""
        return sum(part.nbytes for part in (*held, *self._unassigned.values()) if part is not None)

    def _rescale_unassigned(self, factor: float, names: Collection[str] | None) -> None:
        for name, residual in self._unassigned.items():
            if names is None or name in names:
                residual.mul_(factor)

    def _slot(self, bucket: Bucket, device: torch.device) -> SlotT:
        slot = self._slots.get(bucket.names)
        if slot is None:
            # DDP has regrouped its buckets, or this is the first step: collect what is held under other names.
            for other in self._overlapping(bucket):
                self._unassign(other)
            slot = self._open(bucket, device, self._collect(bucket, device))
            self._slots[bucket.names] = slot
        return slot

    def _unassign(self, slot: SlotT) -> None:
        self._unassigned |= self._pieces(slot)
        del self._slots[slot.bucket.names]

    def _collect(self, bucket: Bucket, device: torch.device, prefix: str = "") -> Tensor | None:
        """Return the unassigned residuals of the bucket's parameters under ``prefix``, flat; None if there are none."""
        for name, numel in zip(bucket.names, bucket.numels, strict=True):
            loose = self._unassigned.get(prefix + name)
            if loose is not None and loose.numel() != numel:
                raise ValueError(f"residual of {name!r} has {loose.numel()} elements, its gradient {numel}")
        found = {
            name: self._unassigned.pop(prefix + name)
            for name in bucket.names
            if prefix + name in self._unassigned
        }
        if not found:
            return None
        flat = torch.zeros(sum(bucket.numels), device=device, dtype=torch.float32)
        for name, piece in zip(bucket.names, torch.split(flat, list(bucket.numels)), strict=True):
            if name in found:
                piece.copy_(found[name])
        return flat

    def _pieces(self, slot: SlotT) -> dict[str, Tensor]:
        residual = self._dense(slot)
        if residual is None:
            return {}
        pieces = torch.split(residual, list(slot.bucket.numels))
        return {name: piece.clone() for name, piece in zip(slot.bucket.names, pieces, strict=True)}

    def _overlapping(self, bucket: Bucket) -> list[SlotT]:
        names = set(bucket.names)
        return [slot for slot in self._slots.values() if not names.isdisjoint(slot.bucket.names)]


def multiply_pieces(bucket: Bucket, flat: Tensor, factor: float, names: Collection[str] | None) -> None:
    """Multiply the pieces of ``flat``, shape ``(n,)``, that belong to these parameters, or all for None."""
    for name, piece in zip(bucket.names, torch.split(flat, list(bucket.numels)), strict=True):
        if names is None or name in names:
            piece.mul_(factor)
