"""The gain at every CF from one pass over a gradient: for selectors of the largest, exploring costs nothing more.

gain(k) = (sum of the k largest x²) / (sum of all x²). A histogram of magnitudes with count and energy per bin, summed
from the top bin down, *is* that curve at every bin's edge, and the edge is the threshold. In between the curve is
concave, so the chord never lies above it: what is said here is kept, at least. With 16 bins an octave it is at
most 2·10⁻³ too low for CFs from 1.5 to 1000, also under error feedback, which cuts tails off: the hardest case.

Two sums, not to be confused. Adding *spectra* asks what one threshold for all tensors or ranks would keep. Where each
tensor on each rank keeps its own n/CF, as in DDP's buckets, add *curves*: one threshold always keeps at least as much,
so the gain of added spectra would be too high.

The curve holds for the residual of now. Training at a stronger CF makes the residual grow and the curve sink
(reference: from a dense run gain .41 is foreseen at 100x, .18 is reached), so look again after every few octaves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gravac.compressors.base import kept_count
from gravac.kernels import Tally
from gravac.kernels.histogram import NONFINITE
from gravac.kernels.reference import BINS

LADDER = tuple(10.0 ** (step / 20) for step in range(61))
"""CFs 1 to 1000, twenty a decade."""
_AN_OCTAVE = 16
_SAFE = 1.0 - 2.0**-40
"""More than all roundings of sums over 4096 bins, so that no gain is said too high by them either."""


@dataclass(frozen=True)
class Spectrum:
    """Counts and energies by bin of magnitude (``gravac.kernels.Tally`` says which), of one tensor or of several."""

    counts: Tensor
    """Elements, float64 of shape ``(4096,)``: sums over ranks stay exact."""
    energies: Tensor
    """Sums of their squares, float64 of shape ``(4096,)``."""

    @classmethod
    def of(cls, counted: Tally) -> "Spectrum":
        """Of a tensor just counted. Raises ValueError if an element is not finite: then there is no gain."""
        if counted.nonfinite:
            raise ValueError(f"{counted.nonfinite} elements are infinite or NaN; skip this step's spectrum")
        return cls(counted.counts.double(), counted.energies)

    def __add__(self, other: "Spectrum") -> "Spectrum":
        return Spectrum(self.counts + other.counts, self.energies + other.energies)

    @property
    def numel(self) -> int:
        return int(self.counts.sum())

    @property
    def energy(self) -> float:
        """Sum of all squares."""
        return float(self._points[2][-1])

    @property
    def top(self) -> int:
        """The highest bin with an element in it; 0 when there is none."""
        used = self._points[0]
        return int(used[0]) if used.numel() else 0

    @cached_property
    def _points(self) -> tuple[Tensor, Tensor, Tensor]:
        """Bins in use from the top down, and the elements and energy down to each; both begin with none."""
        used = self.counts.nonzero().flatten().flip(0)
        none = self.counts.new_zeros(1)
        elements = torch.cat((none, self.counts[used].cumsum(0)))
        return used, elements, torch.cat((none, self.energies[used].cumsum(0)))

    def kept_energy(self, elements: Tensor) -> Tensor:
        """At least the energy of so many largest elements, float64; ``elements`` of shape ``(m,)``, 0 to ``numel``."""
        _, _, energies = self._points
        if len(energies) == 1:
            return torch.zeros_like(elements, dtype=torch.float64)
        after, share = self._place(elements)
        return torch.lerp(energies[after - 1], energies[after], share) * _SAFE

    def thresholds(self, elements: Tensor) -> Tensor:
        """About the magnitude of the smallest of so many largest elements, float64: in its bin, so within 6.25 %."""
        used, _, _ = self._points
        if not len(used):
            return torch.zeros_like(elements, dtype=torch.float64)
        after, share = self._place(elements)
        return torch.lerp(_edge(used[after - 1] + 1), _edge(used[after - 1]), share)

    def gain(self, cf: float) -> float | None:
        """At least the share of ‖x‖² that the n/CF largest elements hold; None of a zero tensor."""
        return self.curve((cf,)).gains()[0]

    def threshold(self, cf: float) -> float:
        """About the magnitude of the smallest of the n/CF largest elements."""
        return float(self.thresholds(torch.tensor([kept_count(self.numel, cf)]))[0])

    def curve(
        self, cfs: Sequence[float] = LADDER, wire_bytes: Callable[[int, float], int] | None = None
    ) -> "Curve":
        """Elements, energy and wire bytes at each CF; ``wire_bytes``: a codec's, of the number of elements and CF."""
        n, cfs = self.numel, tuple(cfs)
        elements = _elements(n, cfs)
        sizes = torch.zeros_like(elements)
        if wire_bytes is not None and n:
            sizes = torch.tensor([wire_bytes(n, cf) for cf in cfs])
        return Curve(cfs, n, self.energy, elements, self.kept_energy(elements), sizes)

    def window(self, top: int, octaves: int = 12) -> Tensor:
        """What ranks add up: float64 of shape ``(2, 16·octaves + 2)``, 3.1 kB for 12 octaves.

        Counts and energies of all elements above bin ``top``, of each bin from there down, and of all below. ``top``
        must be the same on all ranks, such as the highest of the last step's. If it is off, the ends are coarser, and
        gains lower; they are never too high. On real gradients 12 octaves below the largest element tell all there is
        to tell; 8, and the gain at small CFs comes out up to 0.01 too low.
        """
        first = max(0, top + 1 - _AN_OCTAVE * octaves)
        rows = torch.zeros(2, _AN_OCTAVE * octaves + 2, dtype=torch.float64, device=self.counts.device)
        for row, values in zip(rows, (self.counts, self.energies), strict=True):
            row[0] = values[top + 1 :].sum()
            row[1 : top + 2 - first] = values[first : top + 1].flip(0)
            row[-1] = values[:first].sum()
        return rows

    @classmethod
    def from_window(cls, rows: Tensor, top: int) -> "Spectrum":
        """The spectrum of windows added up: what lay above ``top`` counts as one bin, so does what lay below."""
        inside = min(rows.shape[1] - 2, top + 1)
        made = torch.zeros(2, BINS, dtype=torch.float64, device=rows.device)
        made[:, top + 1 - inside : top + 1] = rows[:, 1 : inside + 1].flip(1)
        made[:, min(top + 1, NONFINITE - 1)] += rows[:, 0]
        made[:, max(0, top - inside)] += rows[:, -1]
        return cls(made[0], made[1])

    def _place(self, elements: Tensor) -> tuple[Tensor, Tensor]:
        """Which bin in use the last of so many elements is in (1: the highest), and how far down in it, 0 to 1."""
        _, places, _ = self._points
        elements = elements.to(places).clamp(max=float(places[-1]))
        after = torch.searchsorted(places, elements).clamp(min=1)
        return after, (elements - places[after - 1]) / (places[after] - places[after - 1])


