"""What came in is what arrived and what waits, and ranks agree to the bit."""

import torch
from torch import Tensor

from tests.support.streams.compare import Outcome
from tests.support.streams.task import RATE, Net, Task
from tests.support.streams.training import OnStreams, each_rank


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
        waiting = sum(outcome.residual.get(f"p{number}", torch.zeros(1)) for outcome in outcomes)
        arrived = (begin - outcomes[0].parameters[number]) / RATE
        mean = (summed.flatten() - waiting) / ranks
        assert torch.allclose(arrived.flatten(), mean, atol=tolerance), number
    assert any(float(piece.abs().sum()) for piece in outcomes[0].residual.values())
    return outcomes


def check_agreement(outcomes: list[Outcome]) -> None:
    """Check that all ranks have the same parameters."""
    for other in outcomes[1:]:
        for one, mine in zip(outcomes[0].parameters, other.parameters, strict=True):
            assert torch.equal(one, mine)
