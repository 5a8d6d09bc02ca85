"""What a compressor is: it turns a flat tensor into a payload, and back."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.payload import Bound, Key, Payload, TensorSpec, Traits
from gravac.kernels import SelectionHint


class Compressor(ABC):
    """A codec. Unless it says otherwise it is stateless: all a call needs is in its arguments, so any rank can redo it.

    CF is elements in / elements kept for selectors and dense bytes / payload bytes for the others (>= 1, larger =
    stronger). Codecs with a ladder of sizes take the mildest step that is at least the CF asked for, or their
    strongest; ``reached`` says which that is. Tensors are 1-D, of any floating dtype.
    """

    name: str
    source: str
    """Paper and section the formulas come from."""
    traits: Traits
    uses_histogram: bool = False
    """Chooses by the histogram of magnitudes, so ``levels`` is quicker when given one."""
    examples: tuple[str, ...] = ()
    """Settings, as ``build`` reads them, that the property suite runs besides the defaults."""

    @abstractmethod
    def layout(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...] | None:
        """The parts a payload for ``numel`` elements has; None when its size depends on more than that."""

    @abstractmethod
    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        """Compress ``x`` of shape ``(n,)``; values travel as ``dtype``. ``x`` is not changed."""

    def levels(
        self, x: Tensor, cfs: Sequence[float], key: Key, dtype: torch.dtype, hint: SelectionHint | None = None
    ) -> list[Payload]:
        """Payloads of ``x`` at each of ``cfs``, weakest first: each made of the one before where the codec is nested
        (multi-level compression, GraVAC §III-C), else of ``x``. ``counted``: what is known of ``x``'s sizes."""
        payloads: list[Payload] = []
        for cf in cfs:
            nested = bool(payloads) and self.traits.nested
            payloads.append(self.narrow(payloads[-1], cf) if nested else self.compress(x, cf, key, dtype))
        return payloads

    @abstractmethod
    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        """``out += scale * decoded``, ``out`` of shape ``(n,)``."""

    def rebuild(self, parts: tuple[Tensor, ...], numel: int, cf: float, key: Key) -> Payload:
        """The payload again from parts that came over the wire, on any rank."""
        return Payload(parts, None, numel, cf, key)

    def narrow(self, payload: Payload, cf: float) -> Payload:
        """Compress a payload further, to the stronger ``cf`` of the original. Raises ValueError if not nested."""
        raise ValueError(f"{self.name} is not nested: compress the original tensor at cf={cf:g} instead")

    def decode(self, payload: Payload) -> Tensor:
        """The decoded tensor, float32, shape ``(n,)``."""
        out = torch.zeros(payload.numel, device=payload.values.device)
        self.decompress(payload, out)
        return out

    def remove(self, payload: Payload, x: Tensor) -> None:
        """``x -= decoded``, in place: what is left is owed. Exactly zero where an element was sent whole."""
        self.decompress(payload, x, -1.0)

    def energy(self, payload: Payload) -> float:
        """‖decoded‖²."""
        return kernels.energy(self.decode(payload))

    def inner(self, payload: Payload, x: Tensor) -> float:
        """⟨decoded, x⟩."""
        return kernels.inner(self.decode(payload), x)

    def kept_energy(self, payload: Payload, x: Tensor) -> float:
        """How much of ``‖x‖²`` the payload tells, in [0, ‖x‖²]: what the gate compares.

        Energy of x along the decoded direction, ⟨C(x), x⟩² / ‖C(x)‖². Divided by ``‖x‖²`` that is the alignment; for
        projections it equals ``‖C(x)‖²``, hence the gain. Unbiased codecs have ``E‖C(x)‖² > ‖x‖²``: by gain they would
        always pass.
        """
        energy = self.energy(payload)
        if self.traits.projection or not energy > 0.0:
            return energy
        return self.inner(payload, x) ** 2 / energy

    def bound(self, numel: int, cf: float) -> Bound:
        """What is proven of the error; by default nothing."""
        return Bound()

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        """Bytes one rank hands to the collective: exact for fixed sizes, else expected."""
        layout = self.layout(numel, cf, dtype)
        if layout is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no fixed layout and must say its wire_bytes"
            )
        return sum(part.nbytes for part in layout)

    def reached(self, numel: int, cf: float) -> float:
        """The CF that asking for ``cf`` gives, float32 values (expected, where the size varies)."""
        return 4 * numel / self.wire_bytes(numel, cf, torch.float32)

    def achieved(self, payload: Payload) -> float:
        """The CF of this very payload; infinite when nothing at all was sent."""
        return 4 * payload.numel / payload.nbytes if payload.nbytes else float("inf")

    def layout_of(self, nbytes: int, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        """The parts of a payload that takes ``nbytes``. Raises ValueError when no payload has that size."""
        layout = self.layout(numel, cf, dtype)
        if layout is None:
            raise NotImplementedError(f"{type(self).__name__} has no fixed layout and must say its layout_of")
        expected = sum(part.nbytes for part in layout)
        if nbytes != expected:
            raise ValueError(
                f"{self.name} payload has {nbytes} bytes, {expected} expected for n={numel}, cf={cf:g}"
            )
        return layout

    def unpack(self, buffer: Tensor, numel: int, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        """Inverse of ``Payload.pack`` for a uint8 buffer from any rank. Raises ValueError on a wrong size."""
        layout = self.layout_of(buffer.numel(), numel, cf, dtype)
        pieces = torch.split(buffer, [part.nbytes for part in layout])
        # A slice may start off the dtype's alignment; then it is copied.
        parts = tuple(
            (piece if piece.storage_offset() % part.dtype.itemsize == 0 else piece.clone()).view(part.dtype)
            for piece, part in zip(pieces, layout, strict=True)
        )
        return self.rebuild(parts, numel, cf, key)

    def blank(
        self, numel: int, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> Payload:
        """A payload of a size all ranks expect that decodes to zeros (``value`` 0) or to something non-finite (NaN).

        It does not look at a gradient, so it can be sent when compressing one failed.
        """
        layout = self.layout(numel, cf, dtype)
        if layout is None:
            raise NotImplementedError(f"{type(self).__name__} has no fixed layout and must say its blank")
        parts = (
            torch.full(
                (part.numel,), value if part.dtype.is_floating_point else 0, dtype=part.dtype, device=device
            )
            for part in layout
        )
        return self.rebuild(tuple(parts), numel, cf, key)

    def fitted(self, shapes: Sequence[tuple[int, ...]]) -> "Compressor":
        """This codec for a flat tensor made of tensors of these shapes, in order. Flat codecs return themselves."""
        return self

    def for_model(self, elements: int) -> "Compressor":
        """This codec for the buckets of a model of ``elements`` elements. Most do not look beyond a bucket and return
        themselves."""
        return self

    def observe(self, x: Tensor, cfs: Sequence[float]) -> None:
        """Take note of a bucket that is about to be compressed to these CFs, once a bucket and step. Only codecs that
        learn from the whole model do anything."""
        return

    def figures(self) -> list[float]:
        """Of the buckets observed in this step: numbers whose means over ranks ``learn`` needs. How many there are
        follows from the codec and its settings alone."""
        return []

    def learn(self, means: Sequence[float]) -> None:
        """Take in the mean over ranks of ``figures``, before ``commit``: so all ranks learn the same."""
        return

    def commit(self) -> None:
        """The step counts. Codecs that learn keep what they saw in it."""
        return

    def rollback(self) -> None:
        """The step does not count. Codecs that learn forget what they saw in it."""
        return

    def state_dict(self) -> dict[str, Tensor]:
        """What the codec has learned, plain tensors (copies); empty for stateless ones."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replace what was learned. Raises ValueError for a state that is not this codec's."""
        if state:
            raise ValueError(f"compressor={self.name!r} has no state, but {sorted(state)[0]!r} was given")


def kept_count(numel: int, cf: float) -> int:
    """Elements kept of ``numel`` at ``cf``: at least 1, at most all (floor, as GRACE and PowerSGD do)."""
    return min(numel, max(1, int(numel / cf)))


def to_wire(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` as ``dtype`` for the wire, always a copy. Finite values too large for it are sent as its largest one, so
    that the rest stays owed in place of turning into infinity."""
    if dtype == x.dtype:
        return x.clone()
    top = torch.finfo(dtype).max
    if torch.finfo(x.dtype).max > top:
        x = torch.where(x.isinf(), x, x.clamp(-top, top))
    return x.to(dtype, copy=True)


__all__ = ["Bound", "Compressor", "Key", "Payload", "TensorSpec", "Traits", "kept_count", "to_wire"]
