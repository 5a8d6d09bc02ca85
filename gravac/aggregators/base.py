"""The base class of aggregators: every rank's tensor in, their mean out, and what each rank counts as sent."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives.base import Exchange
from gravac.collectives.communicator import Communicator, communicator
from gravac.compressors.base import Key, Size, few_sizes
from gravac.kernels import Scalar, SelectionHint
from gravac.memories.base import Bucket
from gravac.transaction import Transaction


class Draft(Protocol):
    """One rank's tensor, ready to be sent at any of the CFs it was prepared for."""

    def kept_energy(self, cf: float) -> Scalar:
        """Return the energy that the gate compares, for this rank alone; see ``Compressor.kept_energy``."""

    def send(self, cf: float) -> Exchange:
        """Start the exchange. All ranks call it in the same order.

        Call it on a thread that may wait for other ranks. The prepared tensor must not have changed before, and may
        change afterwards.

        Args:
            cf: One of the CFs that were prepared.

        Returns:
            The exchange in flight.
        """


class BucketAggregator:
    """What an aggregator knows of one bucket. ``Aggregator.open`` makes it.

    Args:
        aggregator: The aggregator.
        bucket: The tensors that its gradients are made of.
    """

    def __init__(self, aggregator: "Aggregator", bucket: Bucket) -> None:
        self.aggregator, self.bucket = aggregator, bucket

    def prepare(
        self,
        x: Tensor,
        cfs: Sequence[float],
        key: Key,
        dtype: torch.dtype,
        hint: SelectionHint | None = None,
    ) -> Draft:
        """Compress a tensor to several CFs without communication. See ``Aggregator.prepare``."""
        return self.aggregator.prepare(self.bucket, x, cfs, key, dtype, hint)

    def blank(self, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float) -> Draft:
        """Make a draft without a gradient. See ``Aggregator.blank``."""
        return self.aggregator.blank(self.bucket, cf, key, dtype, device, value)


class Aggregator(Transaction, ABC):
    """Computes means over ranks, in as many rounds of communication as it takes.

    Args:
        group: The ranks that average, as a process group or a communicator.
    """

    source: str
    """Paper and section that the formulas come from."""
    conserves: bool = True
    """Whether the mean that came out is the mean of what the ranks count as sent, so that memories lose nothing."""
    sync_free: bool = False
    """Whether a step on a device reads nothing from it, so that the host never waits."""

    def __init__(self, group: dist.ProcessGroup | Communicator) -> None:
        self.communicator = communicator(group)
        self.share = 1.0 / self.communicator.size

    def open(self, bucket: Bucket) -> BucketAggregator:
        """Return what is known of one bucket. A later call replaces what it returned for the same number."""
        return BucketAggregator(self, bucket)

    @abstractmethod
    def prepare(
        self,
        tensors: Bucket,
        x: Tensor,
        cfs: Sequence[float],
        key: Key,
        dtype: torch.dtype,
        hint: SelectionHint | None = None,
    ) -> Draft:
        """Compress a tensor to several CFs without communication.

        Args:
            tensors: The tensors that ``x`` is made of.
            x: Flat and finite, shape ``(n,)``.
            cfs: Compression factors, the weakest first.
            key: Seed material of this step, bucket and rank.
            dtype: The dtype that values have on the wire.
            hint: A histogram of the magnitudes of ``x``, or candidates for its largest elements, if one is known.

        Returns:
            A draft that can be sent at any of ``cfs``.
        """

    @property
    def keeps_largest(self) -> bool:
        """Whether exactly the n/CF largest elements are sent, so that the gain curve of the spectrum applies."""
        return False

    def uses_histogram(self, gradient: Tensor) -> bool:
        """Return whether ``prepare`` would count a tensor like this one, so that its maker should count it instead."""
        return False

    def blank(
        self, tensors: Bucket, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> Draft:
        """Make a draft without a gradient, for when preparing one failed.

        It takes part in the same rounds, with the sizes that the other ranks expect.

        Args:
            tensors: The tensors of the bucket.
            cf: The CF it will be sent at.
            key: Seed material of this step, bucket and rank.
            dtype: The dtype that values have on the wire.
            device: Where the bucket lies.
            value: The value that is sent: 0, or NaN to make the mean non-finite on all ranks.
        """
        x = torch.full((sum(tensors.numels),), value, device=device, dtype=torch.float32)
        return self.prepare(tensors, x, (cf,), key, dtype)

    @abstractmethod
    def wire_bytes(self, tensors: Bucket, cf: float, dtype: torch.dtype, ranks: int) -> int:
        """Return the bytes that each of ``ranks`` ranks hands to collectives; the expected ones if sizes vary."""

    def sizes(self, tensors: Bucket) -> tuple[Size, ...]:
        """Return the CFs that are reached if they are few, as ``Compressor.sizes``.

        Args:
            tensors: The tensors of the model.
        """
        dense, ranks = 4 * sum(tensors.numels), self.communicator.size
        return few_sizes(lambda cf: dense / max(1, self.wire_bytes(tensors, cf, torch.float32, ranks)))

    def state_digest(self) -> str:
        """Return a digest of the state that must be equal on all ranks; empty if there is none."""
        return ""

    def notes(self) -> list[str]:
        """Return the sentences for the journal that are new since the last call."""
        return []


def shapes_of(tensors: Bucket) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the tensors, as vectors if they are unknown."""
    return tensors.shapes or tuple((numel,) for numel in tensors.numels)


def digest(state: Mapping[str, Tensor]) -> str:
    """Return a SHA-256 digest of names and bits, independent of their order."""
    found = sha256()
    for name, value in sorted(state.items()):
        found.update(name.encode())
        found.update(bytes(value.cpu().contiguous().view(torch.uint8).flatten().tolist()))
    return found.hexdigest()
