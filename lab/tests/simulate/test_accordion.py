"""Accordion in the simulator: its rule by hand, its levels, and what a change of level keeps."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

from gravac.memories import Bucket
from gravac_agent.exchange.plan import StepPlan
from gravac_lab.simulate.__main__ import contender
from gravac_lab.simulate.accordion import Accordion, Interval, Rule, parse_accordion
from gravac_lab.simulate.learning import Learner
from gravac_lab.simulate.plans import PlanError, parse
from gravac_lab.simulate.ranks import SimulatedRanks, buckets_in, layers_of
from gravac_lab.simulate.run import learn
from gravac_lab.simulate.tournament import cells
from gravac_lab.tasks import Recipe, make
from gravac_lab.tasks.recipe import seeded

TASK = "logistic:images=digits"
LAYERS = (
    Bucket(0, ("a",), (2,), ((1, 2),)),
    Bucket(1, ("bias",), (3,), ((3,),)),
    Bucket(2, ("b",), (4,), ((2, 2),)),
)


def plan(text: str = "mild=topk@2,strong=topk@50,interval=2") -> str:
    return f"accordion:{text}"


@pytest.mark.parametrize(
    ("before", "now", "rates", "critical"),
    [
        (None, (1.0, 1.0), (1.0, 1.0), "ab"),  # nothing to compare with
        ((4.0, 4.0), (4.0, 2.1), (1.0, 1.0), ""),  # 0 and 0.475
        ((4.0, 4.0), (2.0, 6.0), (1.0, 1.0), "ab"),  # 0.5 is as much as the threshold
        ((4.0, 4.0), (5.9, 6.1), (1.0, 1.0), "b"),  # 0.475 and 0.525, of the earlier norm
        ((4.0, 4.0), (4.0, 4.0), (1.0, 0.1), "ab"),  # the rate drops
        ((4.0, 4.0), (4.0, 4.0), (1.0, 0.5), "ab"),
        ((4.0, 4.0), (4.0, 4.0), (1.0, 0.6), ""),  # a cosine falls by less
        ((4.0, 4.0), (4.0, 4.0), (0.1, 1.0), ""),  # a rate that rises, as in a warm-up
        ((0.0, 4.0), (0.0, 4.0), (1.0, 1.0), "a"),  # no norm to divide by
        ((math.nan, 4.0), (4.0, math.inf), (1.0, 1.0), "ab"),  # a gradient was not finite
    ],
)
def test_the_rule_by_hand(
    before: tuple[float, float] | None, now: tuple[float, float], rates: tuple[float, float], critical: str
) -> None:
    earlier = None if before is None else Interval(dict(zip("ab", before, strict=True)), rates[0])
    found = Rule().critical(earlier, Interval(dict(zip("ab", now, strict=True)), rates[1]))
    assert found == frozenset(critical)


def test_settings_of_the_rule_count() -> None:
    """``drop=0`` is the paper's clause to the letter."""
    before, now = Interval({"a": 4.0}, 1.0), Interval({"a": 3.0}, 0.999)
    assert Rule().critical(before, now) == frozenset()
    assert Rule(drop=0.0).critical(before, now) == {"a"}
    assert Rule(drop=0.0).critical(before, replace(now, rate=1.0)) == frozenset()
    assert Rule(change=0.25).critical(before, now) == {"a"}


def gradients(*layers: float) -> list[list[torch.Tensor]]:
    """Of two ranks, of which one has three times the other's, so that the mean is what was given."""
    return [
        [
            torch.full((sum(bucket.numels),), share * value)
            for bucket, value in zip(LAYERS, layers, strict=True)
        ]
        for share in (0.5, 1.5)
    ]


def cfs(plans: Sequence[StepPlan]) -> list[float]:
    return [one.cf for one in plans]


