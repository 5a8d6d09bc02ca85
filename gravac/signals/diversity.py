"""Gradient diversity and the batch size beyond which larger batches stop paying (Yin et al. 2018).

Two scalars a step suffice: ``local_sq`` = mean over ranks of ``||g_i||²`` and ``mean_sq`` = ``||mean of g_i||²``, of
*raw* gradients (not compensated or decoded ones), every g_i the mean of ``local_batch`` samples.
"""

from dataclasses import dataclass


def diversity(local_sq: float, mean_sq: float, count: int) -> float | None:
    """``sum ||g_i||² / ||sum g_i||²`` over ``count`` vectors, from their mean squares. None when they cancel.

    1/count when all are equal, 1 when orthogonal, above 1 when they oppose each other.
    """
    return local_sq / (count * mean_sq) if mean_sq > 0.0 else None


def batch_bound(sample_sq: float, full_sq: float) -> float | None:
    """``B_S = n diversity``: mini-batches up to this size learn as much a sample as single samples do.

    ``sample_sq``: mean of ``||grad f_j||²`` over the n samples; ``full_sq``: ``||grad f||²``. None when that is 0.
    """
    return sample_sq / full_sq if full_sq > 0.0 else None


def batch_second_moment(sample_sq: float, bound: float, batch: int) -> float:
    """``E ||mean of a batch||² = (M²/B) (1 + (B-1)/B_S)``, samples drawn with replacement; M² is ``sample_sq``."""
    return sample_sq / batch * (1.0 + (batch - 1) / bound)


def compressed_diversity(plain: float, omega: float) -> float:
    """``(1+ω)Δ / (1+ωΔ)``: diversity after an unbiased codec of relative variance ω, independent on each rank.

    A ratio of expectations. Noise makes gradients more diverse; that is no gift, only noise counted.
    """
    return (1.0 + omega) * plain / (1.0 + omega * plain)


def compression_noise_ratio(
    local_sq: float, ranks: int, omega: float, sample_variance: float, batch: int
) -> float:
    """Variance an unbiased codec adds to the mean (``ω local_sq / ranks``) over that of sampling (``S / batch``).

    Well below 1, the codec costs nothing in statistics. Infinity when sampling has no variance.
    """
    added = omega * local_sq / ranks
    return (
        added * batch / sample_variance if sample_variance > 0.0 else (float("inf") if added > 0.0 else 0.0)
    )


def split(local_sq: float, mean_sq: float, ranks: int, local_batch: int) -> tuple[float, float]:
    """Unbiased ``(||grad F||², S)`` from one step; S = trace of one sample's gradient covariance.

    With b = ``local_batch``, B = ranks * b: ``(B mean_sq - b local_sq) / (B - b)`` and ``(local_sq - mean_sq) / (1/b -
    1/B)``. One step's first value may be negative: average before dividing. Raises ValueError below 2 ranks or for
    a batch below 1.
    """
    if ranks < 2:
        raise ValueError(f"ranks={ranks}: diversity compares ranks, so it needs at least 2")
    if local_batch < 1:
        raise ValueError(f"local_batch={local_batch} must be at least 1 sample")
    signal_sq = (ranks * mean_sq - local_sq) / (ranks - 1)
    variance = (local_sq - mean_sq) * local_batch * ranks / (ranks - 1)
    return signal_sq, variance


@dataclass(slots=True)
class DiversityTracker:
    """Smoothed B_S of a data-parallel run: moving averages of numerator and denominator apart, divided last.

    Equal on all ranks because its inputs are. ``smoothing``: weight of the newest step, (0, 1]. Ranks and batch may
    change at any step. A step with fewer than 2 ranks or a non-finite value says nothing and is left out.
    """

    smoothing: float
    signal_sq: float | None = None
    """Smoothed ``||grad F||²``; may be below 0 while noise drowns it."""
    variance: float | None = None
    """Smoothed S, the trace of one sample's gradient covariance."""

    def __post_init__(self) -> None:
        if not 0.0 < self.smoothing <= 1.0:
            raise ValueError(f"smoothing={self.smoothing} is not in (0, 1]")

    def update(self, local_sq: float, mean_sq: float, ranks: int, local_batch: int) -> None:
        """Take in one step (arguments as in ``split``)."""
        if ranks < 2 or not (0.0 <= local_sq < float("inf") and 0.0 <= mean_sq < float("inf")):
            return
        signal_sq, variance = split(local_sq, mean_sq, ranks, local_batch)
        if self.signal_sq is None or self.variance is None:
            self.signal_sq, self.variance = signal_sq, variance
            return
        self.signal_sq += self.smoothing * (signal_sq - self.signal_sq)
        self.variance += self.smoothing * (variance - self.variance)

    def noise_scale(self) -> float | None:
        """``S / ||grad F||²`` in samples: the simple gradient noise scale. None before the first step, and while the
        signal is not above 0 (the batch that would show it is larger than those seen)."""
        if self.signal_sq is None or self.variance is None or not self.signal_sq > 0.0:
            return None
        return max(0.0, self.variance) / self.signal_sq

    def batch_bound(self) -> float | None:
        """``B_S = 1 + S / ||grad F||²`` in samples, at least 1. None where ``noise_scale`` is."""
        noise_scale = self.noise_scale()
        return None if noise_scale is None else 1.0 + noise_scale
