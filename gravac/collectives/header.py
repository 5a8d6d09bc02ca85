"""What every gathered message begins with: eight bytes that say which payload it is.

Ranks agree on a plan before they send, so these are always equal. If they are not, two ranks are at different buckets
or steps, and their mean would be wrong without anybody noticing.
"""

from functools import lru_cache
from hashlib import sha256

import torch
from torch import Tensor

from gravac.compressors.base import Compressor, Key, Payload

HEADER_BYTES = 8
_VERSION = 1


def sealed(payload: Payload, codec: Compressor, key: Key, dtype: torch.dtype) -> Tensor:
    """The message: header, then the payload's parts; uint8 of shape ``(HEADER_BYTES + payload.nbytes,)``."""
    parts = [part.view(torch.uint8) for part in payload.parts]
    header = torch.frombuffer(bytearray(_header(payload, codec, key, dtype)), dtype=torch.uint8)
    return torch.cat([header.to(parts[0].device), *parts])


def opened(message: Tensor, payload: Payload, codec: Compressor, key: Key, dtype: torch.dtype) -> Tensor:
    """What follows the header. Raises ValueError when the message is of another payload than ``payload``'s rank sent;
    on a GPU nobody looks, which would have to wait."""
    if message.device.type == "cpu":
        found = message[:HEADER_BYTES].numpy().tobytes()
        if found != _header(payload, codec, key, dtype):
            raise ValueError(
                f"rank {key.rank} sent something else than {codec.name} at CF {payload.cf:g} of {payload.numel} "
                f"elements for bucket {key.bucket} of step {key.step}: the ranks are out of step"
            )
    return message[HEADER_BYTES:]


def _header(payload: Payload, codec: Compressor, key: Key, dtype: torch.dtype) -> bytes:
    return _digest(codec.name, payload.numel, payload.cf, str(dtype), *key[:3])


@lru_cache(maxsize=256)
def _digest(*facts: object) -> bytes:
    return sha256(f"{_VERSION}/{facts!r}".encode()).digest()[:HEADER_BYTES]