def test_layers_change_level_at_the_end_of_an_interval() -> None:
    """Sums over two steps: a has 2, 2, 2, 6; b 2, 4, 4, 4. Signs cancel within an interval, vectors stay dense."""
    accordion = Accordion(parse_accordion(plan()), LAYERS)
    found = []
    for a, b in ((1, 1), (1, 1), (3, 2), (-1, 2), (1, 2), (1, 2), (3, 2), (3, 2)):
        found.append(cfs(accordion.plans(1.0)))
        accordion.observe(gradients(a, 9.0, b))
    found.append(cfs(accordion.plans(1.0)))
    mild, a_strong, both = [2.0, 1.0, 2.0], [50.0, 1.0, 2.0], [50.0, 1.0, 50.0]
    assert found == [mild] * 4 + [a_strong] * 2 + [both] * 2 + [[2.0, 1.0, 50.0]]
    assert accordion.strong_share == pytest.approx((2 * 2 / 6 + 2 * 1) / 8)
    for _ in range(2):
        assert cfs(accordion.plans(1.0)) == [2.0, 1.0, 50.0]
        accordion.observe(gradients(3, 9.0, 2))
    assert cfs(accordion.plans(0.1)) == mild


def test_only_the_last_steps_of_an_interval_are_summed() -> None:
    accordion = Accordion(parse_accordion(plan("mild=dense,strong=topk@50,interval=2,summed=1")), LAYERS)
    for a in (1, 1, 9, 1):
        accordion.plans(1.0)
        accordion.observe(gradients(a, 0.0, a))
    assert cfs(accordion.plans(1.0)) == [50.0, 1.0, 50.0]


