"""ConEF with a count sketch: the error memory takes s floats per element (Li et al. 2023, after the authors' code).

Linear form: p = g + (1-β) dec(S),  S' = S + enc(g - sent), with one fixed hash for the whole run. The form as printed,
"decode, add, encode again", multiplies S by the buckets' loads each step and diverges for every s < 1.

A step that sends all c elements of a bucket multiplies its content by 1 - (1-β)c. The fullest buckets hold c =
ceil(1/s) elements, so β >= 1 - 1/ceil(1/s) keeps the factor from turning negative.
"""

from collections.abc import Collection
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from gravac.compressors.base import Compressor, Payload
from gravac.memories.base import Bucket, Memory, MemorySettings, overflown
from gravac.memories.rowsketch import RowSketch, fullest
from gravac.memories.states import TAG, SketchShape, geometry_of, tag, to_dense


def least_beta(size: float) -> float:
    """Return the smallest β that is stable with a sketch of ``size`` floats per element: 1 - 1/ceil(1/size)."""
    return 1.0 - 1.0 / fullest(size)


class SketchSettings(MemorySettings):
    """The size of the sketch, and how fast the residual is sent."""

    size: float = Field(
        0.4,
        gt=0,
        le=1,
        description="s, floats kept per element, above 0 to 1; with a step's draft 8 s bytes an element.",
    )
    beta: float = Field(
        default_factory=lambda data: least_beta(data["size"]) if "size" in data else 0.0,
        ge=0,
        lt=1,
        description="β, share of the residual that is held back each step, 0 to below 1. Default 1 - 1/ceil(1/size), "
        "the smallest that is stable.",
    )
    block: int = Field(
        256,
        ge=1,
        le=32768,
        description="Longest row that is hashed by itself, in elements. Parameters no longer than it are kept whole.",
    )
    seed: int = Field(
        0, ge=0, le=2**31, description="Seed of the hash; equal on all ranks, fixed for the run."
    )


