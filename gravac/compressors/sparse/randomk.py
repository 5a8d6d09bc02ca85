"""Random-k with a seed all ranks share: values only on the wire, so they can be all-reduced."""

from abc import abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Part, Payload, kept, travelling
from gravac.compressors.sparse.selector import PLAIN, Selector
from gravac.kernels import distinct


class SharedDraw(Selector):
    """k = floor(n / CF) elements at positions that follow from the key, the same on every rank: 4k bytes.

    Nested: a stronger CF keeps a prefix of the same draw.
    """

    traits = replace(PLAIN, linear=True)

    @abstractmethod
    def draw(self, numel: int, cf: float, key: Key, device: torch.device) -> Tensor:
        """Positions, int32 or int64, shape ``(k,)``, no two equal."""

    def layout(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[Part, ...] | None:
        return (Part(dtype, kept(numel, cf)),)

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        support = self.draw(x.numel(), cf, key, x.device)
        values = x.index_select(0, support)
        return Payload(
            (values if values.dtype == dtype else travelling(values, dtype),), support, x.numel(), cf, key
        )

    def rebuild(self, parts: tuple[Tensor, ...], numel: int, cf: float, key: Key) -> Payload:
        return Payload(parts, self.draw(numel, cf, key, parts[0].device), numel, cf, key)

    def narrow(self, payload: Payload, cf: float) -> Payload:
        assert payload.support is not None
        k = kept(payload.numel, cf)
        return Payload((payload.values[:k],), payload.support[:k], payload.numel, cf, payload.key)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=kept(numel, cf) / numel)


class RandomK(SharedDraw):
    """Drawn without replacement; unscaled, as error feedback needs it: ``E ||x - C(x)||² = (1 - k/n) ||x||²``."""

    name = "randomk"
    source = "Stich et al. 2018, Sparsified SGD with memory, definition 2.2"

    def draw(self, numel: int, cf: float, key: Key, device: torch.device) -> Tensor:
        return distinct(numel, kept(numel, cf), key.shared_seed(), device)


class UnbiasedRandomK(RandomK):
    """Random-k times n/k: unbiased, ``E ||x - C(x)||² = (n/k - 1) ||x||²``. No contraction: use it without feedback.

    The wire carries the values as they are; decoding multiplies.
    """

    name = "randomk-unbiased"
    source = "Wangni et al. 2018, Gradient sparsification, uniform probabilities"
    traits = replace(RandomK.traits, unbiased=True, projection=False)

    def weight(self, payload: Payload) -> float:
        return payload.numel / payload.values.numel()

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(omega=numel / kept(numel, cf) - 1.0)
