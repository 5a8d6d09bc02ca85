"""Uniform sparsification: every element is sent with probability p = 1 / CF, by a mask that all ranks draw alike."""

from dataclasses import replace

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, TensorSpec, to_wire
from gravac.compressors.sparse.selector import PLAIN, Selector
from gravac.kernels import placed


class Bernoulli(Selector):
    """Sends every element with probability 1 / CF, by a mask that all ranks draw alike.

    Sends about n / CF values and no positions. The size is random but the same on all ranks, so values are all-reduced.
    Values are not scaled, as error feedback requires: ``E ||x - C(x)||² = (1 - p) ||x||²``. Masks are nested: a
    stronger CF keeps the elements whose draw is small enough. An empty mask sends one zero, because a collective cannot
    send nothing.
    """

    name = "bernoulli"
    source = (
        "Wangni et al. 2018, Gradient sparsification, uniform probabilities; Papailiopoulos, lecture notes"
    )
    traits = replace(PLAIN, linear=True, fixed_size=False)

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> None:
        return None

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        support, empty = self._draw(x.numel(), cf, key, x.device)
        values = to_wire(x[support], dtype)
        if empty:
            values.zero_()
        return Payload((values,), support, x.numel(), cf, key)

    def rebuild(self, parts: tuple[Tensor, ...], numel: int, cf: float, key: Key) -> Payload:
        support, _ = self._draw(numel, cf, key, parts[0].device)
        if support.numel() != parts[0].numel():
            raise ValueError(
                f"{self.name} payload has {parts[0].numel()} values, the mask of its key {support.numel()}"
            )
        return Payload(parts, support, numel, cf, key)

    def narrow(self, payload: Payload, cf: float) -> Payload:
        assert payload.key is not None
        assert payload.support is not None
        support, empty = self._draw(payload.numel, cf, payload.key, payload.support.device)
        if empty:
            return Payload((payload.values.new_zeros(1),), support, payload.numel, cf, payload.key)
        places = torch.searchsorted(payload.support, support)
        return Payload((payload.values[places],), support, payload.numel, cf, payload.key)

    def specs_of(self, nbytes: int, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        count, left = divmod(nbytes, dtype.itemsize)
        if left or not 0 < count <= numel:
            raise ValueError(
                f"{self.name} payload has {nbytes} bytes, no number of {dtype} values up to {numel}"
            )
        return (TensorSpec(dtype, count),)

    def blank(
        self, numel: int, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> Payload:
        support, _ = self._draw(numel, cf, key, device)
        values = torch.full((support.numel(),), value, dtype=dtype, device=device)
        return Payload((values,), support, numel, cf, key)

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        return max(1, round(numel / cf)) * dtype.itemsize

    def reached(self, numel: int, cf: float) -> float:
        return cf

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=1.0 / cf)

    def _draw(self, numel: int, cf: float, key: Key, device: torch.device) -> tuple[Tensor, bool]:
        """Return the positions of the mask, and whether it is empty, so that the first position stands in."""
        generator = torch.Generator()  # CPU on purpose: the same draw on ranks with different devices
        generator.manual_seed(key.shared_seed())
        mask = torch.rand(numel, generator=generator, dtype=torch.float64, device="cpu") < 1.0 / cf
        support = mask.nonzero().squeeze(1)
        empty = not support.numel()
        return placed(torch.zeros(1, dtype=torch.int64, device="cpu") if empty else support, device), empty


class UnbiasedBernoulli(Bernoulli):
    """Uniform sparsification divided by p: unbiased, for training without error feedback.

    ``E ||x - C(x)||² = (1/p - 1) ||x||²``.
    """

    name = "bernoulli-unbiased"
    traits = replace(Bernoulli.traits, unbiased=True, projection=False)

    def weight(self, payload: Payload) -> float:
        return payload.cf

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(omega=cf - 1.0)
