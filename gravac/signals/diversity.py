"""Gradient diversity, and the batch size beyond which larger batches stop paying.

D. Yin et al., "Gradient Diversity: a Key Ingredient for Scalable Distributed Learning", AISTATS 2018. The noise scale
is that of S. McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv 1812.06162, appendix A.1.

Two scalars a step suffice: ``local_sq`` = mean over ranks of ``||g_i||²`` and ``mean_sq`` = ``||mean of g_i||²``, of
*raw* gradients (not compensated or decoded ones), each g_i the mean of ``local_batch`` samples.
"""

from dataclasses import dataclass


def diversity(local_sq: float, mean_sq: float, count: int) -> float | None:
    """Return the diversity ``sum ||g_i||² / ||sum g_i||²`` of vectors.

    Args:
        local_sq: mean of ``||g_i||²``.
        mean_sq: ``||mean of g_i||²``.
        count: number of vectors.

    Returns:
        1 / count when all are equal, 1 when orthogonal, more when they oppose each other; None when they cancel.
    """
    return local_sq / (count * mean_sq) if mean_sq > 0.0 else None


def split(local_sq: float, mean_sq: float, ranks: int, local_batch: int) -> tuple[float, float]:
    """Return unbiased estimates of ``||grad F||²`` and S from one step.

    With b = ``local_batch`` and B = ranks · b: ``(B mean_sq - b local_sq) / (B - b)`` and ``(local_sq - mean_sq) / (1/b
    - 1/B)`` (McCandlish et al. 2018, appendix A.1). A single step's first value may be negative: average before
    dividing.

    Args:
        local_sq: mean over ranks of ``||g_i||²``.
        mean_sq: ``||mean of g_i||²``.
        ranks: world size, at least 2.
        local_batch: samples a rank, at least 1.

    Returns:
        The squared norm of the full gradient, and S, the trace of one sample's gradient covariance.

    Raises:
        ValueError: too few ranks or samples.
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
    """Smoothed batch bound B_S of a data-parallel run: moving averages of numerator and denominator, divided last.

    Equal on all ranks because its inputs are. World size and batch may change at any step. Steps with fewer than 2
    ranks or a non-finite value are left out.

    Args:
        smoothing: weight of the newest step, in (0, 1].
        signal_sq: smoothed ``||grad F||²``; may be below 0 while noise dominates.
        variance: smoothed S, the trace of one sample's gradient covariance.

    Raises:
        ValueError: ``smoothing`` is out of range.
    """

    smoothing: float
    signal_sq: float | None = None
    variance: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.smoothing <= 1.0:
            raise ValueError(f"smoothing={self.smoothing} is not in (0, 1]")

    def update(self, local_sq: float, mean_sq: float, ranks: int, local_batch: int) -> None:
        """Add one step (arguments as in ``split``)."""
        if ranks < 2 or not (0.0 <= local_sq < float("inf") and 0.0 <= mean_sq < float("inf")):
            return
        signal_sq, variance = split(local_sq, mean_sq, ranks, local_batch)
        if self.signal_sq is None or self.variance is None:
            self.signal_sq, self.variance = signal_sq, variance
            return
        self.signal_sq += self.smoothing * (signal_sq - self.signal_sq)
        self.variance += self.smoothing * (variance - self.variance)

    def noise_scale(self) -> float | None:
        """Return the simple gradient noise scale ``S / ||grad F||²`` in samples.

        None before the first step, and while the signal is not above 0: the scale is then far above the batch.
        """
        if self.signal_sq is None or self.variance is None or not self.signal_sq > 0.0:
            return None
        return max(0.0, self.variance) / self.signal_sq

    def batch_bound(self) -> float | None:
        """Return ``B_S = 1 + S / ||grad F||²`` in samples, at least 1; None where ``noise_scale`` is None."""
        noise_scale = self.noise_scale()
        return None if noise_scale is None else 1.0 + noise_scale
