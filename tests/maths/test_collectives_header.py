"""What a gathered message begins with: ranks that are out of step are told, never averaged."""

import dataclasses

import pytest
import torch

from gravac.collectives import Collective, Communicator, Gather, ReduceScatter, SharedSupport
from gravac.collectives.header import HEADER_BYTES, opened, sealed
from gravac.compressors import Key, build
from tests.support.maths.simulated import SimulatedWorld


@pytest.mark.parametrize("text", ["topk+bf16", "qsgd", "hardthreshold"])
def test_a_message_of_another_step_is_refused(text: str) -> None:
    """Two ranks out of step would have a mean that is wrong and looks right."""
    codec, x = build(text), torch.randn(500, generator=torch.Generator().manual_seed(2))
    key = Key(1, 7, 3, 0)
    payload = codec.compress(x, 10.0, key, torch.float32)
    message = sealed(payload, codec, key, torch.float32)
    assert message.numel() == HEADER_BYTES + payload.nbytes
    rest = opened(message, payload, codec, key._replace(rank=5), torch.float32)
    assert torch.equal(rest, payload.pack()), "the rank does not matter"
    for changed in (
        (payload, build("int8"), key, torch.float32),
        (payload, codec, key._replace(step=8), torch.float32),
        (payload, codec, key._replace(bucket=4), torch.float32),
        (payload, codec, key, torch.bfloat16),
        (dataclasses.replace(payload, cf=20.0), codec, key, torch.float32),
        (dataclasses.replace(payload, numel=501), codec, key, torch.float32),
    ):
        with pytest.raises(ValueError, match=r"rank 0 sent something else .*: the ranks are out of step"):
            opened(message, *changed)


@pytest.mark.parametrize("way", [Gather, ReduceScatter, SharedSupport])
def test_the_mean_is_not_made_of_strangers(way: type[Collective]) -> None:
    world = SimulatedWorld(2)

    def each(network: Communicator) -> None:
        codec, key = build("topk"), Key(1, 7 + 2 * network.rank, 0, network.rank)  # rank 1 is ahead
        x = torch.randn(100)
        flight = way(network).exchange(codec, codec.compress(x, 10.0, key, x.dtype), x, 10.0, key, x.dtype)
        flight.mean_into(torch.empty(100))

    with pytest.raises(ValueError, match="the ranks are out of step"):
        world.run(each)