class SketchMemory(Memory):
    """ConEF with a count sketch: the error memory takes ``size`` floats per element.

    One sketch per parameter, so that regrouping changes nothing; parameters of up to ``block`` elements are stored
    whole.
    """

    name = "conef-sketch"
    source = (
        "Li et al. 2023, Contractive error feedback, count sketch in the linear form of the authors' code"
    )
    exact = False
    Settings = SketchSettings

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._sketcher = RowSketch(self.settings.size, self.settings.block, self.settings.seed)
        self._held: dict[str, Tensor] = {}
        self._numels: dict[str, int] = {}
        self._drafts: dict[str, Tensor | None] = {}  # None: no residual any more
        self._offered: dict[Bucket, tuple[Tensor, Tensor, bool]] = {}  # gradient, p, whole
        self._withheld: dict[Bucket, Tensor] = {}
        self._most = 0

    def offered_share(self) -> float:
        return float(1.0 - self.settings.beta)

    def noise(self, compressor: Compressor, cf: float, numel: int) -> float | None:
        return None  # the linear form has its own condition: beta >= least_beta(size)

    def compensate(self, bucket: Bucket, gradient: Tensor, *, dense: bool = False) -> Tensor:
        p = torch.empty(gradient.shape, dtype=torch.float32, device=gradient.device).copy_(gradient)
        for name, piece in self._split(bucket, p):
            held = self._held_of(name, piece)
            if held is None:
                continue
            if dense:
                # Not the unbiased estimate: sending the shortest residual takes back exactly this sketch.
                piece.add_(self._sketcher.least_norm(held, piece.numel()))
            else:
                piece.add_(self._sketcher.decode(held, piece.numel()), alpha=self.offered_share())
        self._offered[bucket] = gradient, p, dense
        return p

    def withhold(self, bucket: Bucket, p: Tensor, unused: Tensor) -> None:
        # Not ``hold_back``: unless a step sends all of p, the sketch still has these elements.
        self._withheld[bucket] = torch.where(unused, p, 0.0)
        p.masked_fill_(unused, 0.0)

    def update(self, bucket: Bucket, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        gradient, p, dense = self._offered.pop(bucket, (None, None, False))
        if gradient is None or p is None:
            return None
        withheld = self._withheld.pop(bucket, None)
        if payload is None and (dense or self._held.keys().isdisjoint(bucket.names)):
            self._drafts |= dict.fromkeys(bucket.names)
            if withheld is not None:
                self.hold_back(bucket, withheld)
            return None
        if payload is None:
            unsent = gradient.float() - p
        else:
            unsent = p.copy_(gradient)
            assert compressor is not None
            compressor.remove(payload, unsent)
        drafts: dict[str, Tensor | None] = {}
        for name, piece in self._split(bucket, unsent):
            held, draft = self._held_of(name, piece), self._sketcher.encode(piece)
            drafts[name] = draft if held is None else draft.add_(held)
            piece.copy_(self._sketcher.least_norm(draft, piece.numel()))
        self._drafts |= drafts
        self._numels |= dict(zip(bucket.names, bucket.numels, strict=True))
        return unsent

    def hold_back(self, bucket: Bucket, excess: Tensor) -> None:
        for name, piece in self._split(bucket, excess):
            held = self._drafts.get(name, self._held_of(name, piece))
            sketched = self._sketcher.encode(piece)
            self._drafts[name] = sketched if held is None else held + sketched
        self._numels |= dict(zip(bucket.names, bucket.numels, strict=True))

    def has_residual(self, bucket: Bucket) -> bool:
        return not self._held.keys().isdisjoint(bucket.names)

    def forget(self, names: Collection[str]) -> None:
        for name in names:
            self._held.pop(name, None)
            self._drafts.pop(name, None)
            self._numels.pop(name, None)
        for bucket in [bucket for bucket in self._offered if not set(bucket.names).isdisjoint(names)]:
            del self._offered[bucket]
            self._withheld.pop(bucket, None)

    def commit(self) -> None:
        self._most = self._bytes()
        for name, draft in self._drafts.items():
            if draft is None:
                self._held.pop(name, None)
            else:
                self._held[name] = draft
        self._drafts, self._offered, self._withheld = {}, {}, {}

    def rollback(self) -> None:
        # A step that ends between ``compensate`` and ``update`` had a p that is not finite. If the residual caused
        # that, it would do so in every step to come.
        interrupted = {name for bucket in self._offered for name in bucket.names}
        self._drafts, self._offered, self._withheld = {}, {}, {}
        lost = [name for name in interrupted if name in self._held and overflown(self._held[name])]
        if lost:
            self._warn_dropped(lost)
            for name in lost:
                del self._held[name]

    def rescale(self, factor: float, names: Collection[str] | None = None) -> None:
        factor = self._factor(factor)
        for name, held in self._held.items():
            if names is None or name in names:
                held.mul_(factor)

    def nbytes(self) -> int:
        return max(self._most, self._bytes())

    def state_dict(self) -> dict[str, Tensor]:
        if not self._held:
            return {}
        return {name: held.clone() for name, held in self._held.items()} | {TAG: tag(self._geometry())}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        dense = to_dense(state)  # checks it too
        geometry = geometry_of(state)
        self._drafts, self._offered, self._withheld, self._most = {}, {}, {}, 0
        if geometry is not None and geometry.same(self._geometry()):
            self._numels = dict(geometry.numels)
            self._held = {name: held.detach().float().clone() for name, held in state.items() if name != TAG}
        else:
            self._numels = {name: residual.numel() for name, residual in dense.items()}
            self._held = {
                name: self._sketcher.encode(residual.detach().float()) for name, residual in dense.items()
            }

    def _geometry(self) -> SketchShape:
        s = self.settings
        return SketchShape(s.size, s.block, s.seed, {name: self._numels[name] for name in self._held})

    def _held_of(self, name: str, piece: Tensor) -> Tensor | None:
        held = self._held.get(name)
        if held is not None and self._numels[name] != piece.numel():
            raise ValueError(
                f"residual of {name!r} has {self._numels[name]} elements, its gradient {piece.numel()}"
            )
        if held is not None and held.device != piece.device:
            held = self._held[name] = held.to(piece.device)  # loaded on another device
        return held

    def _bytes(self) -> int:
        drafts = sum(draft.nbytes for draft in self._drafts.values() if draft is not None)
        return sum(held.nbytes for held in self._held.values()) + drafts + self._sketcher.nbytes()

    @staticmethod
    def _split(bucket: Bucket, flat: Tensor) -> list[tuple[str, Tensor]]:
        return list(zip(bucket.names, torch.split(flat, list(bucket.numels)), strict=True))
