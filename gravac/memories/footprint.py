"""The bytes that a training holds per parameter on each rank: its own state, and what an error memory adds."""

from typing import NamedTuple

import torch

from gravac import compressors
from gravac.compressors.base import Key
from gravac.memories.base import Bucket, Memory

ELEMENTS = 1 << 18
"""Elements of the gradient that memories are tried on. Their bytes grow in proportion."""
OPTIMIZERS = {"adamw": 8, "sgd-momentum": 4, "sgd": 0}
"""Bytes that an optimizer holds for each float32 parameter."""
_STEPS = 2


class Footprint(NamedTuple):
    """Bytes on one rank.

    Attributes:
        training: float32 parameters, gradients and the optimizer's state.
        memory: The error memory, with what it holds of the running step.
    """

    training: float
    memory: float


def footprint(
    memory: Memory,
    parameters: float,
    ranks: int,
    *,
    sharded: bool,
    optimizer: str = "adamw",
    compressor: str = "topk+bf16",
    cf: float = 100.0,
) -> Footprint:
    """Return the bytes of a training on one rank, between steps. Activations and gathered parameters are not counted.

    Args:
        memory: An unused error memory.
        parameters: How many the model has.
        ranks: World size.
        sharded: FSDP2 shards parameters, gradients and the optimizer's state. The error memory is that of the whole
            gradient in any case: each rank keeps what it has not sent to the others.
        optimizer: A key of ``OPTIMIZERS``.
        compressor: The job's codec, which some memories also store with.
        cf: Its compression factor.

    Raises:
        ValueError: The compressor is unknown.
    """
    training = parameters * (4 + 4 + OPTIMIZERS[optimizer]) / (ranks if sharded else 1)
    return Footprint(training, parameters * bytes_per_element(memory, compressor, cf, sharded=sharded))


def bytes_per_element(
    memory: Memory, compressor: str = "topk+bf16", cf: float = 100.0, *, sharded: bool = False
) -> float:
    """Return the bytes that a memory holds for each element, measured by two steps of it. Uses the memory up.

    Args:
        memory: An unused error memory.
        compressor: The job's codec.
        cf: Its compression factor.
        sharded: Gradients are freed when they are sent, as by FSDP2. DDP leaves them where they are until the step
            ends, so that some memories can do without a draft.

    Raises:
        ValueError: The compressor is unknown.
    """
    codec = compressors.build(compressor)
    bucket = Bucket(0, ("parameter",), (ELEMENTS,))
    generator = torch.Generator().manual_seed(0)
    memory.gradient_stays = not sharded
    for step in range(_STEPS):
        key = Key(0, step, 0, 0)
        gradient = torch.randn(ELEMENTS, generator=generator, dtype=torch.float32)
        p = memory.compensate(bucket, gradient)
        payload = codec.compress(p, cf, key, torch.float32)
        memory.update(bucket, codec, payload)
        memory.settle(bucket, gradient, True, codec, payload)
        memory.commit()
    return memory.nbytes() / ELEMENTS
