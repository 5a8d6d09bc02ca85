"""Signed sums of each rank's raw gradient, from which the norm of their mean follows without exchanging it.

A sample of the gradient's elements, each with a random sign, is added up in a few sums (Charikar et al. 2002, Count
sketch). The tick carries them and adds up those of all ranks. As sums are linear, that gives the sums of the total
gradient, and the expected sum of their squares is its squared norm.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gravac.kernels import Scalar, on_device, product
from gravac.kernels.device import step_sums

log = logging.getLogger("gravac.agent")

SUMS = 16
"""Signed sums. The squared norm of one step has a standard deviation of √(2 / SUMS)."""
MOST_SAMPLED = 1 << 14
"""Elements of a bucket that are sampled, evenly spread."""
SIZE = SUMS + 1
"""Numbers in the tick: the signed sums, then the energy of the sample."""
NOT_MEASURED = (0.0,) * SIZE


class SignedSums(NamedTuple):
    """The signs of one bucket's sample, equal on all ranks that average, and a work space that ends in zeros.

    Both have shape ``(SUMS, n / SUMS)``. A device needs no work space.
    """

    signs: Tensor
    space: Tensor


@dataclass(slots=True)
class RawMeanMeter:
    """Adds up one rank's sums over the buckets of a step. It never raises into the exchange."""

    wanted: bool = False
    """Whether the norm is wanted. Until then nothing is measured."""
    shard: int = 0
    """Number of the shard that the gradients belong to. The signs of different shards are independent."""
    _sums: Tensor = field(
        default_factory=lambda: torch.zeros(SUMS, dtype=torch.float64, device="cpu"), init=False
    )
    _energy: Scalar = field(default=0.0, init=False)
    _on_device: Tensor | None = field(default=None, init=False)
    """There the sums and the energy, float64 of shape ``(SIZE,)``; None: nothing was measured there yet."""
    _measured: bool = field(default=False, init=False)
    """Whether the running step has measured a bucket."""

    def add(self, signed: SignedSums | None, number: int, gradient: Tensor) -> SignedSums | None:
        """Add a bucket's raw gradient, before anything changes it.

        Args:
            signed: What this returned for the bucket before; None the first time.
            number: Number of the bucket.
            gradient: Shape ``(n,)``.
        """
        self._measured = True
        try:
            every = -(-gradient.numel() // MOST_SAMPLED) | 1  # odd, so that it meets all columns of a matrix
            sample = gradient[::every]
            if signed is None:
                signed = self._signs(number, sample)
            signs, table = signed
            if on_device(gradient):
                if self._on_device is None:
                    self._on_device = torch.zeros(SIZE, dtype=torch.float64, device=gradient.device)
                step_sums.signed(gradient, signs, every, self._on_device)
                return signed
            flat = table.view(-1)[: sample.numel()].copy_(sample)
            # The sample stands for ``every`` times as many elements. Energies grow with that, and sums with its root.
            self._energy += every * float(product(flat, flat))
            self._sums.add_(table.mul_(signs).sum(1, dtype=torch.float64), alpha=every**0.5)
        except Exception:
            log.exception("the norm of the mean gradient is not measured in this step")
            self._energy = math.nan
        return signed

    def pop(self) -> list[Scalar]:
        """Return the ``SIZE`` numbers of the step, and begin the next one. They are 0 if nothing was measured."""
        if not self._measured:
            return list(NOT_MEASURED)
        found: list[Scalar]
        if self._on_device is not None:
            found = [*self._on_device.clone().unbind()]
            if self._energy:  # NaN, as measuring failed
                found[-1] = self._energy
            self._on_device.zero_()
        else:
            found = [*self._sums.tolist(), self._energy]
            self._sums.zero_()
        self._energy, self._measured = 0.0, False
        return found

    def _signs(self, number: int, sample: Tensor) -> SignedSums:
        draw = torch.Generator().manual_seed(number + (self.shard << 32))
        signs = torch.randint(0, 2, (SUMS, -(-sample.numel() // SUMS)), generator=draw, device="cpu").float()
        signs = signs.mul_(2.0).sub_(1.0).to(sample.device)
        return SignedSums(signs, torch.zeros_like(signs) if sample.is_cpu else signs)


def mean_energies(numbers: Sequence[float], ranks: int) -> tuple[float, float] | None:
    """Return ‖mean over ranks‖² and the mean over ranks of ‖gradient‖², of the sampled elements.

    Args:
        numbers: ``RawMeanMeter.pop`` of all ranks, added up.
        ranks: How many there are.

    Returns:
        None if not every rank has measured, or a number is not finite.
    """
    *sums, whole = numbers
    square = math.fsum(one * one for one in sums)
    if not (math.isfinite(square) and 0.0 < whole < math.inf):
        return None
    return square / ranks**2, whole / ranks
