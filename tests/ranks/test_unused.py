"""Nothing is lost of parameters that no rank uses in a step, whose means DDP drops."""

from typing import Any

import pytest

from tests.support.ranks.harness import RunEach

pytestmark = pytest.mark.distributed

CASES: list[dict[str, Any]] = [
    {"how": "layers"},
    {"how": "own layers"},
    {"how": "frozen"},
    {"how": "static"},
    {"how": "layers", "compressor": "dither-subtractive:levels=3"},
    {"how": "own layers", "compressor": "blocksign"},
    {"how": "layers", "compressor": "majority"},
    {"how": "own layers", "compressor": "powersgd:rank=2"},
    {"how": "layers", "memory": "partial"},
]


def test_what_is_sent_and_what_waits_is_what_came_in(run_each: RunEach) -> None:
    for case, (one, two) in run_each("unused_parameters", 2, CASES):
        assert one["agent"]["parameters"] == two["agent"]["parameters"] != one["plain"]["parameters"], case
        assert one["plain lost at last"] < 1e-6, case
        assert one["held"] > 0, case
        assert one["lost"] < 1e-6, case
        assert one["agent lost at last"] < 1e-6, case
        if case.get("compressor", "topk") == "topk" and "memory" not in case:
            assert one["agent"]["loss"] < 1.01 * one["plain"]["loss"], case