def matrices() -> Recipe:
    """A task whose model has no vectors."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16, bias=False), nn.ReLU(), nn.Linear(16, 10, bias=False)
        )

    return replace(make(TASK), build_model=seeded(build))


def by_layer(recipe: Recipe, text: str, steps: int, observe: Accordion | None = None) -> Learner:
    names = layers_of(recipe.build_model(1))
    ranks = SimulatedRanks(2, text, seed=1)
    return Learner(recipe, 2, 1, steps, ranks, names, None if observe is None else observe.observe)


def test_with_equal_levels_it_is_the_codec_alone() -> None:
    recipe, chosen = matrices(), parse_accordion(plan("mild=topk@20,strong=topk@20,interval=2"))
    model = recipe.build_model(1)
    accordion = Accordion(chosen, [bucket for bucket, _ in buckets_in(model, layers_of(model))])
    ours, static = by_layer(recipe, "topk", 6, accordion), by_layer(recipe, "topk", 6)
    for _ in range(6):
        step = ours.train(accordion.plans(1.0))
        assert step == static.train(parse("topk@20").plan())
    for param, other, begun in zip(
        ours.model.parameters(), static.model.parameters(), model.parameters(), strict=True
    ):
        assert torch.equal(param, other)
        assert not torch.equal(param, begun)


def test_a_change_of_level_loses_nothing() -> None:
    """One rank: what came out and what waits in the memory are all that went in, though levels change in each step."""
    buckets = [
        LAYERS[0]._replace(numels=(40,), shapes=((4, 10),)),
        LAYERS[2]._replace(number=1, numels=(30,), shapes=((3, 10),)),
    ]
    levels = [parse(text).plan() for text in ("topk@2", "topk@20", "dense")]
    ranks, draw = SimulatedRanks(1, "topk"), torch.Generator().manual_seed(1)
    went_in, came_out = [torch.zeros(40), torch.zeros(30)], [torch.zeros(40), torch.zeros(30)]
    memory = ranks.channels[0].memory
    for step, (one, other) in enumerate([(1, 0), (1, 1), (0, 1), (0, 0), (1, 2)]):
        given = [torch.randn(size, generator=draw) for size in (40, 30)]
        for total, each in zip(went_in, given, strict=True):
            total += each
        ranks.exchange(buckets, [given], [levels[one], levels[other]], step)
        for total, each in zip(came_out, given, strict=True):
            total += each
    state = memory.state_dict()
    assert float(state["a"].norm()) > 1
    assert torch.allclose(came_out[0] + state["a"], went_in[0], atol=1e-5)
    assert "b" not in state  # sent whole at last
    assert torch.allclose(came_out[1], went_in[1], atol=1e-5)


def test_codecs_do_not_differ_between_buckets() -> None:
    other = replace(parse("topk@2").plan(), directive=replace(parse("topk@2").plan().directive, codec=1))
    with pytest.raises(ValueError, match="give each bucket the same codec"):
        SimulatedRanks(1, "topk").exchange(LAYERS[:2], [[]], [parse("topk@2").plan(), other], 0)


@pytest.mark.parametrize("codec", ["topk", "powersgd"])
@pytest.mark.long
def test_a_run_counts_what_each_layer_sends(codec: str) -> None:
    """Two levels cost more than the strong one and less than the mild one; biases of the model are dense."""
    task = "digits:width=8"
    text = plan(f"mild={codec}@4,strong={codec}@40,interval=2,change=0.9")
    row = learn(task, text, 2, 1, 8, points=2)
    mild, strong = (
        learn(task, plan(f"mild={codec}@{cf},strong={codec}@{cf},interval=2"), 2, 1, 2, points=1)
        for cf in (4, 40)
    )
    assert strong["payload_bytes"] < row["payload_bytes"] < mild["payload_bytes"]
    assert 0.0 < row["strong_share"] <= 0.5
    assert (row["plan"], len(row["curve"])) == (text, 2)
    vectors = sum(4 * param.numel() for param in make(task).build_model(1).parameters() if param.dim() < 2)
    assert strong["payload_bytes"] > vectors > 0
    if codec == "topk":
        assert row["sent_bytes"] == pytest.approx(row["payload_bytes"])  # with 2 ranks


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mild=topk@2,strong=topk@50", "has no interval.*for example accordion:mild="),
        ("mild=topk@2", "has no strong and no interval"),
        ("mild=topk@2,strong=topk@50,intervall=30", "'intervall=30' is no setting.*did you mean 'interval'"),
        ("mild=topk,strong=topk@50,interval=30", "names no strength: write topk@10"),
        ("mild=topkk@2,strong=topk@50,interval=30", "topkk.*did you mean.*topk"),
        ("mild=topk@2,strong=dense,interval=30", "strong=dense is no strength: write strong=topk@100"),
        ("mild=alone,strong=topk@50,interval=30", "mild=alone is no strength"),
        ("mild=topk@2,strong=randomk@50,interval=30", "different codecs: choose one"),
        ("mild=topk@50,strong=topk@2,interval=30", "mild=…@50 is stronger than strong=…@2: swap them"),
        ("mild=topk@2,strong=topk@50,interval=0", "interval=0 must be a number of steps, at least 1"),
        ("mild=topk@2,strong=topk@50,interval=ten", "interval=ten must be"),
        ("mild=topk@2,strong=topk@50,interval=10,summed=11", "summed=11 is longer than interval=10"),
        ("mild=topk@2,strong=topk@50,interval=10,change=nan", "change=nan must be a number from 0"),
        ("mild=topk@2,strong=topk@50,interval=10,drop=2", "drop=2 must be a number from 0 to 1"),
        ("mild=topk@2,strong=topk@50,interval=10,interval=2", "interval is there twice"),
        ("mild=topk@2,strong=topk@50,interval=10/residul", "residul.*did you mean.*residual"),
    ],
)
def test_errors_name_the_fix(text: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        list(cells([TASK], [plan(text)], [2], [1], 2))


def test_commas_of_a_codec_belong_to_it() -> None:
    found = parse_accordion(
        "accordion:mild=nearest:levels=7,block=32@8,strong=nearest:levels=7,block=32@20,interval=5/momentum"
    )
    assert found.mild.compressor == found.strong.compressor == "nearest:levels=7,block=32"
    assert (found.mild.cf, found.strong.cf, found.interval, found.summed) == (8.0, 20.0, 5, 5)
    assert found.strong.memory == found.mild.memory == "momentum"


def test_it_is_no_plan_of_gravac_simulate() -> None:
    with pytest.raises(PlanError, match="run it with gravac bench tournament"):
        contender(plan(), "topk")
