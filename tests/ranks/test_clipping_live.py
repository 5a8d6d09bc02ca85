"""``agent.clip_grad_norm_`` on real ranks, against the same job simulated."""

import pytest

from tests.support.lab import needs_lab
from tests.support.ranks.harness import RunEach

pytestmark = pytest.mark.distributed


@needs_lab
def test_live_ranks_clip_as_simulated_ones_do(run_each: RunEach) -> None:
    """Through several buckets, their regrouping after the first step, a spike whose rest waits in the residual, a
    skipped step, and a checkpoint on the way."""
    cases = [
        {"compressor": "qsgd:bits=2,block=64", "cf": 12.0},
        {"compressor": "topk", "cf": 20.0},
        {"compressor": "topk+twobit", "cf": 20.0, "bad_step": 9, "max_norm": 0.4},
        {"compressor": "topk", "cf": 20.0, "resume": 10},
        {"compressor": "topk", "cf": 20.0, "memory": "partial:beta=0.5", "bad_step": 15},
    ]
    for case, (one, two) in run_each("clipped", 2, cases):
        assert one["parameters"] == two["parameters"], case
        assert one["norms"] == two["norms"], case
        assert one["state"] == two["state"], case
        for result in (one, two):
            assert result["buckets"] > 2, case
            assert result["norm_error"] < 1e-3, case
            assert result["error"] < 1e-3, case
            assert result["residual_error"] < 1e-3, case
            assert result["left_alone"] < 24, (case, "nothing was clipped by the dense norm")
            assert result["cut"] > 3, case
            assert (result["held"] > 7.9) == (case["compressor"] != "qsgd:bits=2,block=64"), (case, "a draft")
