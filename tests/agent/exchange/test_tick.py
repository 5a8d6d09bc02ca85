"""The tick: ranks agree or see that they do not, and rank 0's directive and the means arrive."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_agent.exchange.tick import StepSums, TickCodec

EXPLORE = Directive(3, "explore", 10.0, 40.0, 0.5)


def test_a_flag_of_a_slow_step_arrives_with_a_gradient_that_is_not_finite() -> None:
    bad = StepSums(gradient_sq=float("nan"), nonfinite=1.0, slow=1.0)
    plan = StepPlan(EXPLORE, 10.0)
    (tick, _) = tick_of([plan, plan], EXPLORE, [StepSums(slow=1.0), bad])
    assert tick.sums == StepSums(nonfinite=1.0, slow=2.0)  # type: ignore[attr-defined]


plans = st.builds(
    StepPlan,
    st.builds(
        Directive,
        st.integers(0, 2**40),
        st.sampled_from(["warmup", "explore", "hold", "fallback"]),
        st.floats(1, 1e6),
        st.floats(1, 1e6),
        st.floats(0, 1),
        st.integers(0, 64),
        st.integers(0, 1_000_000),
        st.floats(0, 1e9),
        st.integers(0, 64),
        st.floats(1, 1e9),
    ),
    st.floats(1, 1e6),
)


def tick_of(announced: list[StepPlan], directive: Directive, sums: list[StepSums]) -> list[object]:
    """What each rank unpacks when these ranks announce these plans."""
    world = len(announced)
    codecs = [TickCodec(rank, world) for rank in range(world)]
    vectors = [
        codec.pack(one, directive, plan.fingerprint("setup"))
        for codec, one, plan in zip(codecs, sums, announced, strict=True)
    ]
    assert all(vector.numel() == codecs[0].size for vector in vectors)
    total = torch.stack(vectors).sum(0)
    return [codec.unpack(total) for codec in codecs]


@given(plan=plans, world=st.integers(1, 40))
def test_equal_plans_agree_and_the_directive_of_rank_0_arrives(plan: StepPlan, world: int) -> None:
    ticks = tick_of([plan] * world, plan.directive, [StepSums(gradient_sq=2.0, failed=1.0)] * world)
    for tick in ticks:
        assert tick.agreed  # type: ignore[attr-defined]
        assert tick.directive == plan.directive  # type: ignore[attr-defined]
        assert tick.sums == StepSums(gradient_sq=2.0 * world, failed=world)  # type: ignore[attr-defined]


@given(plan=plans, other=plans, world=st.integers(2, 40), data=st.data())
def test_one_other_plan_is_seen_by_all(
    plan: StepPlan, other: StepPlan, world: int, data: st.DataObject
) -> None:
    if plan == other:
        return
    announced = [plan] * world
    announced[data.draw(st.integers(0, world - 1))] = other
    ticks = tick_of(announced, plan.directive, [StepSums()] * world)
    assert not any(tick.agreed for tick in ticks)  # type: ignore[attr-defined]


def test_a_non_finite_rank_adds_its_flag_but_not_its_energies() -> None:
    bad = StepSums(gradient_sq=float("inf"), compensated_sq=float("nan"), nonfinite=1.0)
    plan = StepPlan(EXPLORE, 10.0)
    (tick, _) = tick_of([plan, plan], EXPLORE, [StepSums(gradient_sq=5.0), bad])
    assert tick.sums == StepSums(gradient_sq=5.0, nonfinite=1.0)  # type: ignore[attr-defined]


@given(plan=plans, world=st.integers(1, 40), count=st.integers(0, 40))
def test_the_tick_carries_the_mean_of_the_aggregators_figures(plan: StepPlan, world: int, count: int) -> None:
    """However many there are, they disturb neither the directive nor the agreement."""
    codecs = [TickCodec(rank, world) for rank in range(world)]
    vectors = [
        codec.pack(
            StepSums(sent_sq=1.0), plan.directive, plan.fingerprint("setup"), [float(codec.rank)] * count
        )
        for codec in codecs
    ]
    tick = codecs[-1].unpack(torch.stack(vectors).sum(0))
    assert tick.means == ((world - 1) / 2,) * count
    assert tick.agreed
    assert tick.directive == plan.directive
    assert tick.sums == StepSums(sent_sq=world)
