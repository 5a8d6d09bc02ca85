"""What codecs take and return: keys, traits, bounds and payloads."""

from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

import torch
from torch import Tensor

from gravac.kernels import Scalar


class Key(NamedTuple):
    """Seed material of one compression.

    Draws that ranks share (indices, hashes) ignore ``rank``; rounding noise must use it.
    """

    seed: int
    step: int
    bucket: int
    rank: int

    def shared_seed(self) -> int:
        """Returns a 63-bit seed, equal on all ranks and on every platform and Python version."""
        return _seed(f"{self.seed}/{self.step}/{self.bucket}")

    def own_seed(self) -> int:
        """Returns a 63-bit seed of this rank alone: equal noise on all ranks would not average out."""
        return _seed(f"{self.seed}/{self.step}/{self.bucket}/rank {self.rank}")


def _seed(text: str) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") >> 1


class TensorSpec(NamedTuple):
    """The dtype and length of one tensor of a payload."""

    dtype: torch.dtype
    numel: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.dtype.itemsize * self.numel


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The properties of a codec. Collectives and the gate rely on them; the property suite checks each of them."""

    unbiased: bool
    """E C(x) = x over the codec's own draws."""
    linear: bool
    """decode(sum of payloads) = sum of decodes with the same key, so payloads may be all-reduced."""
    homogeneous: bool
    """C(a·x) = a·C(x) for a > 0 (tested for powers of two, which round nothing)."""
    fixed_size: bool
    """The payload's bytes follow from n, CF and dtype, so ranks know them without communication."""
    nested: bool
    """Compressing a payload further gives what compressing the original would have given."""
    selector: bool
    """Sends some elements as they are, and zero for the others."""
    projection: bool
    """C(x) is an orthogonal projection of x: ⟨C(x), x⟩ = ‖C(x)‖², so gain = alignment. All plain selectors are."""
    sync_free: bool = False
    """Runs on a device without reading it, so the host never waits. Other codecs work there, too, and wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A proven upper bound of ``E‖C(x) − x‖²``, for float32 values on the wire.

    All None: nothing is proven.
    """

    delta: float | None = None
    """At most ``(1 − delta)·‖x‖²``; 1 = lossless."""
    omega: float | None = None
    """At most ``omega·‖x‖²``."""
    absolute: float | None = None
    """A squared error on top of the others that does not depend on x. Alone, it is the whole bound."""

    def limit(self, energy: float) -> float | None:
        """Returns the largest expected squared error for ``‖x‖² = energy``; None when nothing is proven."""
        ratio = self.ratio
        return self.absolute if ratio is None else ratio * energy + (self.absolute or 0.0)

    @property
    def ratio(self) -> float | None:
        """The smaller of 1 - delta and omega; None when neither is proven."""
        ratios = [1.0 - self.delta] if self.delta is not None else []
        return min([*ratios, self.omega] if self.omega is not None else ratios, default=None)


@dataclass(slots=True)
class Decoded:
    """What decoding a payload gave, kept by the rank that made it: several figures of a step need it."""

    tensor: Tensor | None = None
    energy: Scalar | None = None
    rounded: tuple[Tensor, Tensor] | None = None
    """Spacings and codes, which would take long to decode. Kept with the payload, as they are small."""


@dataclass(frozen=True, slots=True)
class Payload:
    """One rank's compressed tensor.

    Args:
        parts: The tensors that are sent; their bytes are the payload bytes.
        support: Positions of the values, int32 or int64; None for "everywhere". Sent only if it is among the parts.
        numel: Elements of the original tensor.
        cf: The CF it was compressed with; every rank knows it.
        key: The key it was compressed with; every rank knows it.
        decoded: Filled by ``Compressor.decoded``; ``forget`` frees it.
    """

    parts: tuple[Tensor, ...]
    support: Tensor | None
    numel: int
    cf: float = 1.0
    key: Key | None = None
    decoded: Decoded = field(default_factory=Decoded, init=False, compare=False, repr=False)

    def forget(self) -> None:
        """Frees what decoding gave."""
        self.decoded.tensor = self.decoded.energy = None

    @property
    def values(self) -> Tensor:
        """The first part."""
        return self.parts[0]

    @property
    def nbytes(self) -> int:
        """Bytes that this rank hands to the collective."""
        return sum(part.nbytes for part in self.parts)

    def pack(self) -> Tensor:
        """Returns all parts as one uint8 tensor of shape ``(nbytes,)``: one message per bucket."""
        if len(self.parts) == 1:
            return self.parts[0].view(torch.uint8)
        return torch.cat([part.view(torch.uint8) for part in self.parts])
