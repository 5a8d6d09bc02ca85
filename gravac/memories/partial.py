"""Partial error feedback: only a share of the residual is added each step."""

from pydantic import Field

from gravac.memories.base import MemorySettings
from gravac.memories.residual import ResidualMemory


class PartialSettings(MemorySettings):
    """How much to hold back."""

    beta: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="β, share of the residual that is held back each step, 0 (plain error feedback) to below 1.",
    )


class PartialMemory(ResidualMemory):
    """Partial error feedback: only a share of the residual is added each step, which smooths bursts.

    p = g + (1-β) e, e' = e + g - C(p). A dense step sends everything.
    """

    name = "partial"
    source = (
        "Abdi & Fekri 2020, Quantized compressive sampling of stochastic gradients; Li et al. 2021, ConEF"
    )
    Settings = PartialSettings
    examples = ("beta=0.9",)
