"""Gain: how much information a CF keeps, smoothed as a ratio of moving averages.

S. Tyagi and M. Swany, "GraVAC: Adaptive Compression for Communication-Efficient Distributed DL Training", IEEE CLOUD
2023, section III-B. The paper smooths the ratio itself; here numerator and denominator are smoothed, so that steps with
small gradients do not dominate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


def gain(kept_sq: float, compensated_sq: float) -> float | None:
    """Return the gain ‖C(p)‖² / ‖p‖² with p = gradient + residual.

    Args:
        kept_sq: ‖C(p)‖², summed over ranks.
        compensated_sq: ‖p‖², summed over ranks; or ‖gradient‖², for the gain of GraVAC's released code.

    Returns:
        A ratio in [0, 1]; values above 1 (from rounding, or over the raw gradient) are clipped. None when the
        denominator is zero.
    """
    if not compensated_sq > 0.0:
        return None
    return min(1.0, kept_sq / compensated_sq)


@dataclass(slots=True)
class GainTracker:
    """Smoothed gain by plan, a codec's number and a CF: moving averages of numerator and denominator, divided last.

    Equal on all ranks, as its inputs are sums over ranks. A plan that is not measured for a while keeps its last value;
    a new one starts from its first step. Codec 0 is the job's compressor.

    Args:
        smoothing: weight of the newest step, in (0, 1].
        denominator: which energies the caller passes to ``update``: "compensated" is ‖p‖², "gradient" is ‖gradient‖².
        averages: moving averages of ‖C(p)‖² and of the denominator by codec and CF.
    """

    smoothing: float
    denominator: Literal["compensated", "gradient"] = "compensated"
    averages: dict[tuple[int, float], tuple[float, float]] = field(default_factory=dict)

    def update(self, cf: float, kept_sq: float, compensated_sq: float, codec: int = 0) -> None:
        """Add one step's energies at ``cf`` (arguments as in ``gain``)."""
        numerator, denominator = self.averages.get((codec, cf), (kept_sq, compensated_sq))
        numerator += self.smoothing * (kept_sq - numerator)
        denominator += self.smoothing * (compensated_sq - denominator)
        self.averages[codec, cf] = (numerator, denominator)

    def gain(self, cf: float, codec: int = 0) -> float | None:
        """Return the smoothed gain at ``cf``: 1 for dense, None if it was never measured or gradients were zero."""
        if cf == 1.0:
            return 1.0
        if (codec, cf) not in self.averages:
            return None
        return gain(*self.averages[codec, cf])

    def forget_except(self, plans: frozenset[tuple[int, float]]) -> None:
        """Drop all others than these codecs and CFs, so that a return to one starts fresh."""
        self.averages = {plan: value for plan, value in self.averages.items() if plan in plans}

    def gains(self, codec: int = 0) -> Mapping[float, float]:
        """Return all known smoothed gains of a codec by CF."""
        known = ((cf, self.gain(cf, codec)) for number, cf in sorted(self.averages) if number == codec)
        return {cf: value for cf, value in known if value is not None}
