"""Runs a function on every backend and demands the same answer."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from hypothesis import strategies as st

from gravac.kernels import backend

LENGTHS = st.sampled_from([0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 129, 511, 512, 513, 700, 1500])
ODDITIES = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-40, 1.1754944e-38, 3.4028235e38, 0.9999999, -0.125]


@contextmanager
def on(name: Literal["cpu", "cuda", "reference"]) -> Iterator[None]:
    """That backend inside, afterwards again whatever the environment says."""
    backend.use(name)
    try:
        yield
    finally:
        backend.use(os.environ.get("GRAVAC_KERNELS", "auto"))  # type: ignore[arg-type]


def everywhere(function: Callable[[], Any]) -> Any:
    """The result, equal to the bit on the compiled backend and in plain torch."""
    with on("cpu"):
        compiled = function()
    with on("reference"):
        plain = function()
    same(compiled, plain)
    return plain


def same(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        # Bits, so that -0 is not 0; a NaN may be any.
        equal = one == other if not one.is_floating_point() else one.double() == other.double()
        if one.dtype == torch.float32:
            equal &= one.signbit() == other.signbit()
        if one.is_floating_point():
            equal |= one.isnan() & other.isnan()
        assert bool(equal.all()), (one, other)
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            same(mine, theirs)
    else:
        assert one == other


def vector(n: int, seed: int, kind: str = "mixed") -> torch.Tensor:
    """``n`` float32 of many sizes; ``mixed``: also ties, zeros, denormals; ``wild``: also inf and NaN."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator) * torch.exp(4 * torch.randn(n, generator=generator))
    if kind != "normal" and n:
        odd = torch.tensor(ODDITIES if kind == "mixed" else [*ODDITIES, torch.inf, -torch.inf, torch.nan])
        drawn = odd[torch.randint(len(odd), (n,), generator=generator)]
        x = torch.where(torch.rand(n, generator=generator) < 0.4, drawn, x)
    return x
