"""What an aggregator is: every rank's tensor in, their mean out, and what each rank is deemed to have sent."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives.base import Exchange
from gravac.collectives.communicator import Communicator, communicator
from gravac.compressors.base import Key
from gravac.kernels import Known

Flight = Exchange
"""An aggregation in flight: what the ranks' mean will be, and what this one is deemed to have sent."""


class Tensors(Protocol):
    """A flat tensor's place in the model, the same on all ranks. The agent's bucket is one."""

    @property
    def number(self) -> int: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def numels(self) -> tuple[int, ...]: ...
    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of each tensor; empty when unknown, then each is taken for a vector."""


class Draft(Protocol):
    """One rank's tensor, ready to be sent at any of the CFs it was prepared for."""

    def kept_energy(self, cf: float) -> float:
        """What the gate compares: see ``Compressor.kept_energy``. Of this rank alone; costs no communication."""

    def send(self, cf: float) -> Flight:
        """Issue what is to be sent; all ranks call it in the same order.

        May wait for other ranks, so call it on a thread that may. The prepared tensor must not have changed, and may
        change afterwards.
        """


class Aggregator(ABC):
    """Means over ranks, by however many rounds it takes."""

    name: str
    source: str
    conserves: bool = True
    """The mean over ranks of what was sent is the mean that came out, so an error memory misses nothing."""

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
        counted: Known | None = None,
    ) -> Draft:
        """Compress ``x`` (flat, finite) to all of ``cfs``, weakest first. ``dtype``: what values travel as.
        ``counted``: what is known of ``x``'s sizes: a histogram, or candidates."""

    @property
    def keeps_largest(self) -> bool:
        """Sends exactly the n/CF largest: the gain curve (``gravac.signals.spectrum``) is its own."""
        return False

    def counts(self, gradient: Tensor) -> bool:
        """Whether ``prepare`` would count a tensor like this one, so that whoever adds it up had better do it."""
        return False

    @abstractmethod
    def blank(
        self, tensors: Tensors, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> Draft:
        """A draft that sends nothing (``value`` 0) or makes the mean non-finite on all ranks (NaN), in the rounds and
        sizes the others expect. It looks at no gradient, so it can be sent when preparing one failed."""

    @abstractmethod
    def wire_bytes(self, tensors: Tensors, cf: float, dtype: torch.dtype, ranks: int) -> int:
        """Bytes each of ``ranks`` ranks hands to collectives; expected, where sizes vary."""

    def aggregate(
        self, tensors: Tensors, x: Tensor, cf: float, key: Key, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Mean over ranks, and what this rank sent, both of ``x``'s shape and float32. Waits for it."""
        flight = self.prepare(tensors, x, (cf,), key, dtype).send(cf)
        flight.work.wait()
        mean = torch.zeros_like(x, dtype=torch.float32)
        flight.mean_into(mean)
        return mean, flight.codec.decode(flight.payload)

    def figures(self) -> list[float]:
        """Of this rank's step so far: numbers whose means over ranks ``learn`` needs. How many there are is the same on
        all ranks and in all steps. The agent's tick carries them."""
        return []

    def learn(self, means: Sequence[float]) -> None:
        """Take in the mean over ranks of ``figures``, the same on all, before ``commit``. Left out when preparing
        failed on any rank, whose figures are then incomplete."""
        return

    def learn_together(self) -> None:
        """``figures`` over all ranks, and ``learn`` from them: where no tick carries them. All ranks call it."""
        figures = torch.tensor(self.figures(), dtype=torch.float64)
        if figures.numel():
            self.communicator.sum(figures).wait()
            self.learn((figures / self.communicator.size).tolist())

    def commit(self) -> None:
        """The step counts: what was learnt in it stays."""
        return

    def rollback(self) -> None:
        """The step does not count: forget what was learnt in it."""
        return

    def state_dict(self) -> dict[str, Tensor]:
        """What was learnt, plain tensors (copies)."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replace what was learnt. Raises ValueError for a state that is not this aggregator's."""
        if state:
            raise ValueError(f"{self.name} has no state, but {sorted(state)[0]!r} was given")

    def agreed(self) -> str:
        """Digest of the state that must be equal on all ranks; empty when there is none."""
        return ""

    def notes(self) -> list[str]:
        """Sentences for the journal since this was last asked."""
        return []


def shapes_of(tensors: Tensors) -> tuple[tuple[int, ...], ...]:
    """Shapes, vectors where they are unknown."""
    return tensors.shapes or tuple((numel,) for numel in tensors.numels)


def digest(state: Mapping[str, Tensor]) -> str:
    """Of names and bits, whatever their order."""
    found = sha256()
    for name, value in sorted(state.items()):
        found.update(name.encode())
        found.update(bytes(value.cpu().contiguous().view(torch.uint8).flatten().tolist()))
    return found.hexdigest()
