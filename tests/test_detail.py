"""The steps of a window one by one: a trace of real ranks that listed them, and what may not be read."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from gravac.protocol import MAX_LISTED_STEPS, STEP_COLUMNS, StepDetail, WindowReport
from gravac.traces import read_trace

TRACE = Path(__file__).parent / "traces/mlp-steps.jsonl.gz"
LISTED, SPOILT = 6, 124
"""As ``tools/record_traces.py`` recorded it: the newest 6 steps of windows of 10; one gradient was NaN."""


@pytest.fixture(scope="module")
def windows() -> list[WindowReport]:
    return [line.record for line in read_trace(TRACE) if isinstance(line.record, WindowReport)]


def detail(window: WindowReport) -> StepDetail:
    assert window.steps is not None
    return window.steps


def test_the_newest_steps_of_every_window_are_listed(windows: list[WindowReport]) -> None:
    assert len(windows) == 20
    for window in windows:
        assert detail(window).first_step == window.last_step - LISTED + 1
        assert len(detail(window).epoch) == LISTED


def test_steps_agree_with_their_window(windows: list[WindowReport]) -> None:
    """What a window's sums say of the levels all of whose steps are listed, the steps add up to."""
    compared = 0
    for window in windows:
        steps = detail(window)
        assert (steps.epoch[-1], steps.cf[-1]) == (window.epoch, window.cf)
        assert sum(steps.payload_bytes) <= window.payload_bytes
        assert sum(steps.seconds) <= window.seconds + 1e-5
        for level in window.levels:
            at = [i for i in range(LISTED) if (steps.epoch[i], steps.cf[i]) == (level.epoch, level.cf)]
            if len(at) < level.steps:
                continue
            compared += 1
            assert sum(steps.payload_bytes[i] for i in at) == level.payload_bytes
            for name in ("gradient_sq", "compensated_sq", "sent_sq", "candidate_sq", "residual_sq"):
                listed = sum(getattr(steps, name)[i] or 0.0 for i in at)
                assert listed == pytest.approx(getattr(level.sums, name), rel=1e-12), name
    assert compared >= 2, "an exploring window sends its candidate only for a few steps"


def test_phases_are_all_of_a_step(windows: list[WindowReport]) -> None:
    for window in windows:
        steps = detail(window)
        phases = zip(
            steps.data_wait, steps.compute, steps.compress, steps.communicate, steps.decompress, strict=True
        )
        assert [sum(each) for each in phases] == pytest.approx(steps.seconds, abs=3e-6)
        assert min(steps.seconds) > 0


def test_compressed_steps_send_less_and_keep_part(windows: list[WindowReport]) -> None:
    dense, packed = [], []
    for window in windows:
        steps = detail(window)
        for cf, payload, p_sq, sent in zip(
            steps.cf, steps.payload_bytes, steps.compensated_sq, steps.sent_sq, strict=True
        ):
            (dense if cf == 1 else packed).append(payload)
            if p_sq is not None and sent is not None:
                assert sent == pytest.approx(p_sq) if cf == 1 else 0 < sent < p_sq
    assert max(packed) < min(dense) / 8


def test_a_step_that_is_not_finite_has_no_norms(windows: list[WindowReport]) -> None:
    (window,) = (window for window in windows if window.nonfinite_steps)
    at = SPOILT - detail(window).first_step
    assert detail(window).nonfinite_ranks == tuple(int(i == at) for i in range(LISTED))
    assert [value is None for value in detail(window).sent_sq] == [i == at for i in range(LISTED)]


def one(**changes: object) -> dict[str, object]:
    return {"first_step": 0, **dict.fromkeys(STEP_COLUMNS, (1,)), "cf": (1.0,), **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cf": (1.0, 2.0)}, "cf: every column needs a value for each step; it has 2 values, epoch has 1"),
        ({"sent_sq": (-1.0,)}, "sent_sq"),
        ({"payload_bytes": ()}, "payload_bytes"),
        (dict.fromkeys(STEP_COLUMNS, (1,) * (MAX_LISTED_STEPS + 1)), "at most 1024"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], words: str) -> None:
    StepDetail.model_validate(one())
    with pytest.raises(ValidationError, match=words):
        StepDetail.model_validate(one(**changes))
