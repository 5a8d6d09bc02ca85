"""Agents that exchange on streams, as on a GPU, against those with threads: the same DDP job on two ranks."""

import math

import pytest

from tests.support.ranks.harness import RunEach

pytestmark = pytest.mark.distributed


def test_an_agent_on_streams_trains_as_one_with_threads(run_each: RunEach) -> None:
    """Through regrouped buckets, switched CFs, windows, changed rates, and a step that is not finite on one rank.

    All is equal to the bit, except with the agent's clipping: it divides by a norm that follows from the tick's sums,
    and those are rounded differently on a device. Where DDP looks for unused parameters, they differ by rounding,
    also if the agent has a group of its own.
    """
    cases = [
        {"compressor": "topk+bf16", "steps": 24},
        {"compressor": "topk", "steps": 24, "memory": "partial"},
        {"compressor": "topk", "steps": 24, "clip": 0.2},
        {"compressor": "topk", "steps": 24, "scaled": True},
        # DDP's own collectives, which on streams are in one group with the agent's.
        {"compressor": "topk", "steps": 24, "buffer": True},
        {"compressor": "topk", "steps": 24, "buffer": True, "unused": True},
    ]
    for case, ranks in run_each("on_streams", 2, cases):
        assert ranks[0]["streams"]["parameters"] == ranks[1]["streams"]["parameters"], case
        for rank in ranks:
            threads, streams = rank["threads"], rank["streams"]
            assert (threads.pop("streams"), streams.pop("streams")) == (False, True), case
            residuals = threads.pop("residual"), streams.pop("residual")
            rounded = "clip" in case or "unused" in case
            assert math.isclose(*residuals, rel_tol=1e-5 if rounded else 1e-12), case
            assert residuals[0] > 0, case
            if rounded:
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


def test_an_agent_that_sends_whole_messages_trains_as_well(run_each: RunEach) -> None:
    """Ranks agree to the bit, and parameters and residuals are as large as those of exact Top-k to a few percent."""
    cases = [
        {"compressor": "topk+bf16", "steps": 24, "whole": True},
        {"compressor": "topk+twobit", "steps": 24, "whole": True, "clip": 0.2, "every": 12},
        {"compressor": "topk", "steps": 24, "whole": True, "scaled": True},
    ]
    for case, ranks in run_each("on_streams", 2, cases):
        one, other = (rank["streams"] for rank in ranks)
        assert one["parameters"] == other["parameters"], case
        for rank in ranks:
            threads, streams = rank["threads"], rank["streams"]
            assert streams["parameters"] != threads["parameters"], "another way to choose was taken"
            assert math.isclose(streams["norm"], threads["norm"], rel_tol=0.01), case
            if (
                "scaled" not in case
            ):  # gradients may overflow in another step, and the scale is another one then
                assert math.isclose(streams["residual"], threads["residual"], rel_tol=0.1), case
            for name in ("step", "windows", "nonfinite", "samples"):
                assert streams[name] == threads[name], (case, name)
            assert 0.9 * threads["payload_bytes"] < streams["payload_bytes"] < 1.2 * threads["payload_bytes"]


def test_an_agent_that_sends_every_element_in_whole_messages_trains_as_well(run_each: RunEach) -> None:
    """Ranks agree to the bit. Undoing a step in place rounds, where the host has a second buffer."""
    cases = [
        {"compressor": "bf16", "steps": 24, "whole": True},
        {"compressor": "int8", "steps": 24, "whole": True, "clip": 0.2, "every": 12},
        {"compressor": "nearest", "steps": 24, "whole": True},
        {"compressor": "int8", "steps": 24, "whole": True, "collective": "compressed-all-reduce"},
    ]
    for case, ranks in run_each("on_streams", 2, cases):
        one, other = (rank["streams"] for rank in ranks)
        assert one["parameters"] == other["parameters"], case
        for rank in ranks:
            threads, streams = rank["threads"], rank["streams"]
            assert streams["payload_bytes"] != threads["payload_bytes"], "another message was sent"
            assert math.isclose(streams["norm"], threads["norm"], rel_tol=1e-4), case
            assert math.isclose(streams["residual"], threads["residual"], rel_tol=0.1), case
            for name in ("step", "windows", "nonfinite", "samples"):
                assert streams[name] == threads[name], (case, name)
