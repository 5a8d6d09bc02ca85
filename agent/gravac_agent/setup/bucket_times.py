"""What coding a bucket takes, and the file that keeps it: beside the compiled kernels, for the next start on such a
device.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

import torch

from gravac.kernels.cpu.load import folders
from gravac.version import __version__


class BucketTime(NamedTuple):
    """Seconds of one bucket.

    Args:
        encode: Adding the residual, encoding, and keeping the new residual.
        decode: Decoding the first payload into the mean.
        more: Decoding each other payload.
    """

    encode: float
    decode: float
    more: float

    def of(self, payloads: int) -> float:
        """Return the seconds of a bucket of which so many payloads arrive."""
        return self.encode + self.decode + max(0, payloads - 1) * self.more


def read(parts: Sequence[str]) -> dict[str, list[BucketTime]]:
    """Return what an earlier start kept, by plan; nothing if there is none, or it cannot be read.

    Args:
        parts: All that the times depend on, beside the versions of torch and gravac.
    """
    for folder in folders():
        with suppress(OSError, ValueError, TypeError, AttributeError):
            rows = json.loads((folder / _name(parts)).read_text(encoding="utf-8"))
            return {text: [BucketTime(*map(float, each)) for each in times] for text, times in rows.items()}
    return {}


def write(parts: Sequence[str], times: Mapping[str, Sequence[BucketTime]]) -> None:
    """Keep times where a folder takes them; else the next start measures again."""
    for folder in folders():
        part = folder / f"{_name(parts)}.{os.getpid()}"  # several ranks may write at once
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(times), encoding="utf-8")
            part.replace(folder / _name(parts))
            return


def _name(parts: Sequence[str]) -> str:
    text = "|".join([*parts, torch.__version__, __version__])
    return f"coding-{sha256(text.encode()).hexdigest()[:32]}.json"
