"""One rank's Top-k step with error feedback, ours and the usual ones. Steps reuse their buffers."""

import torch
from torch import Tensor

from gravac import kernels
from gravac.signals.spectrum import Spectrum


class BenchStep:
    """A gradient and its residual, normal numbers of shape ``(n,)``, and every buffer a step needs."""

    def __init__(self, n: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.g, self.e = (
            torch.randn(n, generator=generator, dtype=torch.float32),
            torch.randn(n, generator=generator, dtype=torch.float32) / 2,
        )
        self.p, self.size = torch.empty(n, dtype=torch.float32), torch.empty(n, dtype=torch.float32)
        self._sifters: dict[int, kernels.Sifter] = {}
        self._buffers: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def read_add_write(self) -> None:
        """Do the least that a step with error feedback does."""
        torch.add(self.g, self.e, out=self.p)

    def torch_topk(self, *counts: int) -> Tensor:
        """Run ``torch.topk(|x|)``, gather and residual for each of ``counts``. Returns the last one's indices."""
        torch.add(self.g, self.e, out=self.p)
        torch.abs(self.p, out=self.size)
        for k in counts:
            indices = torch.topk(self.size, k, sorted=False).indices
            self.p.index_select(0, indices)
        self.p[indices] = 0.0
        return indices

    def guided(self, k: int) -> tuple[Tensor, Tensor]:
        """Run ours with the last step's threshold. Returns indices and values; ``p`` holds the residual."""
        if k not in self._sifters:
            self._sifters[k] = kernels.Sifter(k, self.g.numel())
            self._sifters[k].update_threshold(kernels.tally(self.g, self.e, out=self.p))
        sifted = self._sifters[k].sift(self.g, self.e, self.p)
        indices, values = self._buffer("first", k)
        return kernels.take_top(self.p, k, sifted, clear=True, indices=indices, values=values)

    def one_level(self, k: int) -> tuple[Tensor, Tensor, kernels.Tally]:
        """Run ours without an estimate. Returns indices, values and histogram; ``p`` holds the residual."""
        counted = kernels.tally(self.g, self.e, out=self.p)
        indices, values = self._buffer("first", k)
        kernels.take_top(self.p, k, counted, clear=True, indices=indices, values=values)
        return indices, values, counted

    def two_levels(self, k: int, stronger: int) -> Spectrum:
        """Run ``one_level``, select ``stronger`` of its values, and compute the whole curve of gain against CF."""
        _, values, counted = self.one_level(k)
        indices, fewer = self._buffer("second", stronger)
        kernels.take_top(values, stronger, counted, indices=indices, values=fewer)
        spectrum = Spectrum.of(counted)
        spectrum.curve()
        return spectrum

    def twice(self, k: int, stronger: int) -> None:
        """Run ours for both levels, one after the other, without reusing the first."""
        counted = kernels.tally(self.g, self.e, out=self.p)
        for name, count in (("first", k), ("second", stronger)):
            indices, values = self._buffer(name, count)
            counted = kernels.tally(self.p) if name == "second" else counted
            kernels.take_top(self.p, count, counted, clear=name == "second", indices=indices, values=values)

    def _buffer(self, name: str, k: int) -> tuple[Tensor, Tensor]:
        if (name, k) not in self._buffers:
            self._buffers[name, k] = torch.empty(k, dtype=torch.int32), torch.empty(k, dtype=torch.float32)
        return self._buffers[name, k]
