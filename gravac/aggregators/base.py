"""The base classes of aggregators: every rank's tensor in, their mean out, and what each rank counts as sent."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.aggregators.shortfall import PREFIX, Shortfall, entry
from gravac.collectives.base import Exchange
from gravac.collectives.communicator import Communicator, communicator
from gravac.compressors.base import Key, Size, few_sizes
from gravac.kernels import Scalar, SelectionHint
from gravac.memories.bucket import Bucket
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


class BucketAggregator(ABC):
    """What an aggregator knows of one bucket. ``Aggregator.open`` makes it.

    Args:
        aggregator: The aggregator.
        bucket: The tensors that its gradients are made of.
    """

    def __init__(self, aggregator: "Aggregator", bucket: Bucket) -> None:
        self.aggregator, self.bucket, self.numel = aggregator, bucket, sum(bucket.numels)
        self.shortfall = aggregator.shortfall(bucket.number)

    def record(self, cf: float, chosen: Scalar, through: Scalar) -> None:
        """Record how much of the energy that this rank chose was sent; see ``Shortfall.record``."""
        self.aggregator.learns = True
        self.shortfall.record(cf, chosen, through)

    @abstractmethod
    def prepare(
        self, x: Tensor, cfs: Sequence[float], key: Key, dtype: torch.dtype, hint: SelectionHint | None = None
    ) -> Draft:
        """Compress a tensor to several CFs without communication.

        Args:
            x: Flat and finite, shape ``(n,)``.
            cfs: Compression factors, the weakest first.
            key: Seed material of this step, bucket and rank.
            dtype: The dtype that values have on the wire.
            hint: A histogram of the magnitudes of ``x``, or candidates for its largest elements, if one is known.

        Returns:
            A draft that can be sent at any of ``cfs``.

        Raises:
            ValueError: A payload does not have the size that the codec declares. The other ranks rely on that size, so
                it is checked before anything is sent.
        """

    def blank(self, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float) -> Draft:
        """Make a draft without a gradient, for when preparing one failed.

        It takes part in the same rounds, with the sizes that the other ranks expect. See ``Compressor.blank``.
        """
        x = torch.full((self.numel,), value, device=device, dtype=torch.float32)
        return self.prepare(x, (cf,), key, dtype)


class Aggregator(Transaction, ABC):
    """Computes means over ranks, in as many rounds of communication as it takes.

    Args:
        group: The ranks that average, as a process group or a communicator.
        learner: What it learns from steps, beside its shortfalls; None if that is nothing.
    """

    source: str
    """Paper and section that the formulas come from."""
    conserves: bool = True
    """Whether the mean that came out is the mean of what the ranks count as sent, so that memories lose nothing."""
    sync_free: bool = False
    """Whether a step on a device reads nothing from it, so that the host never waits."""

    def __init__(self, group: dist.ProcessGroup | Communicator, learner: Transaction | None = None) -> None:
        self.communicator = communicator(group)
        self.share = 1.0 / self.communicator.size
        if learner is None:
            learner = Transaction()
            learner.name = self.name
        self._learner = learner
        self._shortfalls: list[Shortfall] = []
        # What learns has a ``commit`` of its own.
        self.learns = (type(learner).commit, type(self).commit) != (Transaction.commit, Aggregator.commit)
        """Whether a step may bring something to be learned. Until then it has no statistics, and ``commit`` has nothing
        to do."""

    @abstractmethod
    def open(self, bucket: Bucket) -> BucketAggregator:
        """Return what is known of one bucket. A later call replaces what it returned for the same number."""

    def shortfall(self, number: int) -> Shortfall:
        """Return the shortfall of a bucket, which stays when the bucket is opened again."""
        found = next((one for one in self._shortfalls if one.bucket == number), None)
        if found is None:
            found = Shortfall(number)
            self._shortfalls.append(found)
        return found

    @property
    def keeps_largest(self) -> bool:
        """Whether exactly the n/CF largest elements are sent, so that the gain curve of the spectrum applies."""
        return False

    @property
    def leaves_out(self) -> bool:
        """Whether its codec leaves elements out, as ``Compressor.leaves_out``."""
        return False

    def uses_histogram(self, gradient: Tensor) -> bool:
        """Return whether ``prepare`` would count a tensor like this one, so that its maker should count it instead."""
        return False

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

    def local_statistics(self) -> list[float]:
        return self._learner.local_statistics()

    def apply_mean_statistics(self, means: Sequence[float]) -> None:
        self._learner.apply_mean_statistics(means)

    def commit(self) -> None:
        for one in (self._learner, *self._shortfalls):
            one.commit()

    def rollback(self) -> None:
        for one in (self._learner, *self._shortfalls):
            one.rollback()

    def commit_where(self, counts: Tensor) -> None:
        for one in (self._learner, *self._shortfalls):
            one.commit_where(counts)

    def state_dict(self) -> dict[str, Tensor]:
        state = self._learner.state_dict()
        for one in self._shortfalls:
            state |= one.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        shares = {name: value for name, value in state.items() if name.startswith(PREFIX)}
        self._learner.load_state_dict({name: value for name, value in state.items() if name not in shares})
        for name, value in shares.items():
            self.shortfall(entry(name, value)[0])  # of a bucket that may not be open yet
        for one in self._shortfalls:
            one.load_state_dict(shares)

    def state_digest(self) -> str:
        """Return a digest of the state that must be equal on all ranks; empty if there is none.

        It leaves shortfalls out: each rank has its own.
        """
        state, found = self._learner.state_dict(), sha256()
        for name, value in sorted(state.items()):
            found.update(name.encode())
            found.update(bytes(value.cpu().contiguous().view(torch.uint8).flatten().tolist()))
        return found.hexdigest() if state else ""

    def notes(self) -> list[str]:
        """Return the sentences for the journal that are new since the last call."""
        return []


def shapes_of(tensors: Bucket) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the tensors, as vectors if they are unknown."""
    return tensors.shapes or tuple((numel,) for numel in tensors.numels)
