"""Link, settings, clock, intake, window: each alone."""

import time

import pytest
import torch

from gravac.kernels import tally
from gravac.signals.spectrum import LADDER, Spectrum
from gravac_agent import Link, SetupError
from gravac_agent.exchange.clock import StepClock
from gravac_agent.exchange.plan import Directive, Plan
from gravac_agent.exchange.step import Outcome
from gravac_agent.exchange.tick import StepSums, Tick
from gravac_agent.network.link import Pacer, parse
from gravac_agent.settings import load
from gravac_agent.windows.intake import Intake
from gravac_agent.windows.window import Row, Window, build_report

PLAN = Plan(Directive(1, "hold", 10.0, 10.0, 0.1), 10.0)


@pytest.mark.parametrize(
    ("text", "bits"),
    [("100mbit", 1e8), ("1gbit", 1e9), ("2.5 Gbit/s", 2.5e9), ("64k", 64e3), ("10Gbps", 1e10)],
)
def test_link_rates(text: str, bits: float) -> None:
    assert parse(text) == Link(bits_per_second=bits)


def test_no_link() -> None:
    assert parse("none") is None
    assert parse("") is None


@pytest.mark.parametrize("text", ["fast", "100", "-1mbit", "0mbit", "1mbyte", "mbit"])
def test_wrong_link_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"link='{text}' is not a rate"):
        parse(text)


def test_pacing_is_serial() -> None:
    pacer = Pacer(Link(bits_per_second=8e6, latency_seconds=0.5))  # a byte a microsecond
    assert pacer.deadline(10.0, 1_000_000) == 11.5
    assert pacer.deadline(10.0, 1_000_000) == 13.0  # waits for the first
    assert pacer.deadline(20.0, 0) == 20.5
    assert Pacer(None).deadline(10.0, 10**9) == 10.0


