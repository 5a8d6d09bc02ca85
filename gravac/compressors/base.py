"""The base class of codecs: a codec turns a flat tensor into a payload, and back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.payload import Bound, Key, Payload, TensorSpec, Traits
from gravac.kernels import Scalar, SelectionHint
from gravac.kernels.device.rounded import Rounding
from gravac.kernels.device.tiled import Values as TiledValues
from gravac.offers import UNKNOWN, Offer
from gravac.protocol import LARGEST_CF
from gravac.transaction import Transaction

MANY_ELEMENTS = 1 << 20
"""Elements with which ``Compressor.sizes`` compares, so many that scales and headers hardly count."""
MOST_SIZES = 8
"""Most sizes of a codec that are listed. A codec with more of them takes any CF."""


class Size(NamedTuple):
    """A CF that a codec reaches, and the largest CF asked for that gives it."""

    cf: float
    up_to: float


class Compressor(Transaction, ABC):
    """A codec. Most are stateless: everything a call needs is in its arguments, so any rank can repeat it.

    The CF is elements in / elements kept for selectors, and dense bytes / payload bytes for the others; at least 1, and
    larger means stronger. Codecs with a ladder of sizes use the mildest step that reaches the CF asked for, else their
    strongest one; ``reached`` returns which. Tensors are 1-D, of any floating dtype.

    Subclasses implement ``specs``, ``compress`` and ``decompress``. A codec whose size varies returns no specs and
    implements ``wire_bytes``, ``specs_of`` and ``blank`` as well.
    """

    name: str
    """What users write."""
    source: str
    """Paper and section that the formulas come from."""
    traits: Traits
    uses_histogram: bool = False
    """Whether it selects by the histogram of magnitudes, so that ``levels`` is faster if it is given one."""
    leaves_out: bool = False
    """Whether payloads have a ``support``: elements outside of it wait in the error memory as they are."""
    offer: Offer = UNKNOWN
    """What it states to policy ``auto``. It is not inherited, and written with plain values."""
    examples: tuple[str, ...] = ()
    """Settings, as ``build`` parses them, that the property suite runs besides the defaults."""

    @abstractmethod
    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...] | None:
        """Return the tensors of a payload for ``numel`` elements.

        Args:
            numel: Elements of the tensor.
            cf: The CF asked for.
            dtype: The dtype that values have on the wire.

        Returns:
            Dtype and length of each part; None if the size depends on more than the arguments.
        """

    def message_values(self, dtype: torch.dtype) -> TiledValues | None:
        """Return how a whole message made on a device sends values (``device.tiled``); None: it makes none.

        Args:
            dtype: The dtype that values have on the wire.
        """
        return None

    def message_rounding(self, cf: float, dtype: torch.dtype) -> Rounding | None:
        """Return how a device rounds every element for its messages (``device.rounded``); None: it makes none.

        Args:
            cf: The CF asked for.
            dtype: The gradient's.
        """
        return None

    def layout(self, numel: int, cf: float, dtype: torch.dtype) -> "Layout":
        """Return what is known of all payloads of such a tensor, to be made once; see ``specs`` for the arguments."""
        return Layout(self, numel, cf, dtype)

    @abstractmethod
    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        """Compress a tensor.

        A gradient may contain NaN and infinity. The codec must neither raise nor hide them: the payload has the
        declared size, any rank can unpack it, and either the decoded tensor or what ``remove`` leaves of ``x`` is not
        finite. So all ranks see that the step is non-finite, and roll it back.

        Args:
            x: Shape ``(n,)``, any floating dtype and stride. Not changed.
            cf: The CF asked for, at least 1.
            key: Seed material of this step, bucket and rank.
            dtype: The dtype that values have on the wire.

        Returns:
            The payload. Its parts must be those that ``specs`` declares.
        """

    def levels(
        self, x: Tensor, cfs: Sequence[float], key: Key, dtype: torch.dtype, hint: SelectionHint | None = None
    ) -> list[Payload]:
        """Compress a tensor to several CFs (multi-level compression, GraVAC §III-C).

        A nested codec makes each payload from the one before, other codecs from ``x``.

        Args:
            x: Shape ``(n,)``.
            cfs: The CFs, the weakest first.
            key: Seed material of this step, bucket and rank.
            dtype: The dtype that values have on the wire.
            hint: A histogram of the magnitudes of ``x``, or candidates for its largest elements, if one is known.

        Returns:
            A payload per CF, as ``compress`` would make it.
        """
        payloads: list[Payload] = []
        for cf in cfs:
            nested = bool(payloads) and self.traits.nested
            payloads.append(self.narrow(payloads[-1], cf) if nested else self.compress(x, cf, key, dtype))
        return payloads

    @abstractmethod
    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        """Add a decoded payload to a tensor: ``out += scale * decoded``.

        Args:
            payload: A payload of any rank.
            out: Shape ``(n,)``, any floating dtype.
            scale: Factor of the decoded values.
        """

    def rebuild(self, parts: tuple[Tensor, ...], numel: int, cf: float, key: Key) -> Payload:
        """Return the payload that these parts belong to, on any rank.

        Args:
            parts: The tensors that came over the wire, as ``specs`` declares them.
            numel: Elements of the original tensor.
            cf: The CF it was compressed with.
            key: The key it was compressed with.
        """
        return Payload(parts, None, numel, cf, key)

    def narrow(self, payload: Payload, cf: float) -> Payload:
        """Compress a payload further, to a stronger CF of the original tensor.

        Raises:
            ValueError: The codec is not nested.
        """
        raise ValueError(f"{self.name} is not nested: compress the original tensor at cf={cf:g} instead")

    def decode(self, payload: Payload) -> Tensor:
        """Return the decoded tensor, float32 of shape ``(n,)``."""
        out = torch.zeros(payload.numel, device=payload.values.device, dtype=torch.float32)
        self.decompress(payload, out)
        return out

    def remove(self, payload: Payload, x: Tensor) -> None:
        """Subtract a decoded payload in place: ``x -= decoded``. What remains is the residual.

        It is exactly zero for an element that was sent unchanged.
        """
        self.decompress(payload, x, -1.0)

    def decoded(self, payload: Payload) -> Tensor:
        """Return the decoded tensor, which the payload keeps until ``forget``. Do not change it."""
        kept = payload.decoded
        if kept.tensor is None:
            kept.tensor = self.decode(payload)
        return kept.tensor

    def energy(self, payload: Payload) -> Scalar:
        """Return ‖decoded‖², computed once: a float on the host, a tensor of shape ``()`` on a device."""
        kept = payload.decoded
        if kept.energy is None:
            kept.energy = self._energy(payload)
        return kept.energy

    def _energy(self, payload: Payload) -> Scalar:
        return kernels.energy(self.decoded(payload))

    def inner(self, payload: Payload, x: Tensor) -> Scalar:
        """Return ⟨decoded, x⟩: a float on the host, a tensor of shape ``()`` on a device."""
        return kernels.inner(self.decoded(payload), x)

    def kept_inner(self, payload: Payload, x: Tensor) -> Scalar:
        """Return ⟨decoded, x⟩ for the tensor that the payload was made of, computed once until ``forget``."""
        kept = payload.decoded
        if kept.inner is None:
            kept.inner = self.inner(payload, x)
        return kept.inner

    def kept_energy(self, payload: Payload, x: Tensor) -> Scalar:
        """Return how much of ``‖x‖²`` a payload keeps. The gate compares it.

        It is the energy of x along the decoded direction, ⟨C(x), x⟩² / ‖C(x)‖², which divided by ``‖x‖²`` is the
        alignment. For projections it equals ``‖C(x)‖²``, so that is the gain. Unbiased codecs have ``E‖C(x)‖² > ‖x‖²``,
        and would always pass a gate that compares gains.

        Args:
            payload: A payload of ``x``.
            x: Shape ``(n,)``.

        Returns:
            Between 0 and ``‖x‖²``: a float on the host, a tensor of shape ``()`` on a device.
        """
        energy = self.energy(payload)
        return energy if self.traits.projection else kernels.alignment(energy, self.kept_inner(payload, x))

    def bound(self, numel: int, cf: float) -> Bound:
        """Return the proven bound of the error; by default nothing is proven."""
        return Bound()

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        """Return the bytes that one rank hands to the collective; the expected ones if sizes vary."""
        specs = self.specs(numel, cf, dtype)
        if specs is None:
            raise NotImplementedError(f"{type(self).__name__} has no fixed size and must define wire_bytes")
        return sum(spec.nbytes for spec in specs)

    def plain_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        """Return ``wire_bytes`` without entropy coding, which says how much the codec rounds."""
        return self.wire_bytes(numel, cf, dtype)

    def sizes(self) -> tuple[Size, ...]:
        """Return the CFs that the codec reaches, ascending, if they are few; empty if it takes any CF.

        Huffman coding does not count: it changes the bytes of a codec and not its values.
        """
        return few_sizes(lambda cf: 4 * MANY_ELEMENTS / self.plain_bytes(MANY_ELEMENTS, cf, torch.float32))

    def reached(self, numel: int, cf: float) -> float:
        """Return the CF that asking for ``cf`` gives with float32 values; the expected one if sizes vary."""
        return 4 * numel / self.wire_bytes(numel, cf, torch.float32)

    def specs_of(self, nbytes: int, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        """Return the specs of a payload that has ``nbytes``, if they vary; see ``specs`` for the other arguments.

        Raises:
            ValueError: No payload of this codec has that size.
        """
        raise NotImplementedError(f"{type(self).__name__} has no fixed size and must define specs_of")

    def blank(
        self, numel: int, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> Payload:
        """Make a payload without a gradient, to send if compressing one failed.

        Args:
            numel: Elements of the tensor.
            cf: The CF that other ranks expect.
            key: Seed material of this step, bucket and rank.
            dtype: The dtype that values have on the wire.
            device: Device on which the payload is made.
            value: 0 for a payload that decodes to zeros, NaN for one that decodes to something non-finite.

        Returns:
            A payload of a size that all ranks expect.
        """
        specs = self.specs(numel, cf, dtype)
        if specs is None:
            raise NotImplementedError(f"{type(self).__name__} has no fixed size and must define blank")
        parts = (
            torch.full(
                (spec.numel,), value if spec.dtype.is_floating_point else 0, dtype=spec.dtype, device=device
            )
            for spec in specs
        )
        return self.rebuild(tuple(parts), numel, cf, key)

    def block_of(self, cf: float) -> int | None:
        """Return the elements of a block, at whose multiples ``divide`` may cut; None if payloads cannot be divided.

        Codecs that code each block by itself have one, unless their error is about half of ``‖x‖²`` or more: a
        compressed all-reduce rounds twice, and residuals would grow without end. It may depend on the CF, but not on
        the tensor.
        """
        return None

    def divide(self, payload: Payload, size: int, dtype: torch.dtype) -> list[Payload]:
        """Divide a payload into payloads of consecutive elements, which decode to what the whole one decodes to.

        This implementation is for codecs whose parts follow the order of the elements.

        Args:
            payload: A payload of this codec.
            size: Elements of each, a multiple of ``block_of``; the last may have fewer.
            dtype: The dtype that values have on the wire.

        Raises:
            ValueError: Payloads of this codec cannot be divided.
        """
        if self.block_of(payload.cf) is None:
            raise ValueError(
                f"payloads of {self.name} cannot be divided: its elements are not coded by blocks"
            )
        pieces, first = [], [0] * len(payload.parts)
        for begin in range(0, payload.numel, size):
            count = min(size, payload.numel - begin)
            specs = self.specs(count, payload.cf, dtype)
            assert specs is not None
            last = [at + spec.numel for at, spec in zip(first, specs, strict=True)]
            cut = zip(payload.parts, first, last, strict=True)
            parts = tuple(part[low:high] for part, low, high in cut)
            pieces.append(Payload(parts, None, count, payload.cf, payload.key))
            first = last
        return pieces

    def fitted(self, shapes: Sequence[tuple[int, ...]]) -> "Compressor":
        """Return this codec for a flat tensor that consists of tensors of these shapes. Flat codecs return self."""
        return self

    def for_model(self, elements: int) -> "Compressor":
        """Return this codec for the buckets of a model of ``elements`` elements. Codecs that look no further than a
        bucket return self."""
        return self

    def observe(self, x: Tensor, cfs: Sequence[float]) -> None:
        """Take note of a bucket that is about to be compressed to these CFs, once per bucket and step.

        Codecs that learn nothing from the whole model do nothing.
        """
        return


class Layout:
    """What is known of all payloads of one codec for one size of tensor, CF and dtype. Exchanges keep it.

    Args:
        codec: Makes the payloads.
        numel: Elements of the tensor.
        cf: The CF asked for.
        dtype: The dtype that values have on the wire.
    """

    __slots__ = ("cf", "codec", "dtype", "nbytes", "numel", "sizes", "specs")

    def __init__(self, codec: Compressor, numel: int, cf: float, dtype: torch.dtype) -> None:
        self.codec, self.numel, self.cf, self.dtype = codec, numel, cf, dtype
        self.specs = codec.specs(numel, cf, dtype)
        """Dtype and length of each part; None if they vary."""
        self.sizes = [spec.nbytes for spec in self.specs or ()]
        """Bytes of each part."""
        self.nbytes = codec.wire_bytes(numel, cf, dtype) if self.specs is None else sum(self.sizes)
        """Bytes of all parts; the expected ones if they vary."""

    def check(self, payload: Payload) -> None:
        """Check that a payload about to be sent has the size that other ranks expect. Varying sizes are not checked.

        Raises:
            ValueError: The sizes differ. The message names the codec, the declared and the actual bytes.
        """
        if self.specs is not None and [part.nbytes for part in payload.parts] != self.sizes:
            raise ValueError(
                f"compressor={self.codec.name!r} made a payload of {payload.nbytes} bytes, but declares {self.nbytes} "
                f"bytes for {self.numel} elements at CF {self.cf:g} as {self.dtype}: compress() and specs() must agree"
            )

    def unpack(self, buffer: Tensor, key: Key) -> Payload:
        """Unpack a message of any rank; the inverse of ``Payload.pack``.

        Args:
            buffer: uint8 of shape ``(nbytes,)``.
            key: The key of the rank that sent it.

        Raises:
            ValueError: The buffer has a wrong size.
        """
        specs, sizes = self.specs, self.sizes
        if specs is None:
            specs = self.codec.specs_of(buffer.numel(), self.numel, self.cf, self.dtype)
            sizes = [spec.nbytes for spec in specs]
        elif buffer.numel() != self.nbytes:
            raise ValueError(
                f"{self.codec.name} payload has {buffer.numel()} bytes, {self.nbytes} expected for n={self.numel}, "
                f"cf={self.cf:g}"
            )
        # A view needs a slice that starts at a multiple of the dtype's size, so others are copied.
        parts = tuple(
            (piece if piece.storage_offset() % spec.dtype.itemsize == 0 else piece.clone()).view(spec.dtype)
            for piece, spec in zip(buffer.split(sizes), specs, strict=True)
        )
        return self.codec.rebuild(parts, self.numel, self.cf, key)


def few_sizes(reached: Callable[[float], float]) -> tuple[Size, ...]:
    """Return the CFs that are reached, rounded to a tenth; empty if they are many or cannot be asked for.

    Args:
        reached: Return the CF that asking for one gives. It never falls as that one grows.
    """

    def size(asked: float) -> float:
        return max(1.0, round(reached(asked), 1))

    # Ask for 61 CFs from 1 to 1000, then search between neighbors with different sizes for where one ends.
    step = 10**0.05
    last: dict[float, float] = {}  # the largest CF asked for that is known to give a size
    for number in range(61):
        last[size(step**number)] = step**number
        if len(last) > MOST_SIZES:
            return ()
    sizes = []
    for cf, low in last.items():
        high = low * step
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (middle, high) if size(middle) == cf else (low, middle)
        even = round(low, 4)  # as one asks for it
        sizes.append(Size(cf, even if size(even) == cf else low))
    sizes[-1] = Size(sizes[-1].cf, LARGEST_CF)
    named = all(one.cf <= one.up_to for one in sizes)  # whether asking for a size gives it
    return tuple(sizes) if named else ()


def kept_count(numel: int, cf: float) -> int:
    """Return the elements kept of ``numel`` at ``cf``: floor(n / CF), at least 1 and at most all.

    GRACE and PowerSGD round down, too.
    """
    return min(numel, max(1, int(numel / cf)))


def to_wire(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of values in their dtype on the wire.

    Finite values that are too large become the largest one of ``dtype``, so that the rest stays in the residual
    instead of becoming infinite.
    """
    if dtype == x.dtype:
        return x.clone()
    top = torch.finfo(dtype).max
    if torch.finfo(x.dtype).max > top:
        x = torch.where(x.isinf(), x, x.clamp(-top, top))
    return x.to(dtype, copy=True)


__all__ = ["Bound", "Compressor", "Key", "Layout", "Payload", "TensorSpec", "Traits", "kept_count", "to_wire"]
