"""What a rank measures over a window: times, samples, loss."""

import time

import pytest
import torch

from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_agent.exchange.step import StepResult
from gravac_agent.exchange.tick import StepSums, Tick
from gravac_agent.windows.meters import (
    StepClock,
    TrainerInput,
)

PLAN = StepPlan(Directive(1, "hold", 10.0, 10.0, 0.1), 10.0)


def result(last_submit_at: float, *activity: tuple[str, float, float]) -> StepResult:
    tick = Tick(StepSums(), PLAN.directive, True)
    return StepResult(tick, last_submit_at, list(activity), 0, 0, None, True, None, 0.0)  # type: ignore[arg-type]


def test_phases_add_up_and_count_only_what_backward_does_not_hide(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = StepClock()
    clock.optimizer_ended()
    now[0] = 101.0
    clock.forward_began()
    now[0] = 110.0
    times = clock.end_step(
        result(
            105.0,
            ("compress", 102.0, 104.0),
            ("compress", 104.5, 105.5),
            ("communicate", 105.5, 109.0),
            ("decompress", 109.0, 109.25),
        )
    )
    assert (times.seconds, times.data_wait, times.compress, times.communicate, times.decompress) == (
        10.0,
        1.0,
        0.5,
        3.5,
        0.25,
    )
    assert (
        times.data_wait + times.compute + times.compress + times.communicate + times.decompress
        == times.seconds
    )
    now[0] = 112.0
    assert clock.end_step(result(111.0)).data_wait == 0.0


def test_a_plan_answers_for_its_exchange_and_not_for_what_the_trainer_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither for a pause between two steps nor for a long forward, as where the trainer compiles."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = StepClock()

    def seconds(*, pause: float = 0.0, compute: float = 1.0, hidden: float = 0.0, wait: float = 0.5) -> float:
        clock.optimizer_ended()
        now[0] += pause
        clock.forward_began()
        began = now[0]
        now[0] += compute
        submitted = now[0]
        now[0] += wait
        done = [("compress", began, began + hidden), ("communicate", submitted, now[0])]
        return clock.plan_seconds(clock.end_step(result(submitted, *done)))

    assert seconds(compute=60.0) == 0.5, "the first step compiles, and no usual time is known"
    for _ in range(5):
        assert seconds() == 1.5
    assert seconds(pause=100.0) == 1.5
    assert seconds(compute=30.0) == 1.5
    assert seconds(compute=30.0) == 1.5, "twice in a row"
    assert seconds(wait=9.0) == 10.0
    assert seconds(compute=30.0, hidden=20.0) == 21.5, "encoding has slowed backward"


def test_samples_are_counted_or_logged() -> None:
    trainer = TrainerInput()
    trainer.forward((torch.ones(16, 3),), {})
    trainer.forward((), {"x": torch.ones(8)})
    trainer.end_step()
    assert trainer.pop_samples() == 24
    assert trainer.pop_samples() == 0
    trainer.samples_per_step = 5
    trainer.forward((torch.ones(16, 3),), {})
    trainer.end_step()
    assert trainer.pop_samples() == 5


def test_samples_are_counted_in_a_batch_that_is_passed_as_one() -> None:
    """As Lightning passes it: ``(batch, batch_idx)``, where a batch is a list or a mapping."""
    trainer = TrainerInput()
    trainer.forward(([torch.ones(16, 3), torch.ones(7)], 3), {})
    trainer.forward(({"name": "a", "x": {"y": (torch.ones(8),)}}, 3), {})
    trainer.forward(("text", 3), {})
    trainer.end_step()
    assert trainer.pop_samples() == 24


def test_loss_is_read_one_step_late_and_only_if_finite() -> None:
    trainer = TrainerInput()
    assert trainer.log_loss(torch.tensor(2.0, requires_grad=True)) is None
    assert trainer.log_loss(float("nan")) == 2.0
    assert trainer.log_loss(3.0) is None
    assert trainer.pop_loss() == 3.0
    assert trainer.pop_loss() is None
