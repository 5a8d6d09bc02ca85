"""The catalogue lists every registered member, and its numbers are right."""

import functools
import json

import pytest
import torch

from gravac.aggregators import AGGREGATORS
from gravac.catalogue import RANKS, CatalogueEntry, catalogue
from gravac.collectives import COLLECTIVES
from gravac.compressors import COMPRESSORS, build
from gravac.memories import MEMORIES
from gravac.policies import POLICIES
from gravac.policies.auto import plans as auto_plans
from gravac_agent.settings import AgentSettings

REGISTRIES = {
    "compressor": COMPRESSORS,
    "aggregator": AGGREGATORS,
    "memory": MEMORIES,
    "collective": COLLECTIVES,
    "policy": POLICIES,
}
NAMES = {(kind, name) for kind, registry in REGISTRIES.items() for name in registry}


@functools.cache
def entries() -> tuple[CatalogueEntry, ...]:
    """Made when a test asks for it, not while tests are collected."""
    return catalogue()


def test_every_registry_is_in_it() -> None:
    assert {(entry.kind, entry.name) for entry in entries()} == NAMES
    assert len(entries()) == len(NAMES)


@pytest.mark.parametrize(
    "name",
    [
        *("topk", "randomk", "randomk-unbiased", "bernoulli", "bernoulli-unbiased", "blockrandomk"),
        *("hardthreshold", "hardthreshold-warmup", "dgc", "redsync-trimmed", "redsync", "sidco"),
        *("scaledsign", "onebit", "terngrad", "terngrad-clipped", "qsgd", "qsgd-elias", "natural", "nuqsgd"),
        *("int8", "int4", "fp16", "bf16", "svd", "atomo", "countsketch", "countsketch-median"),
        *("countsketch-heavy", "topk+int8", "powersgd", "majority", "terngrad-sum"),
        *("nearest", "dither", "dither-subtractive", "blocksign", "chunktopk", "sparseloco"),
    ],
)
def test_each_family_of_the_literature_has_its_member(name: str) -> None:
    assert {("compressor", name), ("aggregator", name)} & NAMES


def test_the_group_auto_is_what_the_default_plan_space_uses() -> None:
    plans = {plan.codec for plan in auto_plans.plans((), AgentSettings().compressor, "adam-aged")[1:]} | {
        "dense"
    }
    texts = {AgentSettings().compressor if codec is None else codec for codec in plans}
    codecs = {name.partition(":")[0] for text in texts for name in text.split("+")}
    auto = {(entry.kind, entry.name) for entry in entries() if entry.group == "auto"}
    assert auto == {("compressor", codec) for codec in codecs} | {
        ("memory", AgentSettings().memory),
        ("policy", AgentSettings().policy),
    }
    assert {entry.kind for entry in entries() if entry.group is None} == {"collective"}


@pytest.mark.parametrize(("kind", "name"), sorted(NAMES))
def test_every_entry_is_complete(kind: str, name: str) -> None:
    (entry,) = (entry for entry in entries() if (entry.kind, entry.name) == (kind, name))
    assert len(entry.summary) > 10
    assert entry.summary.endswith("."), "the first paragraph of the docstring is a sentence"
    assert entry.source
    for cost in entry.costs:
        assert any((cost.payload_bytes, cost.link_bytes)) or cost.held_bytes is not None
    if entry.kind == "compressor":
        assert set(entry.traits) == {
            *("unbiased", "linear", "homogeneous", "fixed_size", "nested", "selector", "projection"),
            *("sync_free", "whole_message"),
        }
        assert len(entry.costs) == 4


def test_it_says_what_makes_a_gpu_wait() -> None:
    free = {(entry.kind, entry.name) for entry in entries() if entry.traits.get("sync_free")}
    fast = {"dense", "bf16", "fp16", "topk", "randomk", "blockrandomk", "mstopk", "int8", "scaledsign"}
    assert free >= {("compressor", name) for name in fast} | {
        ("aggregator", "powersgd"),
        ("collective", "gather"),
    }
    assert not free & {("compressor", "dgc"), ("compressor", "svd")}


def test_it_is_json() -> None:
    text = json.dumps([entry.model_dump(mode="json") for entry in entries()], allow_nan=False)
    assert [CatalogueEntry.model_validate_json(json.dumps(one)) for one in json.loads(text)] == list(
        entries()
    )


def test_numbers() -> None:
    by_name = {(entry.kind, entry.name): entry for entry in entries()}
    topk = by_name["compressor", "topk"]
    assert [(c.numel, c.cf, c.payload_bytes, c.delta) for c in topk.costs[:2]] == [
        (1000, 10, 400 + 66, 0.1),
        (1000, 100, 40 + 12, 0.01),
    ]
    int8 = by_name["compressor", "int8"].costs[3]
    assert (int8.payload_bytes, int8.omega) == (
        build("int8").wire_bytes(2**20, 1.0, torch.float32),
        256 / (4 * 127**2),
    )
    powersgd = by_name["aggregator", "powersgd"].costs[2]
    assert (powersgd.numel, powersgd.payload_bytes, powersgd.reached_cf) == (
        2**20,
        4 * 51 * 2048,
        2**20 / (51 * 2048),
    )
    assert [setting.name for setting in by_name["aggregator", "powersgd"].settings] == ["rank", "saving"]
    assert [setting.name for setting in by_name["compressor", "qsgd"].settings] == ["bits", "norm", "block"]
    for name, expected in {  # 1000 elements, CF 10, 8 ranks
        "gather": (474, 7 * 474),  # with 8 bytes of header
        "all-reduce": (4000, 2 * 7 * 4000 // RANKS),
        # Shards of 128 elements, and nearest of 7 levels: 8 + 2 * 2 + 12 * 4 bytes to each owner, and from each.
        "compressed-all-reduce": (9 * 60, 14 * 60),
        # 13 elements of 125, with packed places: 8 + 52 + 9 bytes to each owner, and from each.
        "owners": (9 * 69, 14 * 69),
        # Each owner's 13 places, as above, and 104 values.
        "shared": (17 + 416, 7 * 17 + 2 * 7 * 416 // RANKS),
    }.items():
        cost = by_name["collective", name].costs[0]
        assert (cost.payload_bytes, cost.link_bytes) == expected, name
    assert by_name["memory", "none"].costs[0].held_bytes == 0
    assert by_name["memory", "residual"].costs[0].held_bytes in (4000, 8000)
