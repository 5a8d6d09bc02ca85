"""How much information a CF keeps: gain, smoothed as a ratio of moving averages (GraVAC §III-B, defects fixed)."""

from collections.abc import Mapping
from dataclasses import dataclass, field


def gain(kept_sq: float, compensated_sq: float) -> float | None:
    """‖C(p)‖² / ‖p‖² with p = gradient + residual, both already summed over ranks. None when p is zero.

    In [0, 1] for selectors; rounding above 1 is cut off.
    """
    if not compensated_sq > 0.0:
        return None
    return min(1.0, kept_sq / compensated_sq)


@dataclass(slots=True)
class GainTracker:
    """Smoothed gain per CF: moving averages of numerator and denominator apart, divided last.

    Equal on all ranks because its inputs are sums over ranks. ``smoothing``: weight of the newest step, (0, 1].
    A CF not measured for a while keeps its last value; a new one starts from its first step.
    """

    smoothing: float
    averages: dict[float, tuple[float, float]] = field(default_factory=dict)

    def update(self, cf: float, kept_sq: float, compensated_sq: float) -> None:
        """Take in one step's energies at ``cf``."""
        kept, compensated = self.averages.get(cf, (kept_sq, compensated_sq))
        kept += self.smoothing * (kept_sq - kept)
        compensated += self.smoothing * (compensated_sq - compensated)
        self.averages[cf] = (kept, compensated)

    def gain(self, cf: float) -> float | None:
        """Smoothed gain at ``cf``; 1 for dense, None when it was never measured or nothing was there to send."""
        if cf == 1.0:
            return 1.0
        if cf not in self.averages:
            return None
        return gain(*self.averages[cf])

    def forget_except(self, cfs: frozenset[float]) -> None:
        """Drop CFs no longer measured, so that a return to one starts fresh."""
        self.averages = {cf: value for cf, value in self.averages.items() if cf in cfs}

    def gains(self) -> Mapping[float, float]:
        """Every known smoothed gain by CF."""
        known = ((cf, self.gain(cf)) for cf in sorted(self.averages))
        return {cf: value for cf, value in known if value is not None}
