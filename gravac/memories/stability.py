"""Whether an error memory stays bounded under a codec, from proven bounds: a warning with the numbers."""

import math

from gravac.compressors.base import Compressor
from gravac.memories.base import Memory
from gravac.memories.none import NoMemory
from gravac.memories.rowsketch import fullest
from gravac.memories.sketch import SketchMemory, least_beta

_ROUNDING = 1e-9


def stability(memory: Memory, compressor: Compressor, cf: float, numel: int = 1 << 20) -> str | None:
    """Return a warning if the residual may grow without limit.

    For memories that store residuals, (1+θ)(1-δ) must be below 1, with θ the noise of the memory and 1-δ the largest
    share of p that the codec leaves out; with β, δ shrinks to (1-β)δ. For sketches, (1-β)·ceil(1/size) must be at most
    1.

    Args:
        memory: The error memory.
        compressor: The codec.
        cf: The CF it is asked for.
        numel: Elements of a typical bucket.

    Returns:
        A sentence for the log; None if the residual is bounded, or if nothing is proven.
    """
    if isinstance(memory, NoMemory) or cf <= 1.0:
        return None
    if isinstance(memory, SketchMemory):
        return _sketch(memory)
    left = compressor.bound(numel, cf).ratio
    theta = memory.noise(compressor, cf, numel)
    if left is None or theta is None:
        return None
    share = memory.offered_share()
    unsent_share = 1.0 - share * (1.0 - left) if left < 1.0 else left
    growth = (1.0 + theta) * unsent_share
    if growth < 1.0:
        return None
    beta = f", β={1.0 - share:g} held back" if share < 1.0 else ""
    cure = "a milder CF, or more bits in the memory" if theta else "a biased codec such as nearest"
    return (
        f"memory {memory.spec} has no proven limit under {compressor.name} at CF {cf:g}: in the worst case "
        f"(1+θ)(1-δ) = (1+{theta:.3g})·{unsent_share:.4g} = {growth:.4g} is not below 1{beta}. If the residual ratio "
        f"grows from window to window, use {cure}."
    )


def _sketch(memory: SketchMemory) -> str | None:
    size, share = float(memory.settings.size), memory.offered_share()
    load = fullest(size)
    if share * load <= 1.0 + _ROUNDING:
        return None
    least_size = 1.0 / int(1.0 / share + _ROUNDING)
    return (
        f"memory {memory.spec} may grow without limit: size={size:g} puts up to {load} elements into a bucket, and a "
        f"step that sends them all takes back (1-β)·{load} = {share * load:.3g} times what the bucket holds; above 1 "
        f"that overshoots. Use beta={_up(least_beta(size)):g} or more, or size={_up(least_size):g} or more."
    )


def _up(value: float) -> float:
    """Return ``value`` rounded up to three digits, so that following the advice ends the warning."""
    return math.ceil(value * 1000 - 1e-6) / 1000
