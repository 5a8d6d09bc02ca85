"""What a transfer holds until the step ends, against the copy of the gradient that it saves.

A memory that works on one buffer needs the gradient until it is known whether the step counts, and so the transfers
that ended wait, undecoded. Their messages are small at a high CF. Those of many ranks, or of a codec that keeps what it
sent as a whole tensor, take more room than the second buffer would.
"""

import dataclasses
from collections.abc import Iterator

from torch import Tensor

from gravac.aggregators import Aggregator
from gravac.collectives import Transfer
from gravac.compressors import Compressor
from gravac.memories import Bucket


class HeldBytes:
    """Measures transfers once for each bucket, codec and CF, against a float32 copy of the gradient."""

    def __init__(self) -> None:
        self._small: dict[tuple[int, tuple[str, ...], float], bool] = {}

    def is_small(self, bucket: Bucket, aggregator: Aggregator, cf: float) -> bool:
        """Return whether the bucket's transfers may wait, as far as is known."""
        return self._small.get((id(aggregator), bucket.names, cf), True)

    def note(self, bucket: Bucket, aggregator: Aggregator, cf: float, transfer: Transfer) -> None:
        """Measure the transfer of a bucket that was sent at this CF, unless one was measured already."""
        key = id(aggregator), bucket.names, cf
        if key not in self._small:
            self._small[key] = held_bytes(transfer) <= 4 * sum(bucket.numels)


def held_bytes(transfer: Transfer) -> int:
    """Return the bytes of all tensors that a transfer refers to, without those of its codec."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in _tensors(transfer)
    }
    return sum(storage.nbytes() for storage in storages.values())


def _tensors(thing: object) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, dict):
        yield from _tensors(tuple(thing.values()))
    elif isinstance(thing, list | tuple):
        for one in thing:
            yield from _tensors(one)
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, Compressor):
        yield from _tensors([getattr(thing, field.name) for field in dataclasses.fields(thing)])
