"""A run's step costs what the exchange costs by which it learned."""

from dataclasses import replace

import pytest

from gravac.predict.exchange import volume
from gravac.predict.nominal import NominalJob, link
from gravac_lab.tournament import Run
from gravac_lab.tournament.curves import curve_of
from gravac_lab.tournament.run_steps import chosen_collective, step_seconds

SLOW, ELEMENTS, COMPUTE = link(30e6), 330_000, 0.02


def a_run(plan: str, ranks: int = 4, cf: float = 10.0) -> Run:
    return Run(
        task="lm",
        plan=plan,
        ranks=ranks,
        seed=1,
        steps=300,
        optimizer="sgd",
        elements=ELEMENTS,
        payload_bytes=4 * ELEMENTS / cf,
        curve=curve_of([[1, 2.0], [300, 1.0]]),
        sums={},
    )


def test_a_run_that_learned_from_exact_means_is_not_given_the_time_of_a_compressed_all_reduce() -> None:
    assert volume("nearest:levels=7", ELEMENTS, 10.0, 4, SLOW).collective == "compressed-all-reduce"
    gathered = step_seconds(a_run("nearest:levels=7@10"), SLOW, COMPUTE)
    rounded = step_seconds(a_run("nearest:levels=7@10/residual/compressed-all-reduce"), SLOW, COMPUTE)
    quickest = NominalJob(ELEMENTS, 4, COMPUTE).step("nearest:levels=7", 10.0, SLOW).seconds
    assert rounded == pytest.approx(quickest)
    assert gathered > 1.3 * rounded
    assert gathered == step_seconds(a_run("nearest:levels=7@10//gather"), SLOW, COMPUTE)


@pytest.mark.parametrize(
    ("plan", "codec", "cf"),
    [("bf16@2", "bf16", 2.0), ("topk+bf16@10", "topk+bf16", 10.0), ("dense", "", 1.0)],
)
def test_other_runs_take_the_quickest_collective(plan: str, codec: str, cf: float) -> None:
    quickest = NominalJob(ELEMENTS, 4, COMPUTE).step(codec, cf, SLOW).seconds
    assert step_seconds(a_run(plan, cf=cf), SLOW, COMPUTE) == pytest.approx(quickest)


@pytest.mark.parametrize(
    ("rate", "ranks", "expected"),
    [(30e6, 4, "compressed-all-reduce"), (30e6, 2, "gather"), (1e9, 4, "gather"), (20e9, 4, "all-reduce")],
)
def test_the_collective_that_agents_choose(rate: float, ranks: int, expected: str) -> None:
    run = a_run("dither:levels=7@10/residual/compressed-all-reduce", ranks)
    assert chosen_collective(run, link(rate)) == expected


def test_a_run_that_sends_nothing_only_computes() -> None:
    silent = replace(a_run("alone"), payload_bytes=0.0)
    assert step_seconds(silent, SLOW, COMPUTE) == COMPUTE


def test_a_run_of_several_rounds_has_no_collective_of_its_own() -> None:
    assert chosen_collective(a_run("powersgd@20"), SLOW) is None
    assert step_seconds(a_run("powersgd@20", cf=20.0), SLOW, COMPUTE) > COMPUTE


def test_a_plan_without_a_strength_is_named() -> None:
    with pytest.raises(ValueError, match="has no strength"):
        step_seconds(a_run("topk"), SLOW, COMPUTE)
