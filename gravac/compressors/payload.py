"""What a codec is told, what it says of itself, and what it hands over."""

from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import torch
from torch import Tensor


class Key(NamedTuple):
    """Seed material of one compression. Shared draws (indices, hashes) ignore ``rank``; rounding noise must use it."""

    seed: int
    step: int
    bucket: int
    rank: int

    def shared_seed(self) -> int:
        """63-bit seed equal on all ranks and on every platform and Python version."""
        return _seed(f"{self.seed}/{self.step}/{self.bucket}")

    def own_seed(self) -> int:
        """63-bit seed of this rank alone: equal noise on all ranks would not average out."""
        return _seed(f"{self.seed}/{self.step}/{self.bucket}/rank {self.rank}")


def _seed(text: str) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") >> 1


class TensorSpec(NamedTuple):
    """One tensor of a payload as it travels."""

    dtype: torch.dtype
    numel: int

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * self.numel


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a codec is. Tests and collectives act on these, so a wrong one is caught, not believed."""

    unbiased: bool
    """E C(x) = x over the codec's own draws."""
    linear: bool
    """decode(sum of payloads) = sum of decodes with the same key, so payloads may be all-reduced."""
    homogeneous: bool
    """C(a·x) = a·C(x) for a > 0 (tested for powers of two, which round nothing)."""
    fixed_size: bool
    """The payload's bytes follow from n, CF and dtype: ranks know them without talking."""
    nested: bool
    """Compressing a payload further gives what compressing the original would have given."""
    selector: bool
    """Sends some elements as they are, or zero."""
    projection: bool
    """C(x) is an orthogonal projection of x: ⟨C(x), x⟩ = ‖C(x)‖², so gain = alignment. All plain selectors are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """At most what is proven of ``E‖C(x) − x‖²``, for float32 values on the wire.

    ``delta``: ≤ (1 − delta)·‖x‖² (1 = lossless). ``omega``: ≤ omega·‖x‖². ``absolute``: squared error that comes on
    top, whatever x is; alone, it is the whole bound. All None: nothing is proven.
    """

    delta: float | None = None
    omega: float | None = None
    absolute: float | None = None

    def limit(self, energy: float) -> float | None:
        """Largest expected squared error of a vector with ``‖x‖² = energy``; None when nothing is proven."""
        ratio = self.ratio
        return self.absolute if ratio is None else ratio * energy + (self.absolute or 0.0)

    @property
    def ratio(self) -> float | None:
        """The smaller of 1 - delta and omega."""
        ratios = [1.0 - self.delta] if self.delta is not None else []
        return min([*ratios, self.omega] if self.omega is not None else ratios, default=None)


@dataclass(frozen=True, slots=True)
class Payload:
    """One rank's compressed tensor.

    ``parts`` travel (their bytes are the payload bytes); ``support`` (int32 or int64 indices, or None for
    "everywhere") is where the values belong, and travels only if it is among the parts too. ``numel``: elements of the
    original. ``cf`` and ``key``: what it was compressed with; every rank knows them.
    """

    parts: tuple[Tensor, ...]
    support: Tensor | None
    numel: int
    cf: float = 1.0
    key: Key | None = None

    @property
    def values(self) -> Tensor:
        return self.parts[0]

    @property
    def nbytes(self) -> int:
        """Bytes handed to the collective by this rank."""
        return sum(part.nbytes for part in self.parts)

    def pack(self) -> Tensor:
        """All parts in one uint8 tensor of shape ``(nbytes,)``: one message a bucket."""
        if len(self.parts) == 1:
            return self.parts[0].view(torch.uint8)
        return torch.cat([part.view(torch.uint8) for part in self.parts])
