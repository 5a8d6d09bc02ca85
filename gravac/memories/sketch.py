"""ConEF with a count sketch: the error memory takes s floats per element (Li et al. 2023, after the authors' code).

Linear form: p = g + (1-β) dec(S),  S' = S + enc(g - sent), with one fixed hash for the whole run. The form as printed,
"decode, add, encode again", multiplies S by the buckets' loads each step and diverges for every s < 1.

A step that sends all c elements of a bucket multiplies its content by 1 - (1-β)c. The fullest buckets hold c =
ceil(1/s) elements, so β >= 1 - 1/ceil(1/s) keeps the factor from turning negative.
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from gravac.compressors.base import Compressor, Payload
from gravac.memories.base import BucketMemory, Memory, MemorySettings
from gravac.memories.rowsketch import RowSketch, fullest
from gravac.memories.states import TAG, SketchShape, geometry_of, tag


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


class SketchPart(BucketMemory):
    """The part of one bucket. ``loaded`` has the sketches of its parameters, by name."""

    memory: "SketchMemory"
    drafts: dict[str, Tensor | None]
    """Sketches after the step, by parameter; None: no residual any more."""
    withheld: Tensor | None

    def load(self, pieces: dict[str, Tensor]) -> None:
        super().load(pieces)
        self.drafts, self.withheld = {}, None

    def compensate(self, gradient: Tensor, *, dense: bool = False) -> Tensor:
        sketcher, share = self.memory.sketcher, self.memory.offered_share()
        p = torch.empty(gradient.shape, dtype=torch.float32, device=gradient.device).copy_(gradient)
        for name, piece in self.bucket.split(p):
            held = self._held(name, piece)
            if held is None:
                continue
            if dense:
                # Not the unbiased estimate: sending the shortest residual takes back exactly this sketch.
                piece.add_(sketcher.least_norm(held, piece.numel()))
            else:
                piece.add_(sketcher.decode(held, piece.numel()), alpha=share)
        self.offered = gradient, p, dense
        return p

    def withhold(self, p: Tensor, unused: Tensor) -> None:
        # Not ``hold_back``: unless a step sends all of p, the sketch still has these elements.
        self.withheld = torch.where(unused, p, 0.0)
        p.masked_fill_(unused, 0.0)

    def update(self, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        if self.offered is None:
            return None
        (gradient, p, dense), self.offered = self.offered, None
        withheld, self.withheld = self.withheld, None
        if payload is None and (dense or not self.has_residual):
            self.drafts |= dict.fromkeys(self.bucket.names)
            if withheld is not None:
                self.hold_back(withheld)
            return None
        unsent: Tensor
        if payload is None:
            unsent = gradient.float() - p
        else:
            unsent = p.copy_(gradient)
            assert compressor is not None
            compressor.remove(payload, unsent)
        sketcher, drafts = self.memory.sketcher, {}
        for name, piece in self.bucket.split(unsent):
            held, draft = self._held(name, piece), sketcher.encode(piece)
            drafts[name] = draft if held is None else draft.add_(held)
            piece.copy_(sketcher.least_norm(draft, piece.numel()))
        self.drafts |= drafts
        return unsent

    def hold_back(self, excess: Tensor) -> None:
        for name, piece in self.bucket.split(excess):
            held = self.drafts.get(name, self._held(name, piece))
            sketched = self.memory.sketcher.encode(piece)
            self.drafts[name] = sketched if held is None else held + sketched

    def commit(self) -> None:
        self.note_bytes()
        held = self.loaded | self.drafts
        self.loaded = {name: sketch for name, sketch in held.items() if sketch is not None}
        if self.drafts:
            self.memory.numels |= zip(self.bucket.names, self.bucket.numels, strict=True)
        self.has_residual, self.drafts, self.withheld = bool(self.loaded), {}, None
        super().commit()

    def rollback(self) -> None:
        self.drafts, self.withheld = {}, None
        super().rollback()

    def _held(self, name: str, piece: Tensor) -> Tensor | None:
        held = self.loaded.get(name)
        if held is not None and self.memory.numels[name] != piece.numel():
            raise ValueError(
                f"residual of {name!r} has {self.memory.numels[name]} elements, its gradient {piece.numel()}"
            )
        if held is not None and held.device != piece.device:
            held = self.loaded[name] = held.to(piece.device)  # loaded on another device
        return held


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
    part = SketchPart
    Settings = SketchSettings
    examples = ("size=0.1,beta=0.9", "size=0.3,beta=0.7,block=100")

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.sketcher = RowSketch(self.settings.size, self.settings.block, self.settings.seed)
        self.numels: dict[str, int] = {}
        """Elements of the parameters whose sketches are held."""

    def noise(self, compressor: Compressor, cf: float, numel: int) -> float | None:
        return None  # the linear form has its own condition: beta >= least_beta(size)

    def nbytes(self) -> int:
        return super().nbytes() + self.sketcher.nbytes()

    def state_dict(self) -> dict[str, Tensor]:
        state = super().state_dict()
        return state | {TAG: tag(self._geometry(state))} if state else {}

    def pieces_of(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        dense, geometry = super().pieces_of(state), geometry_of(state)  # checks it too
        if geometry is not None and geometry.same(self._geometry({})):
            self.numels = dict(geometry.numels)
            return {name: held for name, held in state.items() if name != TAG}
        self.numels = {name: residual.numel() for name, residual in dense.items()}
        return {name: self.sketcher.encode(residual.detach().float()) for name, residual in dense.items()}

    def _geometry(self, state: dict[str, Tensor]) -> SketchShape:
        s = self.settings
        return SketchShape(s.size, s.block, s.seed, {name: self.numels[name] for name in sorted(state)})
