"""Parameters without an element, in buckets that have some, go through every codec and memory."""

import pytest
import torch

from gravac.aggregators import AGGREGATORS
from gravac.memories import Bucket, build
from tests.support.maths import aggregator_checks as checks
from tests.support.maths.members import texts, ways
from tests.support.maths.memory_steps import ALL, offers, residuals, step

WAYS = ways("topk", "nearest:levels=7")
EMPTY = (
    checks.bucket(0, (0, 5), (12, 20), (0,), (12,), (3, 0, 2)),
    checks.bucket(1, (7,), (0,)),
)
LAYOUT = [Bucket(one.number, one.names, one.numels, one.shapes) for one in EMPTY]


@pytest.mark.parametrize("text", [*texts(), *sorted(AGGREGATORS), *WAYS])
def test_a_codec_takes_parameters_without_an_element(text: str) -> None:
    ranks = checks.run(2, text, buckets=EMPTY)
    for one, two in zip(*ranks, strict=True):
        for bucket, mine, theirs in zip(EMPTY, one, two, strict=True):
            assert mine.mean.shape == (sum(bucket.numels),)
            assert bool(mine.mean.isfinite().all())
            assert torch.equal(mine.mean, theirs.mean)


@pytest.mark.parametrize("text", ALL)
def test_a_memory_takes_parameters_without_an_element(text: str) -> None:
    memory = build(text)
    numels = {name: numel for one in LAYOUT for name, numel in zip(one.names, one.numels, strict=True)}
    for number in range(4):
        generator = torch.Generator().manual_seed(number)
        grads = {name: torch.randn(numel, generator=generator) for name, numel in numels.items()}
        step(memory, LAYOUT, grads, number, cf=1.0 if number == 3 else 5.0)
    state = memory.state_dict()
    again = build(text)
    again.load_state_dict(state)
    assert all(bool(residual.isfinite().all()) for residual in residuals(again).values())
    assert offers(again, LAYOUT).keys() == numels.keys()
