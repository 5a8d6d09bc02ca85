"""Plans for people: which of a decision's candidates are shown first, and why another one is not in force."""

from gravac.policies import parse
from gravac.protocol import Candidate, Decision, PlanCost
from gravac_controller.views.plans import plan_views
from tools.harness.cluster import job_spec

JOB = job_spec(parse("auto").spec(), compressor="topk+bf16")


def row(codec: str | None, cf: float, verdict: str, **known: float | int) -> Candidate:
    blank = dict.fromkeys(("gain", "samples_per_second", "useful_samples_per_second", "window"))
    return Candidate.model_validate({**blank, "cf": cf, "codec": codec, "verdict": verdict, **known})


def measured(codec: str | None, cf: float, verdict: str, rate: float, efficiency: float) -> Candidate:
    useful = rate * efficiency
    return row(
        codec,
        cf,
        verdict,
        samples_per_second=rate,
        useful_samples_per_second=useful,
        window=3,
        efficiency=efficiency,
    )


def decision(*rows: Candidate, codec: str | None, cf: float, epsilon: float = 0.0) -> Decision:
    return Decision(
        window=4,
        epoch=2,
        phase="hold",
        cf_minimum=cf,
        cf_candidate=cf,
        codec=codec,
        epsilon=epsilon,
        rule="saturated",
        reason="because",
        candidates=rows,
    )


def test_the_plan_in_force_those_measured_and_the_next_three_come_first() -> None:
    rows = (
        measured(None, 1.0, "passed", 40.0, 1.0),
        row("bf16", 2.0, "untried", efficiency=1.0, predicted_samples_per_second=60.0),
        row("int8", 3.9, "untried", efficiency=1.0, predicted_samples_per_second=90.0),
        row("nearest:levels=39", 5.7, "untried", efficiency=0.99, predicted_samples_per_second=120.0),
        row("nearest:levels=15", 7.5, "untried", efficiency=0.99, predicted_samples_per_second=150.0),
        row("nearest:levels=3", 17.3, "too_strong", efficiency=0.9, predicted_samples_per_second=250.0),
        measured("nearest:levels=7", 10.1, "chosen", 200.0, 0.99),
        measured("nearest:levels=2", 25.6, "too_strong", 300.0, 0.5),
    )
    views = plan_views(decision(*rows, codec="nearest:levels=7", cf=10.1), JOB)
    assert [view.words for view in views if view.notable] == [
        *("7 levels", "signs", "dense", "15 levels", "39 levels", "8 bits"),
    ]
    assert [view.words for view in views if not view.notable] == ["16 bits", "3 levels"]
    assert views == plan_views(decision(*reversed(rows), codec="nearest:levels=7", cf=10.1), JOB)
    why = {view.words: view.why for view in views}
    assert why["7 levels"] == "in force"
    assert why["dense"] == "measured: 0.20 times the useful throughput of the one in force"
    assert why["8 bits"] == "predicted: 0.45 times the useful throughput of the one in force"
    assert why["signs"] == "loses 50 % of the progress of a step, too much"
    assert why["3 levels"] == "is expected to lose 10 % of the progress of a step, too much"


def test_a_policy_by_gains_says_which_gain_was_too_low() -> None:
    rows = (
        row(None, 1.0, "passed", gain=1.0, useful_samples_per_second=50.0, samples_per_second=50.0, window=0),
        row(
            None,
            10.0,
            "chosen",
            gain=0.6,
            useful_samples_per_second=175.0,
            samples_per_second=291.0,
            window=2,
        ),
        row(
            None,
            20.0,
            "too_strong",
            gain=0.2,
            useful_samples_per_second=80.0,
            samples_per_second=400.0,
            window=3,
        ),
        row(None, 40.0, "untried"),
    )
    views = plan_views(
        decision(*rows, codec=None, cf=10.0, epsilon=0.3), JOB.model_copy(update={"compressor": "topk"})
    )
    assert [view.words for view in views] == ["largest 10 %", "largest 5 %", "dense", "largest 2.5 %"]
    assert all(view.notable for view in views)
    assert [view.why for view in views[1:]] == [
        "its gain of 0.20 is below ε 0.30",
        "measured: 0.29 times the useful throughput of the one in force",
        "not measured",
    ]


def test_a_plan_out_of_the_bound_is_not_shown_as_one_that_could_be_held() -> None:
    """``auto`` tries some of them, and holds none unless a window shows that it keeps the bound after all."""
    rows = (
        measured(None, 1.0, "chosen", 40.0, 1.0),
        row("nearest:levels=7", 10.1, "untried", efficiency=0.965, predicted_samples_per_second=250.0),
        row("nearest:levels=15", 7.5, "untried", efficiency=0.98, predicted_samples_per_second=150.0),
    )
    for accepted, says in ((0.02, "is expected to lose 3.5 %"), (0.04, "predicted: 6.03 times")):
        policy = parse(f"auto:bound={accepted}").spec()
        views = plan_views(decision(*rows, codec=None, cf=1.0), JOB.model_copy(update={"policy": policy}))
        why = {view.words: view.why for view in views}
        assert says in why["7 levels"]
        assert why["15 levels"].startswith("predicted: 3.67 times")
    assert plan_views(decision(*rows, codec=None, cf=1.0), JOB)[1].why == (
        "is expected to lose 3.5 % of the progress of a step, too much unless a trial shows less"
    )


def test_dense_is_in_force_whatever_the_codec() -> None:
    rows = (measured(None, 1.0, "chosen", 40.0, 1.0), row("bf16", 2.0, "untried", efficiency=1.0))
    dense, other = plan_views(decision(*rows, codec=None, cf=1.0), JOB)
    assert (dense.why, other.why) == ("in force", "not measured")


def test_the_strength_of_a_plan_is_its_bytes_as_the_job_registered_them() -> None:
    costs = [
        PlanCost(codec=codec, cf=cf, payload_bytes=nbytes, link_bytes=3.0 * nbytes, messages=2.0)
        for codec, cf, nbytes in ((None, 1.0, 12_300), (None, 25.0, 300), ("topk+twobit", 36.0, 100))
    ]
    rows = (
        measured(None, 1.0, "chosen", 40.0, 1.0),
        row(None, 25.0, "untried", efficiency=0.99),
        row("topk+twobit", 36.0, "untried", efficiency=0.99),
        row("bf16", 2.0, "untried", efficiency=1.0),
    )
    job = JOB.model_copy(update={"plans": tuple(costs)})
    views = plan_views(decision(*rows, codec=None, cf=1.0), job)
    assert {view.words: view.wire_cf for view in views} == {
        "dense": 1.0,
        "largest 4 %, 16 bits": 41.0,
        "largest 2.78 %, 2 bits": 123.0,
        "16 bits": None,
    }
