"""Advice: which plan is worth it, by the margin, the noise of the gradient, and what a job may send."""

from collections.abc import Iterator
from typing import Any

import pytest

from gravac.policies.base import Plan
from gravac.predict.advice import advise, usual_plans
from gravac.predict.timemodel import StepTime
from tests.support.efficiencies import fixed_efficiencies


@pytest.fixture(autouse=True, scope="module")
def fixed_table() -> Iterator[None]:
    with fixed_efficiencies():
        yield


def step(seconds: float) -> tuple[StepTime, float]:
    return StepTime(compute=seconds, compress=0.0, exposed=0.0, decompress=0.0), 1e6 * seconds


def test_a_gain_within_the_margin_is_not_worth_it() -> None:
    """And a codec of unknown efficiency is never advised, however fast."""
    plans = (Plan("bf16", 2.0), Plan("threshold", 1000.0))

    def steps(codec: str, cf: float, kind: str) -> tuple[StepTime, float]:
        return step({"dense": 1.0, "bf16": 0.97, "threshold": 0.1}[codec])

    near = advise(plans, steps, "sgd", 0.02, margin=0.05, ranks=4)
    assert near.chosen.label == "dense"
    assert "bf16 (16 bits), is predicted to gain 3.1 %, too little to count" in near.finding.sentence
    assert [option.label for option in near.options] == ["dense", "bf16"]
    assert advise(plans, steps, "sgd", 0.02, margin=0.02, ranks=4).chosen.label == "bf16"


def test_the_noise_of_the_gradient_and_the_ranks_count() -> None:
    plans = (Plan("topk+bf16", 25.0), Plan("dither:levels=3", 17.3))

    def efficiencies(**job: Any) -> list[float]:
        return [
            option.efficiency for option in advise(plans, lambda *_: step(1.0), "sgd", 0.02, **job).options
        ]

    usual, noisy, few = (
        efficiencies(ranks=4),
        efficiencies(ranks=4, confirmed=0.013),
        efficiencies(ranks=2),
    )
    for plain, found in zip(usual, noisy, strict=True):
        assert 1.0 - found == pytest.approx(0.1 * (1.0 - plain))
    assert few[:2] == usual[:2]
    assert 1.0 - few[2] == pytest.approx(4.0 * (1.0 - usual[2])), "random rounding averages out over ranks"


def test_the_plans_are_those_of_auto_and_of_the_jobs_compressor() -> None:
    usual = usual_plans("dgc")
    assert {Plan("dgc", 100.0), Plan("nearest:levels=7", 10.1), Plan("topk+bf16", 100.0)} <= set(usual)
    assert set(usual_plans()) < set(usual)
    assert all(plan.codec and plan.cf > 1 for plan in usual)
