"""Gradients other than dense float32: P10 in float16, complex and sparse ones, and buckets that cannot be encoded."""

import math

import pytest

from gravac.aggregators import AGGREGATORS
from gravac.compressors import COMPRESSORS
from gravac.memories import MEMORIES
from tests.support.ranks.harness import RunEach, RunRanks
from tests.support.streams.codecs import fast

pytestmark = pytest.mark.distributed

NARROW = [
    {"size": 2000.0, "steps": 50},
    {"size": 20000.0, "steps": 15},
    {"size": 20000.0, "steps": 15, "compressor": "topk"},
    {"size": 20000.0, "steps": 15, "compressor": "randomk"},  # all-reduced, in float16
    {
        "size": 20000.0,
        "steps": 15,
        "compressor": "randomk-unbiased",
    },  # decodes to 100 times what it was given
    {"size": 20000.0, "steps": 15, "compressor": "powersgd:rank=1", "memory": "partial:beta=0.3"},
    {"size": 20000.0, "steps": 15, "memory": "conef:codec=dense"},
    {"size": 20000.0, "steps": 20, "dense_at": 10},
    {"size": 20000.0, "steps": 20, "dense_at": 10, "memory": "partial:beta=0.3"},
]


def test_what_does_not_fit_float16_stays_in_the_memory(run_each: RunEach) -> None:
    """Gradients that plain DDP trains on reach infinity in gradient + residual at CF 100."""
    for case, results in run_each("narrow", 3, NARROW):
        for result in results:
            assert result["buckets"] >= 3, case
            assert result["finite"], case
            assert result["skipped"] == 0, case
            assert result["applied"] == results[0]["applied"], case
            # Of what came in. float16 rounds by 5e-4 what is sent: with the unbiased codec that is 100 times as much.
            assert result["worst"] < (0.1 if "unbiased" in str(case) else 2e-3), case
        assert results[0]["largest"] > 20000, case  # it really came near the end
        assert results[0]["notes"] == 1, case


def test_a_mean_that_overflows_is_a_non_finite_step(run_ranks: RunRanks) -> None:
    for result in run_ranks("overflow_of_the_mean", 3):
        assert not result["plain"]
        assert result["agent"]
        assert result["kept"]
        assert result["counted"] == 1


def test_complex_gradients_are_compressed_and_sparse_ones_are_not(run_each: RunEach) -> None:
    cases = [
        {"policy": "dense"},
        {"policy": "static:cf=10"},
        {"policy": "static:cf=10", "compressor": "powersgd"},
    ]
    for case, results in run_each("mixed_kinds", 3, cases):
        compressed = case["policy"] != "dense"
        for result in results:
            assert result["buckets"] >= 5, case
            assert result["failed"] == 0, case
            assert result["agent"] == results[0]["agent"], case
            assert (result["agent"] == result["plain"]) != compressed, case
            assert result["resumed"] == result["agent"], case
            assert result["words"][0] == result["words"][1], case  # to the bit
            assert result["off"] < 0.5, case  # frozen parameters would be at 1
            assert result["pairs"] == (2 * 64 * 64 if compressed else 0), case
            assert (result["saved"] > 2) == compressed, case
        assert results[0]["notes"] == 1, case


def test_a_bucket_that_keeps_failing_goes_dense_on_all_ranks(run_ranks: RunRanks) -> None:
    results = run_ranks("keeps_failing", 3)
    for result in results:
        assert result["parameters"] == results[0]["parameters"]
        assert result["finite"]
        assert result["buckets"] >= 3
        assert result["failed"] == 1 + 3
        assert not any(result["residuals"])
        assert result["others_residuals"] > 0
        assert result["sent"][7] < result["sent"][8] == result["sent"][13]  # steps 5, 6 and 7 failed
        assert result["sent"] == results[0]["sent"]
        assert result["late"] < result["sent"][13]
    assert results[0]["said"] == 1


def test_a_memory_that_fails_in_dense_steps_is_given_up_on_all_ranks(run_each: RunEach) -> None:
    cases = [
        {"method": "compensate"},
        {"method": "update", "memory": "partial:beta=0.3"},
        {"method": "compensate", "memory": "momentum:momentum=0.5"},
        {"method": "update", "memory": "conef-sketch"},
    ]
    for case, results in run_each("memory_fails", 3, cases):
        for rank, result in enumerate(results):
            assert result["parameters"] == results[0]["parameters"], case
            assert result["failed"] == 3 + 3, case  # compressed, then dense
            assert result["errors"] == ([5, 6, 7, 8, 9, 10] if rank == 1 else []), case
            # From then on the bucket's gradients are those of plain DDP, bit for bit; the others are compressed.
            assert result["same"][11:] == [[True, False]] * 3, case
            assert result["held"] == [False, True], case
        assert results[0]["said"] == [1, 1], case


