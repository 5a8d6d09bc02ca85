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


class Tensors(Protocol):
    """The tensors that a flat tensor is made of, the same on all ranks. The agent's bucket is one."""

    @property
    def number(self) -> int:
        """Number of the bucket."""

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names, in order."""

    @property
    def numels(self) -> tuple[int, ...]:
        """Elements of each tensor."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of each tensor; empty when unknown, then each counts as a vector."""


class Draft(Protocol):
    """One rank's tensor, ready to be sent at any of the CFs it was prepared for."""

    def kept_energy(self, cf: float) -> Scalar:
        """Returns what the gate compares, for this rank alone and without communication.

        See ``Compressor.kept_energy``.
        """

    def send(self, cf: float) -> Exchange:
        """Starts the exchange. All ranks call it in the same order.

        It may wait for other ranks, so call it on a thread that may wait. The prepared tensor must not have changed
        before, and may change afterwards.

        Args:
            cf: One of the CFs that were prepared.

        Returns:
            The exchange in flight.
        """


class Aggregator(ABC):
    """Computes means over ranks, in as many rounds of communication as it takes.

    Args:
        group: The ranks that average, as a process group or a communicator.
    """

    name: str
    source: str
    """Paper and section that the formulas come from."""
    conserves: bool = True
    """Whether the mean over ranks of what was sent is the mean that came out, so that an error memory loses nothing."""
    sync_free: bool = False
    """Whether a step on a device reads nothing from it, so that the host never waits."""

    def __init__(self, group: dist.ProcessGroup | Communicator) -> None:
        self.communicator = communicator(group)
        self.share = 1.0 / self.communicator.size

    @abstractmethod
    def prepare(
        self,
        tensors: Tensors,
        x: Tensor,
        cfs: Sequence[float],
        key: Key,
        dtype: torch.dtype,
        hint: SelectionHint | None = None,
    ) -> Draft:
        """Compresses a tensor to several CFs without communication.

        Args:
            tensors: The tensors that ``x`` is made of.
            x: Flat and finite, shape ``(n,)``.
            cfs: Compression factors, the weakest first.
            key: Seed material of this step, bucket and rank.
            dtype: The dtype that values have on the wire.
            hint: What is known of the magnitudes of ``x``: a histogram, or candidates for its largest elements.

        Returns:
            A draft that can be sent at any of ``cfs``.
        """

    @property
    def keeps_largest(self) -> bool:
        """Whether exactly the n/CF largest elements are sent, so that the gain curve of the spectrum applies."""
        return False

    def uses_histogram(self, gradient: Tensor) -> bool:
        """Whether ``prepare`` would count a tensor like this one, so that a caller who adds it up should count it."""
        return False

    @abstractmethod
    def blank(
        self, tensors: Tensors, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> Draft:
        """Makes a draft that stands in when preparing failed: it uses no gradient.

        It takes part in the same rounds, with the sizes that other ranks expect.

        Args:
            tensors: The tensors of the bucket.
            cf: The CF it will be sent at.
            key: Seed material of this step, bucket and rank.
            dtype: The dtype that values have on the wire.
            device: Where the bucket lies.
            value: 0 sends nothing; NaN makes the mean non-finite on all ranks.
        """

    @abstractmethod
    def wire_bytes(self, tensors: Tensors, cf: float, dtype: torch.dtype, ranks: int) -> int:
        """Returns the bytes that each of ``ranks`` ranks hands to collectives; expected ones, where sizes vary."""

    def sizes(self, tensors: Tensors) -> tuple[Size, ...]:
        """Returns the CFs that are reached if they are few, as ``Compressor.sizes``.

        Args:
            tensors: The tensors of the model.
        """
        dense, ranks = 4 * sum(tensors.numels), self.communicator.size
        return few_sizes(lambda cf: dense / max(1, self.wire_bytes(tensors, cf, torch.float32, ranks)))

    def aggregate(
        self, tensors: Tensors, x: Tensor, cf: float, key: Key, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Computes the mean over ranks and waits for it.

        Args:
            tensors: The tensors that ``x`` is made of.
            x: Flat and finite, shape ``(n,)``.
            cf: The compression factor.
            key: Seed material of this step, bucket and rank.
            dtype: The dtype that values have on the wire.

        Returns:
            The mean over ranks and what this rank sent, both float32 of shape ``(n,)``.
        """
        exchange = self.prepare(tensors, x, (cf,), key, dtype).send(cf)
        exchange.work.wait()
        mean = torch.zeros_like(x, dtype=torch.float32)
        exchange.mean_into(mean)
        return mean, exchange.codec.decode(exchange.payload)

    def figures(self) -> list[float]:
        """Returns numbers of this rank's step so far, whose means over ranks ``learn`` needs.

        Their count is the same on all ranks and in all steps. The agent's tick carries them.
        """
        return []

    def learn(self, means: Sequence[float]) -> None:
        """Takes in the means over ranks of ``figures``, the same on all ranks, before ``commit``.

        Not called when preparing failed on any rank, whose figures are then incomplete.
        """
        return

    def learn_together(self) -> None:
        """Averages ``figures`` over all ranks and learns from them, where no tick carries them. All ranks call it."""
        figures = torch.tensor(self.figures(), dtype=torch.float64)
        if figures.numel():
            self.communicator.sum(figures).wait()
            self.learn((figures / self.communicator.size).tolist())

    def commit(self) -> None:
        """Keeps what was learned in this step."""
        return

    def rollback(self) -> None:
        """Forgets what was learned in this step."""
        return

    def settle(self, counts: Tensor) -> None:
        """Keeps what was learned in this step if it counts, forgets it if not: for steps on a device.

        What is sync-free reads nothing here. This implementation reads ``counts`` if there is anything to learn.

        Args:
            counts: Whether the step counts, bool of shape ``()``.
        """
        if type(self).commit is not Aggregator.commit:
            (self.commit if bool(counts) else self.rollback)()

    def state_dict(self) -> dict[str, Tensor]:
        """Returns what was learned, as plain tensors (copies)."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replaces what was learned.

        Raises:
            ValueError: The state is not one of this aggregator.
        """
        if state:
            raise ValueError(f"{self.name} has no state, but {sorted(state)[0]!r} was given")

    def state_digest(self) -> str:
        """Returns a digest of the state that must be equal on all ranks; empty when there is none."""
        return ""

    def notes(self) -> list[str]:
        """Returns sentences for the journal, new since the last call."""
        return []


def shapes_of(tensors: Tensors) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of the tensors; vectors where they are unknown."""
    return tensors.shapes or tuple((numel,) for numel in tensors.numels)


def digest(state: Mapping[str, Tensor]) -> str:
    """Returns a SHA-256 digest of names and bits, whatever their order."""
    found = sha256()
    for name, value in sorted(state.items()):
        found.update(name.encode())
        found.update(bytes(value.cpu().contiguous().view(torch.uint8).flatten().tolist()))
    return found.hexdigest()
