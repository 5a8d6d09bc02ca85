"""Agents that exchange on streams, as on a GPU, against those with threads: the same DDP job on two ranks."""

import math

import pytest

from tests.support.ranks.harness import RunEach

pytestmark = pytest.mark.distributed


def test_an_agent_on_streams_trains_as_one_with_threads(run_each: RunEach) -> None:
    """Through regrouped buckets, switched CFs, windows, changed rates, and a step that is not finite on one rank.

    All is equal to the bit, except with the agent's clipping: it divides by a norm that follows from the tick's sums,
    and those are rounded differently on a device.
    """
    cases = [
        {"compressor": "topk+bf16", "steps": 24},
        {"compressor": "topk", "steps": 24, "memory": "partial"},
        {"compressor": "topk", "steps": 24, "clip": 0.2},
        {"compressor": "topk", "steps": 24, "scaled": True},
    ]
    for case, ranks in run_each("on_streams", 2, cases):
        assert ranks[0]["streams"]["parameters"] == ranks[1]["streams"]["parameters"], case
        for rank in ranks:
            threads, streams = rank["threads"], rank["streams"]
            assert (threads.pop("streams"), streams.pop("streams")) == (False, True), case
            residuals = threads.pop("residual"), streams.pop("residual")
            assert math.isclose(*residuals, rel_tol=1e-5 if "clip" in case else 1e-12), case
            assert residuals[0] > 0, case
            if "clip" in case:
                threads.pop("parameters"), streams.pop("parameters")
                for name in ("norm", "leftover"):
                    assert math.isclose(threads.pop(name), streams.pop(name), rel_tol=1e-5), (case, name)
            assert streams == threads, case
            assert streams["windows"] >= 5, case
            if (
                "scaled" in case
            ):  # it grew until gradients overflowed, twice at least besides the step that is spoilt
                assert streams["nonfinite"] >= 3, case
            else:
                assert streams["nonfinite"] == 1, case
