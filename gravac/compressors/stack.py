"""Stacks: a selector whose values are quantized, so that few elements take few bits each."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.base import Bound, Compressor, Key, Payload, TensorSpec, Traits, kept_count
from gravac.compressors.quantize.qsgd import Int8
from gravac.compressors.quantize.quantizer import ROUNDED, Quantizer
from gravac.compressors.quantize.twobit import TwoBit
from gravac.compressors.sparse.chunktopk import ChunkTopK
from gravac.compressors.sparse.selector import Selector
from gravac.compressors.sparse.topk import TopK
from gravac.kernels import Scalar, SelectionHint
from gravac.kernels.device.tiled import Values as TiledValues


class Stack(Compressor):
    """Selects elements with one codec and quantizes their values with another; written ``topk+int8``.

    The CF is the selector's. ``E‖Q(T(x)) - x‖² <= (1 - δ(1 - ω)) ‖x‖²``, with δ of the selector and ω the relative
    error of the quantizer: the unselected and the rounded elements are different ones.

    Args:
        selector: A selector of fixed size, such as Top-k.
        quantizer: A quantizer of fixed size, such as int8.

    Raises:
        ValueError: One of them does not fit.
    """

    leaves_out = True

    def __init__(self, selector: Compressor, quantizer: Compressor) -> None:
        if not (isinstance(selector, Selector) and selector.traits.projection and selector.traits.fixed_size):
            raise ValueError(
                f"compressor={selector.name}+{quantizer.name}: {selector.name} must be a selector of fixed size, "
                "such as topk, randomk or blockrandomk"
            )
        if not (isinstance(quantizer, Quantizer) and quantizer.traits.fixed_size):
            raise ValueError(
                f"compressor={selector.name}+{quantizer.name}: {quantizer.name} must be a quantizer of fixed size, "
                "such as int8, qsgd or natural"
            )
        self.selector: Compressor = selector
        self.quantizer = quantizer
        self._value_parts = len(quantizer.specs(1, 1.0, torch.float32) or ())
        self.name = f"{selector.name}+{quantizer.name}"
        self.source = f"{selector.source}; {quantizer.source}"
        self.uses_histogram = selector.uses_histogram
        self.traits: Traits = replace(
            ROUNDED,
            unbiased=False,
            homogeneous=selector.traits.homogeneous and quantizer.traits.homogeneous,
            sync_free=selector.traits.sync_free and quantizer.traits.sync_free,
        )

    def fitted(self, shapes: Sequence[tuple[int, ...]]) -> Self:
        selector = self.selector.fitted(shapes)
        if selector is self.selector:
            return self
        other = copy(self)
        other.selector = selector
        return other

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        places = self.selector.specs(numel, cf, dtype)
        values = self.quantizer.specs(kept_count(numel, cf), 1.0, dtype)
        assert places is not None
        assert values is not None
        return *values, *places[1:]

    def message_values(self, dtype: torch.dtype) -> TiledValues | None:
        return None if self.selector.message_values(torch.float32) is None else self.quantizer.kept_values()

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return self._rounded(self.selector.compress(x, cf, key, torch.float32), key, dtype)

    def levels(
        self, x: Tensor, cfs: Sequence[float], key: Key, dtype: torch.dtype, hint: SelectionHint | None = None
    ) -> list[Payload]:
        # Rounding comes last, so that the selector's levels stay nested.
        chosen = self.selector.levels(x, cfs, key, torch.float32, hint)
        return [self._rounded(payload, key, dtype) for payload in chosen]

    def _rounded(self, chosen: Payload, key: Key, dtype: torch.dtype) -> Payload:
        values = self.quantizer.compress(chosen.parts[0], 1.0, key, dtype)
        return Payload((*values.parts, *chosen.parts[1:]), chosen.support, chosen.numel, chosen.cf, key)

    def rebuild(self, parts: tuple[Tensor, ...], numel: int, cf: float, key: Key) -> Payload:
        # Only the positions are needed: the values are still coded.
        places = self.selector.rebuild((parts[0], *parts[self._value_parts :]), numel, cf, key)
        return Payload(parts, places.support, numel, cf, key)

    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        assert payload.support is not None
        kernels.scatter_add(out, payload.support, self._values(payload), scale)

    def _energy(self, payload: Payload) -> Scalar:
        return kernels.energy(self._values(payload))

    def inner(self, payload: Payload, x: Tensor) -> Scalar:
        assert payload.support is not None
        return kernels.inner_at(x, payload.support, self._values(payload))

    def _values(self, payload: Payload) -> Tensor:
        kept = payload.decoded
        if kept.values is None:
            assert payload.key is not None
            assert payload.support is not None
            coded, k = payload.parts[: self._value_parts], payload.support.numel()
            kept.values = self.quantizer.decode(self.quantizer.rebuild(coded, k, 1.0, payload.key))
        return kept.values

    def blank(
        self, numel: int, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> Payload:
        places = self.selector.blank(numel, cf, key, dtype, device, 0.0)
        values = self.quantizer.blank(kept_count(numel, cf), 1.0, key, dtype, device, value)
        return Payload((*values.parts, *places.parts[1:]), places.support, numel, cf, key)

    def reached(self, numel: int, cf: float) -> float:
        return self.selector.reached(numel, cf)

    def bound(self, numel: int, cf: float) -> Bound:
        delta = self.selector.bound(numel, cf).delta
        rounding = self.quantizer.bound(kept_count(numel, cf), 1.0)
        if delta is None or rounding.ratio is None or rounding.ratio > 1:
            return Bound()
        return Bound(delta=delta * (1 - rounding.ratio), absolute=rounding.absolute)


class TopKInt8(Stack):
    """Top-k with 8-bit values: 5 bytes per element instead of 8.

    The same as ``topk`` and ``int8`` stacked.
    """

    name = "topk+int8"

    def __init__(self) -> None:
        super().__init__(TopK(), Int8())


class SparseLoCo(Stack):
    """The largest elements of each chunk of 4096, with 2-bit values. For error feedback.

    The same as ``chunktopk`` and ``twobit`` stacked. Positions take about 2 + log2(CF) bits each instead of the 12 of
    the published code, which sends 64 of 4096 (a CF of 64). The paper sends the change of many local steps; here it
    is the gradient of one.
    """

    name = "sparseloco"
    examples: tuple[str, ...] = ("chunk=64",)

    def __init__(self, *, chunk: int = 4096) -> None:
        super().__init__(ChunkTopK(chunk=chunk), TwoBit())
        self.name = type(self).name
