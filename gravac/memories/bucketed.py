"""The base class of parts that hold their residual as one flat tensor: textbook error feedback with a draft.

p = g + (1-β) e is made in a second buffer, in which p - C(p) + β e is left: the draft. A step that counts swaps both.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gravac.compressors.base import Compressor, Payload
from gravac.compressors.rows import places
from gravac.kernels.sifting import mapped
from gravac.memories.base import BucketMemory, Memory, PendingSum
from gravac.memories.bucket import Bucket


class FlatMemory(BucketMemory):
    """The part of a bucket, with a flat residual. What was loaded for its parameters is taken up by the first step."""

    residual: Tensor | None
    """Shape ``(n,)``, float32 unless a derived class has its own format. It counts as zero if not ``has_residual``.
    None before the first step."""
    draft: Tensor | None
    """A second buffer like it."""
    draft_has_residual: bool | None
    """Whether ``draft`` is the residual after the running step; False: there is none; None: the step has no draft."""
    excess: Tensor | None
    """What was held back in the running step."""
    sent_places: tuple[Tensor, ...] | None
    """What the last step sent by row, where that was not everything. Between ``commit`` and the next step ``draft`` is
    the residual from before it then; None: that is not known."""
    before_counts: bool
    """Whether that counts; else it is zero."""

    def __init__(self, memory: Memory, bucket: Bucket) -> None:
        self._share = memory.offered_share()
        self._pending_share = 1.0
        super().__init__(memory, bucket)

    def load(self, pieces: dict[str, Tensor]) -> None:
        super().load(pieces)
        self.residual = self.draft = self.excess = self.draft_has_residual = self.sent_places = None
        self.before_counts = False

    def compensate(self, gradient: Tensor, *, dense: bool = False) -> Tensor:
        terms = self.pending_sum(gradient, dense=dense)
        assert terms is not None
        terms.write(gradient, only_finite=self.unresolved)
        self.sum_written()
        return terms.out

    def pending_sum(self, gradient: Tensor, *, dense: bool = False) -> PendingSum | None:
        residual = self.begin(gradient.device) if self.residual is None else self.residual
        if self.draft is None:
            self.draft = mapped(residual.numel(), residual.dtype, residual.device)
        self._pending_share, self.draft_has_residual, self.sent_places = (
            1.0 if dense else self._share,
            None,
            None,
        )
        return PendingSum(residual if self.has_residual else None, self._pending_share, self.draft)

    def sum_written(self) -> None:
        self.offered = self._pending_share

    def update(self, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        if self.offered is None:
            return None
        held_back, self.offered = 1.0 - self.offered, None
        assert self.draft is not None
        assert self.residual is not None
        held = self.has_residual and held_back > 0.0
        if payload is not None:
            assert compressor is not None
            self.sent_places = places(payload) if self.keeps_before else None
            compressor.remove(payload, self.draft)
            if held:
                self.draft.add_(self.residual, alpha=held_back)
        elif held:
            torch.mul(self.residual, held_back, out=self.draft)
        self.draft_has_residual = held or payload is not None
        return self.draft if self.draft_has_residual else None

    def hold_back(self, excess: Tensor) -> None:
        if self.loaded:
            self.begin(excess.device)
        self.excess = excess.clone() if self.excess is None else self.excess.add_(excess)

    def commit(self) -> None:
        if self.draft_has_residual is not None:
            if self.draft_has_residual:
                self.residual, self.draft = self.draft, self.residual
                self.before_counts = self.has_residual
            self.has_residual, self.draft_has_residual = self.draft_has_residual, None
        super().commit()
        if self.excess is not None:
            # Every part can begin with plain residuals, so the excess needs no code in each kind of them. It is rare
            # enough to cost the next step a copy.
            held = self.state()
            for name, piece in self.bucket.split(self.excess):
                held[name] = piece.add_(held[name]) if name in held else piece
            self.load(held)

    def rollback(self) -> None:
        self.draft_has_residual = self.excess = self.sent_places = None
        super().rollback()

    def cut(self, share: float, rest: float) -> None:
        if self.sent_places is None:
            super().cut(share, rest)
            return
        residual, before = self.residual, self.draft
        assert residual is not None
        rows = residual.view(len(self.sent_places), -1)
        kept = [row[one.long()] for row, one in zip(rows, self.sent_places, strict=True)]
        self.mix(residual, before if self.before_counts else None, share)
        for row, one, piece in zip(rows, self.sent_places, kept, strict=True):
            row[one.long()] = piece.mul_(rest)

    def mix(self, residual: Tensor, before: Tensor | None, share: float) -> None:
        """Make ``before`` + ``share`` · (``residual`` − ``before``) the residual; None: it is zero."""
        if before is None:
            residual.mul_(share)
        else:
            torch.lerp(before, residual, share, out=residual)

    def rescale(self, factor: float, chosen: Callable[[str], bool]) -> None:
        self.sent_places = None  # what was before is of another size
        super().rescale(factor, chosen)

    def state(self) -> dict[str, Tensor]:
        if self.residual is None:
            return self.loaded
        return dict(self.bucket.split(self.residual)) if self.has_residual else {}

    def begin(self, device: torch.device) -> Tensor:
        """Make the residual of what was loaded, and return it. Raise ValueError as ``compensate``."""
        self.residual, self.loaded = self.gathered(device), {}
        return self.residual

    def gathered(self, device: torch.device, prefix: str = "") -> Tensor:
        """Return what was loaded of the bucket's parameters under ``prefix``, as one float32 tensor, else zeros."""
        flat = mapped(sum(self.bucket.numels), torch.float32, device)
        for name, piece in self.bucket.split(flat):
            loaded = self.loaded.get(prefix + name)
            if loaded is not None and loaded.numel() != piece.numel():
                raise ValueError(
                    f"residual of {name!r} has {loaded.numel()} elements, its gradient {piece.numel()}"
                )
            if loaded is not None:
                piece.copy_(loaded)
        return flat
