"""Gradient diversity in studies: the batch that still pays, and what an unbiased codec does to both.

D. Yin et al., "Gradient Diversity: a Key Ingredient for Scalable Distributed Learning", AISTATS 2018. What a job
measures of it is in ``gravac.signals.diversity``.
"""


def batch_bound(sample_sq: float, full_sq: float) -> float | None:
    """Return ``B_S = n · diversity``: batches up to this size learn as much per sample as single samples do.

    Args:
        sample_sq: mean of ``||grad f_j||²`` over the n samples.
        full_sq: ``||grad f||²``.

    Returns:
        Samples; None when ``full_sq`` is 0.
    """
    return sample_sq / full_sq if full_sq > 0.0 else None


def batch_second_moment(sample_sq: float, bound: float, batch: int) -> float:
    """Return ``E ||mean of a batch||² = (M²/B) (1 + (B-1)/B_S)``, samples drawn with replacement.

    M² is ``sample_sq``, B_S is ``bound``, B is ``batch``.
    """
    return sample_sq / batch * (1.0 + (batch - 1) / bound)


def compressed_diversity(plain: float, omega: float) -> float:
    """Return ``(1+ω)Δ / (1+ωΔ)``: diversity after an unbiased codec of relative variance ω, independent on each rank.

    A ratio of expectations. The noise of the codec raises the diversity, which does not mean that larger batches pay.
    """
    return (1.0 + omega) * plain / (1.0 + omega * plain)


def compression_noise_ratio(
    local_sq: float, ranks: int, omega: float, sample_variance: float, batch: int
) -> float:
    """Return the variance that an unbiased codec adds to the mean, relative to the variance of sampling.

    ``(ω local_sq / ranks) / (S / batch)``. Far below 1, the codec costs no statistical efficiency.

    Args:
        local_sq: mean over ranks of ``||g_i||²``.
        ranks: world size.
        omega: relative variance ω of the codec.
        sample_variance: S, the trace of one sample's gradient covariance.
        batch: samples a step, all ranks.

    Returns:
        The ratio; infinity when sampling has no variance.
    """
    added = omega * local_sq / ranks
    return (
        added * batch / sample_variance if sample_variance > 0.0 else (float("inf") if added > 0.0 else 0.0)
    )
