"""The types that codecs take and return: keys, traits, bounds and payloads."""

from collections.abc import Iterator
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
        """Return a 63-bit seed, equal on all ranks and on every platform and Python version."""
        return _seed(f"{self.seed}/{self.step}/{self.bucket}")

    def own_seed(self) -> int:
        """Return a 63-bit seed of this rank alone, because equal noise on all ranks would not average out."""
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
    """It sends some elements as they are, and the others decode to zero."""
    projection: bool
    """C(x) is an orthogonal projection of x: ⟨C(x), x⟩ = ‖C(x)‖², so gain = alignment. All plain selectors are."""
    sync_free: bool = False
    """It runs on a device without reading from it, so the host never waits. With other codecs the host waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A proven upper bound of ``E‖C(x) − x‖²``, for float32 values on the wire.

    If all of them are None, nothing is proven.
    """

    delta: float | None = None
    """Bound of the error: it is at most ``(1 − delta)·‖x‖²``; 1 = lossless."""
    omega: float | None = None
    """Bound of the variance: it is at most ``omega·‖x‖²``."""
    absolute: float | None = None
    """A squared error that does not depend on x, and is added to the others. Alone, it is the whole bound."""

    def limit(self, energy: float) -> float | None:
        """Return the largest expected squared error for ``‖x‖² = energy``; None if nothing is proven."""
        ratio = self.ratio
        return self.absolute if ratio is None else ratio * energy + (self.absolute or 0.0)

    @property
    def ratio(self) -> float | None:
        """The smaller one of 1 - delta and omega; None if neither is proven."""
        ratios = [1.0 - self.delta] if self.delta is not None else []
        return min([*ratios, self.omega] if self.omega is not None else ratios, default=None)


@dataclass(slots=True)
class Decoded:
    """The result of decoding a payload. The rank that made the payload keeps it, as several energies need it."""

    tensor: Tensor | None = None
    values: Tensor | None = None
    """What the quantizer of a stack decodes to."""
    energy: Scalar | None = None
    inner: Scalar | None = None
    rounded: tuple[Tensor, Tensor] | None = None
    """Spacings and codes, which would take long to decode. They are small, so ``forget`` keeps them."""


@dataclass(frozen=True, slots=True)
class Payload:
    """One rank's compressed tensor.

    Args:
        parts: The tensors that are sent; their bytes are the payload bytes.
        support: Positions of the values, int32 or int64; None if they are all. It is sent only if it is a part, too.
        numel: Elements of the original tensor.
        cf: The CF it was compressed with; every rank knows it.
        key: The key it was compressed with; every rank knows it.
        decoded: The decoded tensor, which ``Compressor.decoded`` makes and ``forget`` frees.
    """

    parts: tuple[Tensor, ...]
    support: Tensor | None
    numel: int
    cf: float = 1.0
    key: Key | None = None
    decoded: Decoded = field(default_factory=Decoded, init=False, compare=False, repr=False)

    def forget(self) -> None:
        """Free the decoded tensor, and what was computed of it."""
        kept = self.decoded
        kept.tensor = kept.values = kept.energy = kept.inner = None

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors that it refers to, also decoded ones."""
        decoded = self.decoded
        yield from self.parts
        for one in (self.support, decoded.tensor, decoded.values, decoded.energy, decoded.inner):
            if isinstance(one, Tensor):
                yield one
        yield from decoded.rounded or ()

    @property
    def values(self) -> Tensor:
        """The first part."""
        return self.parts[0]

    @property
    def nbytes(self) -> int:
        """Bytes that this rank hands to the collective."""
        return sum(part.nbytes for part in self.parts)

    def pack(self) -> Tensor:
        """Return all parts as one message, uint8 of shape ``(nbytes,)``."""
        if len(self.parts) == 1:
            return self.parts[0].view(torch.uint8)
        return torch.cat([part.view(torch.uint8) for part in self.parts])
