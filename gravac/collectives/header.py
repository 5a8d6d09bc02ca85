"""What every gathered message begins with: eight bytes that say which payload it is.

Ranks agree on a plan before they send, so these are always equal. If they are not, two ranks are at different buckets
or steps, and their mean would be wrong without anybody noticing.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

import torch
from torch import Tensor

from gravac.compressors.base import Compressor, Key, Payload

HEADER_BYTES = 8
Facts = tuple[str, int, float, str, int, int, int]
"""Codec, elements, CF, dtype, and the key's seed, step and bucket."""
_VERSION = 1


def sealed(payload: Payload, codec: Compressor, key: Key, dtype: torch.dtype) -> Tensor:
    """The message: header, then the payload's parts; uint8 of shape ``(HEADER_BYTES + payload.nbytes,)``."""
    return marked(payload.parts, facts_of(payload, codec, key, dtype))


def opened(message: Tensor, payload: Payload, codec: Compressor, key: Key, dtype: torch.dtype) -> Tensor:
    """What follows the header. Raises ValueError when the message is of another payload than ``payload``'s rank sent;
    on a GPU nobody looks, which would have to wait."""
    return unmarked(message, facts_of(payload, codec, key, dtype), key)


def marked(parts: Sequence[Tensor], facts: Facts) -> Tensor:
    """Header, then these parts, as one uint8 tensor."""
    header = torch.frombuffer(bytearray(_digest(*facts)), dtype=torch.uint8)
    return torch.cat([header.to(parts[0].device), *(part.view(torch.uint8) for part in parts)])


def unmarked(message: Tensor, facts: Facts, key: Key) -> Tensor:
    """What follows the header; raises as ``opened`` does. ``key``: of the rank that sent it."""
    if message.device.type == "cpu":
        found = message[:HEADER_BYTES].numpy().tobytes()
        if found != _digest(*facts):
            codec, numel, cf = facts[:3]
            raise ValueError(
                f"rank {key.rank} sent something else than {codec} at CF {cf:g} of {numel} elements for bucket "
                f"{key.bucket} of step {key.step}: the ranks are out of step"
            )
    return message[HEADER_BYTES:]


def facts_of(payload: Payload, codec: Compressor, key: Key, dtype: torch.dtype) -> Facts:
    """What its header says."""
    return codec.name, payload.numel, payload.cf, str(dtype), *key[:3]


@lru_cache(maxsize=4096)
def _digest(*facts: object) -> bytes:
    return sha256(f"{_VERSION}/{facts!r}".encode()).digest()[:HEADER_BYTES]
