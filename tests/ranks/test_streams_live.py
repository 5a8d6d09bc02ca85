"""Agents that exchange on streams, as on a GPU, against those with threads: the same DDP job on two ranks."""

import math

import pytest

from tests.support.ranks.harness import RunEach

pytestmark = pytest.mark.distributed


def test_an_agent_on_streams_trains_as_one_with_threads(run_each: RunEach) -> None:
    """Through regrouped buckets, switched CFs, windows, changed rates, and a step that is not finite on one rank."""
    cases = [{"compressor": "topk+bf16", "steps": 24}]
    for case, ranks in run_each("on_streams", 2, cases):
        assert ranks[0]["streams"]["parameters"] == ranks[1]["streams"]["parameters"], case
        for one in ranks:
            threads, streams = one["threads"], one["streams"]
            assert (threads.pop("streams"), streams.pop("streams")) == (False, True), case
            residuals = threads.pop("residual"), streams.pop("residual")
            assert math.isclose(*residuals, rel_tol=1e-12), case
            assert residuals[0] > 0, case
            assert streams == threads, case
            assert streams["nonfinite"] == 1, case
            assert streams["windows"] >= 5, case
