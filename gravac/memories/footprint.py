"""The bytes that a training holds per parameter on each rank: its own state, and what an error memory adds."""

from typing import NamedTuple

import torch

from gravac import compressors
from gravac.compressors.base import Key
from gravac.memories.base import Memory
from gravac.memories.bucket import Bucket

ELEMENTS = 1 << 18
"""Elements of the gradient that memories are tried on. Their bytes grow in proportion."""
TRAINING_BYTES = 16
"""Bytes of a float32 parameter with its gradient and the two moments of AdamW."""
CODEC = "topk+bf16"
"""The codec that memories are tried with, an agent's default. Some also store with it."""
_STEPS, _CF = 2, 100.0


class Footprint(NamedTuple):
    """Bytes on one rank.

    Attributes:
        training: float32 parameters, gradients and the state of AdamW.
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
) -> Footprint:
    """Return the bytes of a training on one rank, between steps. Activations and gathered parameters are not counted.

    Args:
        memory: An unused error memory. Two steps of it are measured, which uses it up.
        parameters: How many the model has.
        ranks: World size.
        sharded: FSDP2 shards parameters, gradients and the optimizer's state. The error memory is that of the whole
            gradient in any case: each rank keeps what it has not sent to the others.
    """
    training = parameters * TRAINING_BYTES / (ranks if sharded else 1)
    codec = compressors.build(CODEC)
    bucket = Bucket(0, ("parameter",), (ELEMENTS,))
    generator = torch.Generator().manual_seed(0)
    # FSDP2 frees gradients when they are sent. DDP leaves them where they are until the step ends, so that some
    # memories can do without a draft.
    part = memory.open(bucket)
    part.gradient_stays = not sharded
    for step in range(_STEPS):
        gradient = torch.randn(ELEMENTS, generator=generator, dtype=torch.float32, device="cpu")
        p = part.compensate(gradient)
        payload = codec.compress(p, _CF, Key(0, step, 0, 0), torch.float32)
        part.update(codec, payload)
        part.resolve(gradient, True)
        memory.commit()
    return Footprint(training, parameters * memory.nbytes() / ELEMENTS)
