"""The base class of error memories: they hold what compression left out and add it to the next gradient.

A step is a transaction. ``compensate`` and ``update`` work on a draft; ``commit`` makes the draft the memory,
``rollback`` drops it, so that a non-finite step leaves no trace (promise P10). Where gradients stay unchanged until
``settle``, a memory may do without a second buffer and undo a step by its gradient, to rounding.
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
"""Magnitude above which a residual counts as overflown: adding a gradient to it may leave float32."""


class MemorySettings(Record):
    """Base of every memory's settings. By itself it has none."""


class Bucket(NamedTuple):
    """The parameters that a flat gradient is made of, in order. DDP regroups them after its first step."""

    number: int
    names: tuple[str, ...]
    numels: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shape of each parameter; empty when unknown."""


class Terms(NamedTuple):
    """The sum p = gradient + ``share`` · ``residual``, still to be written to ``out``; all of shape ``(n,)``."""

    residual: Tensor | None
    """float32; None: there is no residual, p is the gradient."""
    share: float
    out: Tensor
    """float32; the next residual is left in it. It may be the residual: then gradient elements that are not finite
    count as 0 in it. It may be the gradient itself, which is then not written."""


class Memory(ABC):
    """The error memory of one rank, keyed by parameter name.

    Args:
        **given: Settings of this memory.

    Raises:
        ValueError: A setting is unknown or its value is not allowed.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    """Paper that the update comes from."""
    exact: ClassVar[bool]
    """Whether sent + residual = what came in, to rounding; else up to an error of mean zero."""
    transforms: ClassVar[bool] = False
    """Whether what comes in is not the gradient itself but made of it and of earlier ones, such as their
    momentum. Then the memory takes part in dense steps without a residual too, and residuals are in those units
    (``amplification``)."""
    Settings: ClassVar[type[MemorySettings]] = MemorySettings

    def __init__(self, **given: Any) -> None:
        self.settings: Any = check_settings("memory", self.name, self.Settings, given)
        self.world_size = 1
        """Ranks that average; set by the caller that makes a memory for a job."""
        self.gradient_stays = False
        """Whether the next gradient stays unchanged until ``settle`` is called for it; set by the caller before
        ``compensate`` or ``terms``."""
        self.dropped = 0
        """How often an overflown residual was dropped, so that training could go on."""

    @property
    def spec(self) -> str:
        """Name and settings as ``gravac.memories.build`` parses them."""
        return as_text(self.name, self.settings)

    @abstractmethod
    def compensate(self, bucket: Bucket, gradient: Tensor, *, whole: bool = False) -> Tensor:
        """Adds the residual to a gradient: p = gradient + share · residual, to be compressed.

        Args:
            bucket: The parameters that the gradient is made of.
            gradient: Shape ``(n,)``. Not changed, and must not change until ``update``.
            whole: Add the whole residual, for a step that sends all of p. A memory that usually holds a share back then
                has no residual afterwards.

        Returns:
            p, shape ``(n,)``; ``gradient`` itself where there is no residual and will be none. Elements that are not
            finite in the gradient may be finite in p only where ``unsettled`` is then True.
        """

    def terms(self, bucket: Bucket, gradient: Tensor, *, whole: bool = False) -> Terms | None:
        """Returns the sum that ``compensate`` would make, for a caller who computes it and then calls ``added``.

        Nothing has happened until then. Arguments as for ``compensate``.

        Returns:
            The terms; None if this memory needs more than one sum, so that ``compensate`` must be called.
        """
        return None

    def added(self, bucket: Bucket, *, whole: bool = False) -> None:
        """Reports that ``out`` of ``terms`` holds p, which continues as after ``compensate`` with the same ``whole``.

        Not called for a sum that failed, so that half of one never becomes a residual.
        """
        raise TypeError(f"memory {self.name!r} has no terms to be added")

    @abstractmethod
    def update(self, bucket: Bucket, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        """Makes residual + gradient - decoded payload the draft.

        Call once after ``compensate``; without it nothing happens. If it raises (a codec that cannot decode), the
        residual from before remains, and the step's own gradient is lost.

        Args:
            bucket: The parameters, as given to ``compensate``.
            compressor: The codec of the payload; may be None when ``payload`` is.
            payload: What was sent of p; None means all of it.

        Returns:
            The draft residual, shape ``(n,)``, before the memory's own rounding; None when there is none.
        """

    def withhold(self, bucket: Bucket, p: Tensor, unused: Tensor) -> None:
        """Sets elements of p to zero and leaves their residual as it is, as nobody would use what is sent for them.

        Call between ``compensate`` and ``update``, where ``gradient_stays`` is False.

        Args:
            bucket: The parameters, as given to ``compensate``.
            p: As returned by ``compensate``, changed.
            unused: Which elements, bool of shape ``(n,)``. The gradient is zero there.
        """
        self.hold_back(bucket, torch.where(unused, p, 0.0))
        p.masked_fill_(unused, 0.0)

    @abstractmethod
    def hold_back(self, bucket: Bucket, excess: Tensor) -> None:
        """Adds ``excess`` to the residual if this step counts: it was sent, but did not fit the gradient's format.

        Call after ``compensate``. A memory that holds nothing loses it.

        Args:
            bucket: The parameters.
            excess: float32 of shape ``(n,)``; copied.
        """

    def unsettled(self, bucket: Bucket) -> bool:
        """Returns whether the step of these parameters needs ``settle`` before the gradient changes.

        Only where ``gradient_stays`` was set. Otherwise ``commit`` and ``rollback`` are enough.
        """
        return False

    def settle(
        self,
        bucket: Bucket,
        gradient: Tensor,
        counts: bool | Tensor,
        compressor: Compressor | None = None,
        payload: Payload | None = None,
    ) -> None:
        """Keeps the residual of the running step if the step counts, else undoes it to rounding.

        ``commit`` or ``rollback`` still follows, when all buckets are settled. A step that was settled as one that
        counts cannot be undone any more: ``rollback`` then drops the residual. One that was settled by a tensor is
        decided: ``commit``, where the tensor is true, and ``rollback``, where it is not, both keep what it left, and
        ``has_residual`` knows from them whether that is zero.

        Args:
            bucket: The parameters, as given to ``compensate``.
            gradient: As given to ``compensate``, still unchanged.
            counts: Whether the step counts. A bool tensor of shape ``()`` on the gradient's device is not read, so
                nothing waits for it; until ``commit`` or ``rollback``, ``has_residual`` says that there may be one.
            compressor: As given to ``update``.
            payload: As given to ``update``.
        """
        return

    @abstractmethod
    def has_residual(self, bucket: Bucket) -> bool:
        """Returns whether these parameters have (or may have) a residual."""

    @abstractmethod
    def forget(self, names: Collection[str]) -> None:
        """Drops all that is held for these parameters, without reading it: the memory failed on them."""

    @abstractmethod
    def commit(self) -> None:
        """Makes the draft the memory: the step counts."""

    @abstractmethod
    def rollback(self) -> None:
        """Drops the draft: the memory is as before the step, bit for bit. For steps without a draft see ``settle``.

        Only a residual that has overflown, which would make every later step non-finite too, is dropped. ``dropped``
        counts that, and it is logged.
        """

    @abstractmethod
    def rescale(self, factor: float, names: Collection[str] | None = None) -> None:
        """Multiplies everything that is held in gradient units, between steps.

        Loss scale S -> S': by S'/S. For a learning rate see ``change_rate``.

        Args:
            factor: Finite and above zero.
            names: Parameters to change; None for all.

        Raises:
            ValueError: The factor is not finite or not above zero.
        """

    def change_rate(self, factor: float, names: Collection[str] | None = None) -> None:
        """Multiplies the residual after the learning rate went from η to η', so that it keeps its effect.

        A momentum is no residual and stays, as that of ``torch.optim.SGD`` does.

        Args:
            factor: η/η', finite and above zero.
            names: Parameters to change; None for all.

        Raises:
            ValueError: The factor is not finite or not above zero.
        """
        self.rescale(factor, names)

    @abstractmethod
    def nbytes(self) -> int:
        """Returns the bytes really held: the most in the last step, drafts and hash tables included.

        Not counted: work space of one bucket, gone when ``update`` returns.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Returns the residuals as plain tensors (copies): float32 per parameter name, or a tagged sketch."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replaces the residuals by a state of this or of any other memory.

        Raises:
            ValueError: A value is not a 1-D float tensor.
        """

    def offered_share(self) -> float:
        """Returns 1 - β: the share of the residual that is added each step."""
        return 1.0

    def amplification(self) -> float:
        """Returns what a gradient amounts to in residual and sent values, summed over all steps: 1, or 1/(1-m)
        under momentum m.
        """
        return 1.0

    def noise(self, compressor: Compressor, cf: float, numel: int) -> float | None:
        """Returns θ, the proven ``E‖C(y) - y‖² <= θ‖y‖²`` of how the residual y is stored; 0 when exact, None
        when unknown.
        """
        return 0.0

    def _warn_dropped(self, names: Collection[str]) -> None:
        self.dropped += 1
        log.warning(
            "memory %s: the residual of %s overflowed and is dropped; the memory is unstable at this compression",
            self.spec,
            ", ".join(sorted(names))[:200],
        )

    def _factor(self, factor: float) -> float:
        if not 0.0 < factor < float("inf"):
            raise ValueError(
                f"factor={factor} must be above 0 and finite; keep the old one while a rate is 0"
            )
        return factor


def overflown(residual: Tensor) -> bool:
    """Returns whether adding this residual would make a finite gradient non-finite, now or soon."""
    return residual.numel() > 0 and not float(torch.linalg.vector_norm(residual, float("inf"))) < LARGEST