def test_a_bucket_that_a_rank_cannot_decode_goes_dense_in_the_same_step(run_each: RunEach) -> None:
    cases = [
        {"culprits": [1], "compressor": "topk"},
        {"culprits": [0, 1, 2], "compressor": "topk"},
        {"culprits": [2], "compressor": "topk", "memory": "partial:beta=0.3"},  # works with a draft
    ]
    for case, results in run_each("cannot_decode", 3, cases):
        for rank, result in enumerate(results):
            target, layout = result["layout"]
            assert layout[0] == target, case
            assert len(layout) > 2, case
            assert len(result["hits"]) == (rank in case["culprits"]), "tried once"
            assert result["parameters"] == results[0]["parameters"], case
            # The bucket's gradients are those of plain DDP, bit for bit; the others are compressed.
            compressed = [one for one in result["same"] if one[0]]
            assert len(compressed) >= 10, case
            assert compressed == [[True, True, False]] * len(compressed), case
            assert result["sent"] == results[0]["sent"], case
            assert result["residuals"] == [False, True], case
        assert results[0]["said"] == 1, case


def test_parameters_without_an_element_change_nothing(run_each: RunEach) -> None:
    cases = [
        {"compressor": "topk+bf16"},
        {"compressor": "hardthreshold", "memory": "conef-sketch"},
        {"compressor": "powersgd", "memory": "momentum:momentum=0.5"},
        {"compressor": "nearest:levels=7,coding=huffman", "policy": "auto"},
    ]
    for case, results in run_each("without_elements", 2, cases):
        for result in results:
            assert result["hollow failed"] == 0, case
            assert 0 in result["hollow sizes"], case
            assert 0 not in result["full sizes"], case
            assert result["hollow"] == results[0]["hollow"], case
            # Buckets are grouped alike, and elements are sent alike.
            assert [size for size in result["hollow sizes"] if size] == result["full sizes"], case
            assert result["hollow saved"] == pytest.approx(result["full saved"], rel=0.01), case


CELLS = [
    *([codec, "residual"] for codec in (*sorted(COMPRESSORS), *sorted(AGGREGATORS))),
    *([codec, memory] for memory in sorted(MEMORIES) for codec in ("topk+bf16", "qsgd", "powersgd")),
]
"""Every codec with the default memory, and every memory with a codec of each kind."""
DTYPES = [
    {"default": default, "model": model}
    for default in ("float32", "float64", "bfloat16")
    for model in dict.fromkeys(("float32", default))
]


def test_every_codec_and_memory_under_every_default_dtype(run_each: RunEach) -> None:
    """What ``torch.set_default_dtype`` says changes no bit of a model that states its own dtype."""
    found = run_each("any_default_dtype", 2, [case | {"cells": CELLS} for case in DTYPES])
    for case, results in found:
        assert results[0]["buckets"] == results[1]["buckets"] > 1
        for rank, cell in ((rank, " ".join(cell)) for rank in (0, 1) for cell in CELLS):
            where = (case["default"], case["model"], cell)
            ours, control = results[rank]["cells"][cell], found[0][1][rank]["cells"][cell]
            assert ours["parameters"] == results[0]["cells"][cell]["parameters"], where
            assert ours["failed"] == 0, where
            assert ours["compressed"], where
            if case["model"] == "float32":
                assert ours == control, where
            else:  # a float64 model rounds otherwise, a bfloat16 one by 2^-8 of each parameter
                within = 0.01 if case["model"] == "float64" else 0.05
                assert math.isclose(ours["loss"], control["loss"], rel_tol=within), where


def test_every_codec_under_another_default_device(run_each: RunEach) -> None:
    """What ``torch.set_default_device`` says changes no bit: all that is made names its device."""
    every = [*COMPRESSORS.names(), "topk+bf16", "topk+twobit", *AGGREGATORS.names()]
    cases = [{"streams": False, "codecs": every}, {"streams": True, "codecs": list(fast())}]
    for case, ranks in run_each("any_default_device", 2, cases):
        for rank in ranks:
            assert rank["meta"] == rank["None"], case
            assert not any(failed for _, failed in rank["meta"].values()), rank
