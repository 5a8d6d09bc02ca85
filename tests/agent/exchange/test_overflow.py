"""What does not fit float16 is clamped alike on all ranks, and the rest stays in the error memory."""

import math

import pytest
import torch

from gravac import memories
from gravac.collectives import ALONE, Gather, Transfer
from gravac.compressors import Key, build
from gravac.memories import Bucket
from gravac_agent.exchange.overflow import Float16Means, largest_summand, send_whole

KEY, LARGEST = Key(0, 0, 0, 0), 65504.0


def arrived(*values: float) -> Transfer:
    x, codec = torch.tensor(values), build("dense")
    layout = codec.layout(len(values), 1.0, torch.float32)
    return Gather(ALONE).exchange(layout, codec.compress(x, 1.0, KEY, torch.float32), x, KEY)


@pytest.mark.parametrize("ranks", [2, 3, 7, 64, 1000])
def test_a_sum_of_the_largest_summands_is_finite(ranks: int) -> None:
    summand = torch.tensor(largest_summand(torch.float16, ranks)).half() * (1.0 / ranks)
    total = torch.zeros((), dtype=torch.float16)
    for _ in range(ranks):
        total += summand
    assert total.isfinite()
    assert largest_summand(torch.bfloat16, ranks) == largest_summand(torch.float32, ranks) == math.inf


def test_a_mean_that_does_not_fit_is_clamped_and_the_rest_returned() -> None:
    means, buffer = Float16Means(), torch.zeros(3, dtype=torch.float16)
    assert means.write(arrived(1.0, -2.0, LARGEST), buffer) == (True, None)
    assert buffer.tolist() == [1.0, -2.0, LARGEST]
    finite, rest = means.write(arrived(1e6, -2.0, -7e4), buffer)
    assert finite
    assert rest is not None
    assert buffer.tolist() == [LARGEST, -2.0, -LARGEST]
    assert rest.tolist() == [1e6 - LARGEST, 0.0, LARGEST - 7e4]
    assert means.write(arrived(math.nan, 0.0, 0.0), buffer) == (False, None)
    assert not means.is_finite(arrived(math.inf, 0.0, 0.0), buffer)


def test_a_residual_that_does_not_fit_waits_on() -> None:
    """Nothing of what came in is lost: it is sent now, or stays in the memory."""
    memory, codec = memories.build("residual"), build("topk")
    part = memory.open(Bucket(0, ("w",), (4,)))
    for values, dense in (((6e4, 100.0, 3.0, 49_984.0), False), ((1.0, 1.0, 1.0, 49_984.0), True)):
        gradient = torch.tensor(values).half()
        if dense:
            send_whole(part, gradient, ranks=4)
        else:
            p = part.compensate(gradient)
            part.update(codec, codec.compress(p, 4.0, KEY, torch.float32))
        memory.commit()
    assert 6.5e4 < float(gradient.max()) <= largest_summand(torch.float16, 4)
    assert (gradient.float() + memory.state_dict()["w"]).tolist() == [1.0, 101.0, 4.0, 99_968.0]
