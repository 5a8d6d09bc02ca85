"""Dense ranks learn what one process learns from all batches."""

from dataclasses import replace

import pytest

from gravac_lab.simulate.learning import Learner
from gravac_lab.simulate.plans import parse
from gravac_lab.simulate.ranks import SimulatedRanks, buckets_of
from gravac_lab.tasks import Recipe, make
from lab.tests.simulate.test_learning import plainly_trained


def learner(recipe: Recipe, plan: str, ranks: int, steps: int) -> Learner:
    chosen = parse(plan)
    simulated = SimulatedRanks(ranks, chosen.compressor or "topk", chosen.memory, seed=1)
    return Learner(recipe, ranks, 1, steps, simulated)


@pytest.mark.parametrize("ranks", [1, 2])
def test_dense_ranks_learn_what_one_process_learns_from_all_batches(ranks: int) -> None:
    """Several buckets, clipping, a schedule."""
    recipe = replace(make("digits:width=8"), bucket_mb=0.01)
    simulated = learner(recipe, "dense", ranks, 6)
    assert len(buckets_of(simulated.model, recipe.bucket_mb)) >= 4
    for _ in range(6):
        simulated.train(parse("dense").plan())
    begun = recipe.build_model(1).parameters()
    for ours, theirs, first in zip(
        simulated.model.parameters(), plainly_trained(recipe, ranks, 6), begun, strict=True
    ):
        moved = (theirs - first).abs().max()
        assert moved > 0
        assert (ours - theirs).abs().max() <= 1e-3 * moved
