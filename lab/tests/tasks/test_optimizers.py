"""A step of LAMB."""

import torch
from torch import nn

from gravac_lab.tasks.optimizers import Lamb


def test_a_step_of_lamb() -> None:
    """Adam's first step is the gradient's sign; LAMB gives it the length of the weights, unless they are zero."""
    weight, zero = nn.Parameter(torch.tensor([3.0, 4.0])), nn.Parameter(torch.zeros(2))
    optimizer = Lamb([weight, zero], lr=0.1, weight_decay=0.0)
    for parameter in (weight, zero):
        parameter.grad = torch.tensor([1.0, -1.0])
    optimizer.step()
    torch.testing.assert_close(
        weight.detach(), torch.tensor([3.0, 4.0]) + 0.1 * 5 / 2**0.5 * torch.tensor([-1.0, 1.0])
    )
    torch.testing.assert_close(zero.detach(), torch.tensor([-0.1, 0.1]))
    decayed = nn.Parameter(torch.tensor([3.0, 4.0]))
    decayed.grad = torch.zeros(2)
    Lamb([decayed], lr=0.1, weight_decay=0.1).step()
    torch.testing.assert_close(decayed.detach(), 0.9 * torch.tensor([3.0, 4.0]))