@dataclass(frozen=True)
class Curve:
    """What each CF keeps and costs. Add the curves of buckets and ranks: each keeps its own n/CF."""

    cfs: tuple[float, ...]
    numel: int
    energy: float
    """Sum of all squares."""
    elements: Tensor
    """Elements kept at each CF, int64 of shape ``(len(cfs),)``."""
    kept: Tensor
    """At least their energy, float64 of shape ``(len(cfs),)``."""
    wire_bytes: Tensor
    """Bytes they take on the wire, int64 of shape ``(len(cfs),)``."""

    def __add__(self, other: "Curve") -> "Curve":
        if self.cfs != other.cfs:
            raise ValueError("curves of different CFs cannot be added; ask both for the same ones")
        return Curve(
            self.cfs,
            self.numel + other.numel,
            self.energy + other.energy,
            self.elements + other.elements,
            self.kept + other.kept,
            self.wire_bytes + other.wire_bytes,
        )

    def gains(self) -> list[float | None]:
        """At least the gain at each CF; None where there is nothing to send."""
        if not self.energy > 0.0:
            return [None] * len(self.cfs)
        pairs = zip(self.elements.tolist(), self.kept.tolist(), strict=True)
        return [1.0 if elements == self.numel else energy / self.energy for elements, energy in pairs]

    def sums(self) -> Tensor:
        """What ranks add up, float64 of shape ``(len(cfs) + 1,)``: 496 bytes for ``LADDER``."""
        return torch.cat((self.kept, self.kept.new_tensor([self.energy])))

    def summed(self, sums: Tensor) -> "Curve":
        """This curve with the energies of all ranks; elements and bytes stay one rank's."""
        return replace(self, kept=sums[:-1], energy=float(sums[-1]))


@lru_cache(maxsize=256)  # the same few buckets in every step
def _elements(numel: int, cfs: tuple[float, ...]) -> Tensor:
    """Elements kept of ``numel`` at each CF, int64 of shape ``(len(cfs),)``; nobody writes to it."""
    return torch.tensor([kept_count(numel, cf) if numel else 0 for cf in cfs])


def _edge(bins: Tensor) -> Tensor:
    """The smallest magnitude in a bin, float64."""
    return (bins.int() << 19).view(torch.float32).double()