def test_keywords_beat_environment_beats_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAVAC_WINDOW", "7")
    monkeypatch.setenv("GRAVAC_POLICY", "static:cf=25")
    monkeypatch.setenv("GRAVAC_ENABLED", "false")
    settings = load(window=None)
    assert (settings.window, settings.policy, settings.enabled, settings.compressor) == (
        7,
        "static:cf=25",
        False,
        "topk+bf16",
    )
    assert load(window=9).window == 9


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"window": 0}, "window=0: Input should be greater than or equal to 1"),
        ({"collective": "ring"}, "collective='ring' is unknown; choose one of all-reduce, auto, gather"),
        (
            {"compressor": "dgc", "collective": "shared"},
            "compressor='dgc' is not: choose gather, all-reduce or auto",
        ),
        ({"compressor": "zip"}, "compressor='zip' is unknown"),
        ({"memory": "ram"}, "memory='ram' is unknown"),
        ({"policy": "best"}, "policy='best' is unknown"),
        ({"policy": "static:cf=0.5"}, "cf"),
        ({"link": "fast"}, "link='fast' is not a rate"),
        ({"controller": "ftp://x"}, "must be auto, none, or an address"),
        ({"job": "a b"}, "job='a b'"),
        ({"nonfinite": "ignore"}, "nonfinite='ignore'"),
        ({"colour": 1}, "colour"),
    ],
)
def test_wrong_settings_name_field_value_and_rule(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(SetupError) as error:
        load(**wrong)
    assert message in str(error.value)


def test_misspelt_variables_are_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAVAC_WINDWO", "7")
    with pytest.warns(UserWarning, match="'GRAVAC_WINDWO' is not a setting"):
        load()


def outcome(last_submit_at: float, *activity: tuple[str, float, float]) -> Outcome:
    tick = Tick(StepSums(), PLAN.directive, True)
    return Outcome(tick, last_submit_at, list(activity), 0, 0, None, True, None, 0.0)  # type: ignore[arg-type]


def test_phases_add_up_and_count_only_what_backward_does_not_hide(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = StepClock()
    clock.optimizer_ended()
    now[0] = 101.0
    clock.forward_began()
    now[0] = 110.0
    lap = clock.lap(
        outcome(
            105.0,
            ("compress", 102.0, 104.0),
            ("compress", 104.5, 105.5),
            ("communicate", 105.5, 109.0),
            ("decompress", 109.0, 109.25),
        )
    )
    assert (lap.seconds, lap.data_wait, lap.compress, lap.communicate, lap.decompress) == (
        10.0,
        1.0,
        0.5,
        3.5,
        0.25,
    )
    assert lap.data_wait + lap.compute + lap.compress + lap.communicate + lap.decompress == lap.seconds
    now[0] = 112.0
    assert clock.lap(outcome(111.0)).data_wait == 0.0


def test_samples_are_counted_or_told() -> None:
    intake = Intake()
    intake.forward((torch.ones(16, 3),), {})
    intake.forward((), {"x": torch.ones(8)})
    intake.step_done()
    assert intake.take_samples() == 24
    assert intake.take_samples() == 0
    intake.told = 5
    intake.forward((torch.ones(16, 3),), {})
    intake.step_done()
    assert intake.take_samples() == 5


def test_loss_is_read_one_step_late_and_only_if_finite() -> None:
    intake = Intake()
    assert intake.log_loss(torch.tensor(2.0, requires_grad=True)) is None
    assert intake.log_loss(float("nan")) == 2.0
    assert intake.log_loss(3.0) is None
    assert intake.take_loss() == 3.0
    assert intake.take_loss() is None


def test_report_adds_ranks_and_keeps_levels_apart() -> None:
    clock = StepClock()
    window = Window(4, 200)
    dense = Plan(Directive(1, "explore", 10.0, 40.0, 0.1), 1.0)
    for number in range(6):
        plan = dense if number < 2 else PLAN
        sums = StepSums(
            gradient_sq=1.0, compensated_sq=4.0, sent_sq=2.0, nonfinite=1.0 if number == 5 else 0.0
        )
        window.add(plan, sums, clock.lap(outcome(0.0)), 100, 100 if number < 2 else 20, settled=number > 2)
    window.row.samples = 96
    window.log_loss(2.0)
    other = Row(*window.row.values())
    other.loss_sum, other.seconds = 4.0, 9.0
    report = build_report(window, [window.row, other], {10.0: 0.5}, None, "job", "start", 2)
    assert (report.window, report.first_step, report.last_step, report.cf, report.epoch) == (
        4,
        200,
        205,
        10.0,
        1,
    )
    assert (report.samples, report.dense_bytes, report.payload_bytes) == (192, 1200, 2 * (200 + 80))
    assert report.loss == 3.0
    assert report.nonfinite_steps == 1
    first, second = report.levels
    assert (first.cf, first.steps, first.settled_steps, first.step_seconds_median) == (1.0, 2, 0, None)
    assert (second.cf, second.steps, second.settled_steps, second.payload_bytes) == (10.0, 4, 3, 160)
    assert (second.sums.steps, second.sums.compensated_sq, second.sums.sent_sq) == (3, 12.0, 6.0)
    assert report.ranks[1].step_seconds == 9.0
    fewer = build_report(window, [window.row, other], {10.0: 0.5}, None, "job", "start", 1)
    assert fewer == report.model_copy(update={"ranks": report.ranks[:1]})
    assert report.spread is not None
    assert report.spread.step_seconds[2:] == (9.0, 9.0)
    assert report.spread.step_seconds[0] == round(report.ranks[0].step_seconds, 6)


def test_the_curve_of_a_window_is_that_of_all_ranks_and_steps() -> None:
    """Energies are added before they are divided: a rank with little gradient counts little."""
    mine, theirs = Window(0, 0), Window(0, 0)
    loud, quiet = torch.zeros(100), torch.full((100,), 1e-3)
    loud[:10] = 5.0  # ten elements hold it all
    for x in (loud, loud):
        mine.survey(Spectrum.of(tally(x)).curve())
    theirs.survey(Spectrum.of(tally(quiet)).curve())
    rows = [
        torch.cat((torch.tensor(w.row.values(), dtype=torch.float64), w.curve_sums())) for w in (mine, theirs)
    ]
    curve = mine.curve_of(rows, own=True)
    assert curve is not None
    assert (curve.steps, curve.own, curve.gains[0]) == (2, True, 1.0)
    gain = curve.gains[LADDER.index(10.0)]
    assert gain is not None
    assert 0.999 < gain < 1.0
    assert curve.gains[-1] == pytest.approx(0.1, abs=1e-5)  # one of ten equal ones
    assert Window(0, 0).curve_of(rows, own=True) is None


def test_a_rank_without_a_curve_adds_nothing_to_it() -> None:
    window = Window(0, 0)
    assert float(window.curve_sums().abs().sum()) == 0.0
    assert len(window.curve_sums()) == len(LADDER) + 1
