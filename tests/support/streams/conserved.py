"""What came in is what arrived and what waits, and ranks agree to the bit."""

import math

import pytest
import torch
from torch import Tensor

from gravac_agent.exchange.host_level import piece_shape
from tests.support.streams.compare import Outcome
from tests.support.streams.lives import begin_backward
from tests.support.streams.task import RATE, Net, Task
from tests.support.streams.training import OnStreams, each_rank, on_streams


def check_conservation(task: Task, ranks: int = 2, tolerance: float = 2e-5) -> list[Outcome]:
    """Train, and check that the gradients of all steps that count have moved the parameters, or wait."""
    total = [torch.zeros_like(one) for one in Net(task).parameters]
    counted = set(range(len(task.cfs))) - {step for step, _ in task.bad}

    def life(one: OnStreams) -> Outcome:
        taken = one.net.gradients

        def gradients(step: int, rank: int) -> list[Tensor]:
            found = taken(step, rank)
            if step in counted:
                for bucket, flat in zip(task.layout(step), found, strict=True):
                    for name, piece in bucket.split(flat):
                        total[int(name[1:])].view(-1).add_(piece)
            return found

        one.net.gradients = gradients  # type: ignore[method-assign]
        return one.train()

    outcomes = each_rank(task, 1, life, ranks)
    check_agreement(outcomes)
    for number, (begin, summed) in enumerate(zip(Net(task).parameters, total, strict=True)):
        waiting = sum(
            _whole(task, rank, outcome.residual.get(f"p{number}"), begin)
            for rank, outcome in enumerate(outcomes)
        )
        arrived = (begin - outcomes[0].parameters[number]) / RATE
        mean = (summed.flatten() - waiting) / ranks
        assert torch.allclose(arrived.flatten(), mean, atol=tolerance), number
    assert any(float(piece.abs().sum()) for piece in outcomes[0].residual.values())
    return outcomes


def _whole(task: Task, rank: int, residual: Tensor | None, parameter: Tensor) -> Tensor:
    """Return what a rank's residual adds to the sum over ranks: that of a piece stands for all ranks of a host."""
    length = math.prod(piece_shape(parameter.shape, task.levels))
    padded = torch.zeros(task.levels * length)
    if residual is not None:
        assert residual.numel() == length
        padded[rank % task.levels * length :][:length] = task.levels * residual
    assert not padded[parameter.numel() :].any(), "padding waits"
    return padded[: parameter.numel()]


def check_agreement(outcomes: list[Outcome]) -> None:
    """Check that all ranks have the same parameters."""
    for other in outcomes[1:]:
        for one, mine in zip(outcomes[0].parameters, other.parameters, strict=True):
            assert torch.equal(one, mine)


def check_abandoned(task: Task, buckets: int, undone: bool, ranks: int = 2) -> None:
    """Abandon two backwards of a step, the second after some buckets, and check that the next one has nothing of them.

    Args:
        task: Of 12 steps or so.
        buckets: How many of the second backward are handed over.
        undone: Whether the agent undoes it; else the trainer just begins again.
        ranks: How many there are.
    """

    def life(one: OnStreams) -> Outcome:
        for step in range(len(task.cfs)):
            if step == 5:
                one.take_in()
                one.executor.abandon()
                begin_backward(one, step, buckets=buckets)
                if undone:
                    one.executor.abandon()
            one.step(step)
        return one.end()

    spoilt, plain = each_rank(task, 1, life, ranks), on_streams(task, 1, ranks)
    for mine, theirs in zip(spoilt, plain, strict=True):
        for number, (result, other) in enumerate(zip(mine.results, theirs.results, strict=True)):
            if undone or number < 5:
                for name in ("gradient_sq", "compensated_sq", "sent_sq"):
                    expected = pytest.approx(getattr(other.tick.sums, name), rel=1e-3)
                    assert getattr(result.tick.sums, name) == expected, (number, name)
            elif number == 5:  # the residual is lost, as the agent says
                assert result.tick.sums.gradient_sq == pytest.approx(other.tick.sums.gradient_sq)
            assert result.payload_bytes == other.payload_bytes
    check_agreement(spoilt)
