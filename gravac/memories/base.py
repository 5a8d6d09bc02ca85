"""What an error memory is: it keeps what compression left out and offers it again next step.

A step is a transaction. ``compensate`` and ``update`` work on a draft; ``commit`` makes the draft the memory,
``rollback`` drops it, so that a non-finite step leaves no trace (promise P10).
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gravac.compressors.base import Compressor, Payload
from gravac.protocol import Record
from gravac.registry import as_text, check_settings

log = logging.getLogger("gravac.memories")

LARGEST = 1e37
"""Magnitude above which what is owed counts as overflown: adding a gradient to it may leave float32."""


class MemorySettings(Record):
    """Base of every memory's settings. By itself it has none."""


class Bucket(NamedTuple):
    """Which parameters a flat gradient is made of, in order. DDP regroups them after its first step."""

    number: int
    names: tuple[str, ...]
    numels: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of each parameter; empty when unknown."""


class Terms(NamedTuple):
    """p = gradient + ``share`` · ``owed``, still to be written to ``out``; all of shape ``(n,)``."""

    owed: Tensor | None
    """float32; None: nothing is owed, p is the gradient."""
    share: float
    out: Tensor
    """float32; what is owed afterwards is left in it. It may be the gradient itself, which is then not written."""


class Memory(ABC):
    """Error memory of one rank, keyed by parameter name. Settings come as keywords; a wrong one raises ValueError."""

    name: ClassVar[str]
    source: ClassVar[str]
    """Paper the update comes from."""
    exact: ClassVar[bool]
    """What was sent + what is owed = what came in, to rounding; else up to an error of mean zero."""
    transforms: ClassVar[bool] = False
    """What comes in is not the gradient itself but something made of it and of earlier ones, such as their momentum: so
    it takes part in dense steps that owe nothing too. What is owed is then in those units (``amplification``)."""
    Settings: ClassVar[type[MemorySettings]] = MemorySettings

    def __init__(self, **given: Any) -> None:
        self.settings: Any = check_settings("memory", self.name, self.Settings, given)
        self.world_size = 1
        """Ranks that average; whoever makes a memory for a job says how many."""
        self.dropped = 0
        """How often what was owed had overflown and was given up, so that training could go on."""

    @property
    def spec(self) -> str:
        """Name and settings as ``gravac.memories.build`` reads them."""
        return as_text(self.name, self.settings)

    @abstractmethod
    def compensate(self, bucket: Bucket, gradient: Tensor, *, whole: bool = False) -> Tensor:
        """p = gradient + what is offered of what is owed, shape ``(n,)``, to be compressed.

        ``gradient`` is not changed and must not change until ``update``; the result may be ``gradient`` itself when
        nothing is owed and nothing will be. ``whole``: offer all that is owed, for a step that sends all of p; a
        memory that usually holds a share back then owes nothing afterwards.
        """

    def terms(self, bucket: Bucket, gradient: Tensor, *, whole: bool = False) -> Terms | None:
        """What ``compensate`` would add up, for a caller who does it in a pass of their own and then says ``added``.
        Until then nothing happened. None: this memory needs more than one sum, ask it to ``compensate``."""
        return None

    def added(self, bucket: Bucket, *, whole: bool = False) -> None:
        """``out`` of ``terms`` holds p: go on as if ``compensate`` had been called, with the same ``whole``. Never said
        of a sum that failed, so that half of one is never kept."""
        raise TypeError(f"memory {self.name!r} has no terms to be added")

    @abstractmethod
    def update(self, bucket: Bucket, compressor: Compressor, payload: Payload | None) -> Tensor | None:
        """Keep what was owed + gradient - decoded payload as the draft; ``None`` means all of p was sent.

        Returns the draft residual, shape ``(n,)``, before the memory's own rounding, or None when nothing is owed.
        Call once after ``compensate``; without it nothing happens. If it raises (a codec that cannot decode), what was
        owed before stays owed, and the step's own gradient is lost.
        """

    @abstractmethod
    def hold_back(self, bucket: Bucket, excess: Tensor) -> None:
        """Add ``excess``, float32 of shape ``(n,)``, to the residual if this step counts. After ``update``.

        It counts as sent, and did not fit the gradient's format. ``excess`` is copied. A memory that keeps nothing
        loses it."""

    @abstractmethod
    def has_residual(self, bucket: Bucket) -> bool:
        """Whether anything is (or may be) owed to this bucket's parameters."""

    @abstractmethod
    def commit(self) -> None:
        """The step counts: the draft becomes the memory."""

    @abstractmethod
    def rollback(self) -> None:
        """The step does not count: the memory is as before it, bit for bit. Only if what is owed has overflown, which
        would make every later step non-finite too, is it given up (``dropped`` counts that, and it is logged)."""

    @abstractmethod
    def rescale(self, factor: float, names: Collection[str] | None = None) -> None:
        """Multiply all that is kept in gradient units, of ``names`` or of all, between steps.

        Loss scale S -> S': by S'/S. Learning rate η -> η': ``change_rate``. Raises ValueError unless ``factor`` is
        finite and above zero.
        """

    def change_rate(self, factor: float, names: Collection[str] | None = None) -> None:
        """The learning rate went from η to η', ``factor`` = η/η': multiply what is owed, so that it is worth as much.

        A momentum is not owed and stays, as that of ``torch.optim.SGD`` does. Raises ValueError as ``rescale``.
        """
        self.rescale(factor, names)

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes really held: the most there was in the last step, drafts and hash tables included. Not counted: work
        space of one bucket, gone when ``update`` returns."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """What is owed, plain tensors (copies): float32 residuals per parameter name, or a tagged sketch."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replace what is owed, by a state of this or of any other memory. Raises ValueError for a value that is not a
        1-D float tensor."""

    def offered_share(self) -> float:
        """1 - β: how much of what is owed is offered each step."""
        return 1.0

    def amplification(self) -> float:
        """What a gradient comes to in what is owed and sent, summed over all steps: 1, or 1/(1-m) under momentum m."""
        return 1.0

    def noise(self, compressor: Compressor, cf: float, numel: int) -> float | None:
        """θ: proven ``E‖C(y) - y‖² <= θ‖y‖²`` of how the residual y is kept. 0 when exact, None when not known."""
        return 0.0

    def _give_up(self, names: Collection[str]) -> None:
        self.dropped += 1
        log.warning(
            "memory %s: what was owed to %s overflowed and is dropped; the memory is unstable at this compression",
            self.spec,
            ", ".join(sorted(names))[:200],
        )

    def _factor(self, factor: float) -> float:
        if not 0.0 < factor < float("inf"):
            raise ValueError(
                f"factor={factor} must be above 0 and finite; keep the old one while a rate is 0"
            )
        return factor


def overflown(owed: Tensor) -> bool:
    """Whether offering this would make a finite gradient non-finite, now or soon."""
    return owed.numel() > 0 and not float(torch.linalg.vector_norm(owed, float("inf"))) < LARGEST
