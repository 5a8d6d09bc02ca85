"""Spectrum: the gain at every CF from one pass over a gradient, for codecs that send the largest elements.

gain(k) = (sum of the k largest x²) / (sum of all x²). A histogram of magnitudes with count and energy per bin, summed
from the top bin down, is that curve at every bin's edge, and the edge is the threshold. Between edges the curve is
concave, so the chord is a lower bound. With 16 bins an octave it is at most 2·10⁻³ too low for CFs from 1.5 to 1000,
also under error feedback, which cuts off tails: the hardest case.

There are two ways to add up. Adding *spectra* gives the gain of one threshold for all tensors or ranks. Where each
tensor on each rank sends its own n/CF, as in DDP's buckets, add *curves*. One threshold always sends at least as much
energy, so the gain of added spectra would be too high.

The curve holds for the current residual. Training at a stronger CF makes the residual grow and the curve sink (from a
dense run, a gain of .41 is predicted at 100x and .18 is measured), so measure again after every few octaves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gravac.compressors.base import kept_count
from gravac.kernels import Tally

LADDER = tuple(10.0 ** (step / 20) for step in range(61))
"""CFs 1 to 1000, twenty a decade."""
_SAFE = 1.0 - 2.0**-40
"""Covers the rounding of sums over 4096 bins, so that no gain is too high because of it."""


@dataclass(frozen=True)
class Spectrum:
    """Counts and energies by bin of magnitude (see ``gravac.kernels.Tally``), of one tensor or of several.

    Args:
        counts: elements in each bin, float64 of shape ``(4096,)``: sums over ranks stay exact.
        energies: sums of their squares, float64 of shape ``(4096,)``.
    """

    counts: Tensor
    energies: Tensor

    @classmethod
    def of(cls, counted: Tally) -> "Spectrum":
        """Return the spectrum of a counted tensor. Raises ValueError if an element is not finite: there is no gain
        then."""
        if counted.nonfinite:
            raise ValueError(f"{counted.nonfinite} elements are infinite or NaN; skip this step's spectrum")
        return cls(counted.counts.double(), counted.energies)

    def __add__(self, other: "Spectrum") -> "Spectrum":
        return Spectrum(self.counts + other.counts, self.energies + other.energies)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return int(self.counts.sum())

    @property
    def energy(self) -> float:
        """Sum of all squares."""
        return float(self._points[2][-1])

    @cached_property
    def _points(self) -> tuple[Tensor, Tensor, Tensor]:
        """Bins in use from the top down, and the elements and energy down to each, beginning with 0."""
        used = self.counts.nonzero().flatten().flip(0)
        none = self.counts.new_zeros(1)
        elements = torch.cat((none, self.counts[used].cumsum(0)))
        return used, elements, torch.cat((none, self.energies[used].cumsum(0)))

    def kept_energy(self, elements: Tensor) -> Tensor:
        """Return a lower bound for the energy of the largest elements.

        Args:
            elements: numbers of largest elements, of shape ``(m,)``, each 0 to ``numel``.

        Returns:
            float64 of shape ``(m,)``.
        """
        _, _, energies = self._points
        if len(energies) == 1:
            return torch.zeros_like(elements, dtype=torch.float64)
        after, share = self._place(elements)
        return torch.lerp(energies[after - 1], energies[after], share) * _SAFE

    def gain(self, cf: float) -> float | None:
        """Return a lower bound for the share of ‖x‖² in the n/CF largest elements; None for a zero tensor."""
        return self.curve((cf,)).gains()[0]

    def curve(
        self, cfs: Sequence[float] = LADDER, wire_bytes: Callable[[int, float], int] | None = None
    ) -> "Curve":
        """Return elements, energy and wire bytes at each CF.

        Args:
            cfs: compression factors.
            wire_bytes: payload size of a codec in bytes, from number of elements and CF; None: zeros.
        """
        n, cfs = self.numel, tuple(cfs)
        elements = _elements(n, cfs)
        sizes = torch.zeros_like(elements)
        if wire_bytes is not None and n:
            sizes = torch.tensor([wire_bytes(n, cf) for cf in cfs], dtype=torch.int64, device="cpu")
        return Curve(cfs, n, self.energy, elements, self.kept_energy(elements), sizes)

    def _place(self, elements: Tensor) -> tuple[Tensor, Tensor]:
        """Return which bin in use the last of ``elements`` is in (1: the highest), and how far down in it, 0 to 1."""
        _, places, _ = self._points
        elements = elements.to(places).clamp(max=float(places[-1]))
        after = torch.searchsorted(places, elements).clamp(min=1)
        return after, (elements - places[after - 1]) / (places[after] - places[after - 1])


@dataclass(frozen=True)
class Curve:
    """What each CF sends and costs. Curves of buckets and ranks can be added: each sends its own n/CF.

    Args:
        cfs: compression factors.
        numel: number of elements.
        energy: sum of all squares.
        elements: elements sent at each CF, int64 of shape ``(len(cfs),)``.
        kept_energy: lower bound for their energy, float64 of shape ``(len(cfs),)``.
        wire_bytes: their payload in bytes, int64 of shape ``(len(cfs),)``.
    """

    cfs: tuple[float, ...]
    numel: int
    energy: float
    elements: Tensor
    kept_energy: Tensor
    wire_bytes: Tensor

    def __add__(self, other: "Curve") -> "Curve":
        if self.cfs != other.cfs:
            raise ValueError("curves of different CFs cannot be added; compute both at the same CFs")
        return Curve(
            self.cfs,
            self.numel + other.numel,
            self.energy + other.energy,
            self.elements + other.elements,
            self.kept_energy + other.kept_energy,
            self.wire_bytes + other.wire_bytes,
        )

    def gains(self) -> list[float | None]:
        """Return a lower bound for the gain at each CF; None where all elements are zero."""
        if not self.energy > 0.0:
            return [None] * len(self.cfs)
        pairs = zip(self.elements.tolist(), self.kept_energy.tolist(), strict=True)
        return [1.0 if elements == self.numel else energy / self.energy for elements, energy in pairs]

    def sums(self) -> Tensor:
        """Return what ranks add up, float64 of shape ``(len(cfs) + 1,)``: 496 bytes for ``LADDER``."""
        return torch.cat((self.kept_energy, self.kept_energy.new_tensor([self.energy])))

    def summed(self, sums: Tensor) -> "Curve":
        """Return this curve with the energies of all ranks; elements and bytes stay those of one rank."""
        return replace(self, kept_energy=sums[:-1], energy=float(sums[-1]))


@lru_cache(maxsize=256)  # the same few buckets in every step
def _elements(numel: int, cfs: tuple[float, ...]) -> Tensor:
    """Return the elements sent of ``numel`` at each CF, int64 of shape ``(len(cfs),)``. Cached: do not write to it."""
    return torch.tensor(
        [kept_count(numel, cf) if numel else 0 for cf in cfs], dtype=torch.int64, device="cpu"
    )
