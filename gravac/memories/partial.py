"""Partial error feedback: only a share of what is owed is offered each step (Abdi & Fekri 2020).

p = g + (1-β) e,  e' = e + g - C(p) = β e + p - C(p)

β changes what is offered, not what is owed: nothing is lost.
"""

from pydantic import Field

from gravac.memories.base import MemorySettings
from gravac.memories.residual import ResidualMemory


class PartialSettings(MemorySettings):
    """How much to hold back."""

    beta: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="β, share of what is owed that is held back each step, 0 (plain error feedback) to below 1.",
    )


class PartialMemory(ResidualMemory):
    """Error feedback that smooths its bursts; a dense step sends all."""

    name = "partial"
    source = (
        "Abdi & Fekri 2020, Quantized compressive sampling of stochastic gradients; Li et al. 2021, ConEF"
    )
    Settings = PartialSettings

    def offered_share(self) -> float:
        return float(1.0 - self.settings.beta)
