"""Warnings of an unstable choice, with their numbers and what helps."""

import re

import pytest

from gravac.compressors import build as build_codec
from gravac.memories import build, stability


def test_warnings_have_the_numbers() -> None:
    block = build_codec("blockrandomk")
    assert stability(build("conef-sketch:size=0.1,beta=0.9"), block, 10.0) is None
    assert stability(build("conef-sketch:size=0.3,beta=0.75"), block, 10.0) is None
    assert stability(build("conef-sketch:size=1.0,beta=0"), block, 10.0) is None
    warning = stability(build("conef-sketch:size=0.2,beta=0.5"), block, 10.0)
    assert warning is not None
    for part in ("size=0.2 puts up to 5 elements", "(1-β)·5 = 2.5", "beta=0.8 or more", "size=0.5 or more"):
        assert part in warning
    warning = stability(build("conef-sketch:size=0.9,beta=0.1"), block, 10.0)
    assert warning is not None
    for part in ("up to 2 elements", "(1-β)·2 = 1.8", "beta=0.5 or more", "size=1 or more"):
        assert part in warning
    assert stability(build("residual"), block, 1000.0) is None
    assert stability(build("conef"), block, 10.0) is None
    warning = stability(build("conef:bits=4"), block, 10.0)
    assert warning is not None
    assert "(1+θ)(1-δ) = (1+0.163)·0.9 = 1.047" in warning
    warning = stability(build("conef:codec=randomk-unbiased,cf=2"), block, 10.0)
    assert warning is not None
    assert "= (1+1)·0.9 = 1.8" in warning
    assert stability(build("residual"), build_codec("randomk-unbiased"), 10.0) is not None
    assert stability(build("none"), build_codec("randomk-unbiased"), 10.0) is None
    assert stability(build("conef:bits=4"), block, 1.0) is None  # dense: nothing is left out
    # v1 of 4 bits: θ² = 0.027, so what warned above does not
    assert stability(build("iconef-v1:bits=4"), block, 10.0) is None
    warning = stability(build("conef:beta=0.9"), block, 10.0)
    assert warning is None
    assert stability(build("conef:beta=0.99"), block, 10.0) is not None


@pytest.mark.parametrize("size", [0.03, 0.15, 0.3, 0.4, 0.7, 0.95])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.3, 0.45, 0.7])
def test_the_advice_about_a_sketch_ends_the_warning(size: float, beta: float) -> None:
    block = build_codec("blockrandomk")
    warning = stability(build(f"conef-sketch:size={size},beta={beta}"), block, 10.0)
    if warning is None:
        return
    found = re.search(r"Use beta=(\S+) or more, or size=(\S+) or more", warning)
    assert found is not None
    assert stability(build(f"conef-sketch:size={size},beta={found[1]}"), block, 10.0) is None
    assert stability(build(f"conef-sketch:size={found[2]},beta={beta}"), block, 10.0) is None
