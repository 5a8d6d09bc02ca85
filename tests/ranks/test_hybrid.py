"""HSDP: dense inside a node, compressed between nodes; 2 nodes of 2 ranks."""

import pytest

from tests.support.ranks.harness import RunEach

pytestmark = pytest.mark.distributed


def test_dense_is_native_hsdp_bit_for_bit(run_each: RunEach) -> None:
    styles = ("plain", "bf16", "factor", "summed factor", "accumulation", "late all-reduce")
    cases: list[dict[str, object]] = [{"style": style} for style in styles]
    cases += [{"style": style, "enabled": False} for style in ("plain", "summed factor", "late all-reduce")]
    for case, results in run_each("hybrid_is_native", 4, cases):
        for result in results:
            assert result["moved"], case
            assert result["same"], case
            steps = 6 if case["style"] in ("accumulation", "late all-reduce") else 12
            assert result["windows"] == (steps // 3 - 1 if case.get("enabled", True) else -1), case


CODECS = ["topk+bf16", "int4", "blockrandomk", "powersgd", "terngrad-sum"]


def test_what_arrived_and_what_waits_add_up_to_the_dense_gradient(run_each: RunEach) -> None:
    cases: list[dict[str, object]] = [{"compressor": codec} for codec in CODECS]
    cases += [{"compressor": "topk", "factor": 1.0}, {"compressor": "blockrandomk", "factor": 5.0}]
    for case, results in run_each("replicas_conserve", 4, cases):
        for result in results:
            assert result["cf"] == 8, case
            assert result["wire"] > 1.2, case
            assert 0.5 <= result["dense_bytes"] < 0.51, case  # of its shard, with padding
        assert max(result["error"] for result in results) < 2e-6, case
        assert max(result["waiting"] for result in results) > 0.0, case
