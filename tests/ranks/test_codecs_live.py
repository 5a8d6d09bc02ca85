"""Every registered codec of fixed size in a real job; the others are refused with a clear error."""

import math

import pytest
from ranks.harness import RunRanks

from gravac.compressors import COMPRESSORS, build

pytestmark = pytest.mark.distributed

FIXED = [name for name in sorted(COMPRESSORS) if build(name).traits.fixed_size]
HALVES = {"bf16", "fp16"}  # 2x is all they do


@pytest.mark.parametrize("world", [2, 3])
def test_every_codec_trains_and_ranks_stay_equal(run_ranks: RunRanks, world: int) -> None:
    results = run_ranks("every_codec", world, seconds=280, names=FIXED)
    for name in FIXED:
        ours = [result[name] for result in results]
        assert len({one["parameters"] for one in ours}) == 1, name
        assert all(one["failed"] == 0 for one in ours), name
        assert all(math.isfinite(one["loss"]) for one in ours), name
        if name != "dense":
            assert ours[0]["saved"] > (1.5 if name in HALVES else 2.0), (name, ours[0]["saved"])
