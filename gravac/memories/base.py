"""The base class of error memories: they hold what compression left out and add it to the next gradient.

A step is a transaction. ``compensate`` and ``update`` work on a draft. ``commit`` makes the draft the memory, and
``rollback`` drops it, so that a non-finite step leaves no trace (promise P10). If gradients stay unchanged until
``resolve``, a memory may do without a second buffer and use the gradient to undo a step, to rounding.
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
"""Magnitude above which a residual counts as overflown, since adding a gradient to it may leave float32."""


class MemorySettings(Record):
    """Base of every memory's settings. By itself it has none."""


class Bucket(NamedTuple):
    """The parameters that a flat gradient is made of, in order. DDP regroups them after its first step."""

    number: int
    names: tuple[str, ...]
    numels: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shape of each parameter; empty if unknown."""


class PendingSum(NamedTuple):
    """The sum p = gradient + ``share`` · ``residual``, still to be written to ``out``; all of shape ``(n,)``."""

    residual: Tensor | None
    """float32; None if there is no residual, so that p is the gradient."""
    share: float
    out: Tensor
    """float32, in which the next residual is left. It may be the residual itself; then elements of the gradient that
    are not finite count as 0, since nothing could undo them. It may be the gradient itself, which is not written."""


class BucketMemory:
    """The part of a memory that belongs to one bucket. ``Memory.open`` makes it.

    Args:
        memory: The memory.
        bucket: The parameters that its gradients are made of.
    """

    def __init__(self, memory: "Memory", bucket: Bucket) -> None:
        self.memory, self.bucket = memory, bucket
        self.gradient_stays = False
        """Whether the next gradient stays unchanged until ``resolve``. The caller sets it before ``compensate`` or
        ``pending_sum``."""
        self._dense = False

    @property
    def has_residual(self) -> bool:
        """Whether these parameters have, or may have, a residual."""
        return self.memory.has_residual(self.bucket)

    @property
    def unsettled(self) -> bool:
        """Whether the running step needs ``resolve`` before the gradient changes. See ``Memory.unsettled``."""
        return self.memory.unsettled(self.bucket)

    def compensate(self, gradient: Tensor, *, dense: bool = False) -> Tensor:
        """Add the residual to a gradient. See ``Memory.compensate``."""
        self.memory.gradient_stays = self.gradient_stays
        return self.memory.compensate(self.bucket, gradient, dense=dense)

    def pending_sum(self, gradient: Tensor, *, dense: bool = False) -> PendingSum | None:
        """Return the sum that ``compensate`` would make, so that the caller can compute it and call ``sum_written``."""
        self.memory.gradient_stays, self._dense = self.gradient_stays, dense
        return self.memory.pending_sum(self.bucket, gradient, dense=dense)

    def sum_written(self) -> None:
        """Report that ``out`` of ``pending_sum`` holds p. The step goes on as after ``compensate``."""
        self.memory.sum_written(self.bucket, dense=self._dense)

    def update(self, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        """Make residual + gradient - decoded payload the draft. See ``Memory.update``."""
        return self.memory.update(self.bucket, compressor, payload)

    def withhold(self, p: Tensor, unused: Tensor) -> None:
        """Set elements of p to zero and leave their residual as it is. See ``Memory.withhold``."""
        self.memory.withhold(self.bucket, p, unused)

    def hold_back(self, excess: Tensor) -> None:
        """Add ``excess`` to the residual if this step counts. See ``Memory.hold_back``."""
        self.memory.hold_back(self.bucket, excess)

    def resolve(
        self,
        gradient: Tensor,
        counts: bool | Tensor,
        compressor: Compressor | None = None,
        payload: Payload | None = None,
    ) -> None:
        """Keep the residual of the running step if the step counts, else undo the step. See ``Memory.resolve``."""
        self.memory.resolve(self.bucket, gradient, counts, compressor, payload)


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
    """Whether sent + residual = what came in, to rounding. Otherwise the error has mean zero."""
    transforms: ClassVar[bool] = False
    """Whether the memory sends something else than gradients, such as their momentum. Then it takes part in dense steps
    even without a residual, and residuals are in those units (``amplification``)."""
    Settings: ClassVar[type[MemorySettings]] = MemorySettings

    def __init__(self, **given: Any) -> None:
        self.settings: Any = check_settings("memory", self.name, self.Settings, given)
        self.world_size = 1
        """Ranks that average; set by the caller that makes a memory for a job."""
        self.gradient_stays = False
        """Whether the next gradient stays unchanged until ``resolve`` is called for it. The caller sets it before
        ``compensate`` or ``pending_sum``."""
        self.dropped = 0
        """How often an overflown residual was dropped so that training could go on."""

    @property
    def spec(self) -> str:
        """Name and settings as ``gravac.memories.build`` parses them."""
        return as_text(self.name, self.settings)

    def open(self, bucket: Bucket) -> BucketMemory:
        """Return the part of one bucket. A later call replaces what it returned for any of the same parameters."""
        return BucketMemory(self, bucket)

    @abstractmethod
    def compensate(self, bucket: Bucket, gradient: Tensor, *, dense: bool = False) -> Tensor:
        """Add the residual to a gradient. The sum p = gradient + share · residual is what the codec compresses.

        Args:
            bucket: The parameters that the gradient is made of.
            gradient: Shape ``(n,)``. Not changed, and must not change until ``update``.
            dense: Whether to add the whole residual, for a step that sends all of p. Afterwards there is no residual,
                even in a memory that usually holds a share back.

        Returns:
            p, shape ``(n,)``; ``gradient`` itself if there is no residual and will be none. If ``unsettled`` is then
            True, elements that are not finite in the gradient may be finite in p.
        """

    def pending_sum(self, bucket: Bucket, gradient: Tensor, *, dense: bool = False) -> PendingSum | None:
        """Return the sum that ``compensate`` would make, so that the caller can compute it and call ``added``.

        A kernel can then measure p in the same pass. Nothing has happened until ``added``. The arguments are those of
        ``compensate``.

        Returns:
            The terms; None if this memory needs more than one sum, so that ``compensate`` must be called.
        """
        return None

    def sum_written(self, bucket: Bucket, *, dense: bool = False) -> None:
        """Report that ``out`` of ``pending_sum`` holds p. The step goes on as after ``compensate``.

        Do not call it for a sum that failed, half of which would become a residual.
        """
        raise TypeError(f"memory {self.name!r} has no terms to be added")

    @abstractmethod
    def update(self, bucket: Bucket, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        """Make residual + gradient - decoded payload the draft.

        Call it once after ``compensate``; it does nothing otherwise. If it raises, because a codec cannot decode, the
        residual from before the step remains, and the gradient of the step is lost.

        Args:
            bucket: The parameters, as given to ``compensate``.
            compressor: The codec of the payload; may be None if ``payload`` is.
            payload: The payload that was sent of p; None if all of p was sent.

        Returns:
            The draft residual, shape ``(n,)``, before the memory's own rounding; None if there is none.
        """

    def withhold(self, bucket: Bucket, p: Tensor, unused: Tensor) -> None:
        """Set elements of p to zero and leave their residual as it is, because nobody would use what is sent of it.

        Call it between ``compensate`` and ``update``, with ``gradient_stays`` False.

        Args:
            bucket: The parameters, as given to ``compensate``.
            p: The sum that ``compensate`` returned. Changed.
            unused: The elements, bool of shape ``(n,)``. The gradient is zero there.
        """
        self.hold_back(bucket, torch.where(unused, p, 0.0))
        p.masked_fill_(unused, 0.0)

    @abstractmethod
    def hold_back(self, bucket: Bucket, excess: Tensor) -> None:
        """Add ``excess`` to the residual if this step counts: it was sent but did not arrive.

        For example, it does not fit the gradient's format. Call it after ``compensate``. A memory that holds nothing
        loses the excess.

        Args:
            bucket: The parameters.
            excess: float32 of shape ``(n,)``; copied.
        """

    def unsettled(self, bucket: Bucket) -> bool:
        """Return whether the step of these parameters needs ``resolve`` before the gradient changes.

        It does so only if ``gradient_stays`` was set. Otherwise ``commit`` and ``rollback`` are enough.
        """
        return False

    def resolve(
        self,
        bucket: Bucket,
        gradient: Tensor,
        counts: bool | Tensor,
        compressor: Compressor | None = None,
        payload: Payload | None = None,
    ) -> None:
        """Keep the residual of the running step if the step counts, else undo the step to rounding.

        ``commit`` or ``rollback`` still follows when all buckets are settled. What they do depends on ``counts``:

        - True: nothing can undo the step any more. ``commit`` keeps the residual, ``rollback`` drops it.
        - False: the residual is that from before the step, and both keep it.
        - A tensor: ``commit`` must follow if it is true, ``rollback`` if it is false. Both keep the residual, and tell
          ``has_residual`` whether it is zero. Until then ``has_residual`` returns True.

        Args:
            bucket: The parameters, as given to ``compensate``.
            gradient: The gradient that was given to ``compensate``, still unchanged.
            counts: Whether the step counts. A bool tensor of shape ``()`` on the gradient's device is not read, so
                that nothing waits for it.
            compressor: The codec that was given to ``update``.
            payload: The payload that was given to ``update``.
        """
        return

    @abstractmethod
    def has_residual(self, bucket: Bucket) -> bool:
        """Return whether these parameters have, or may have, a residual."""

    @abstractmethod
    def forget(self, names: Collection[str]) -> None:
        """Drop all that is held for these parameters without reading it, because the memory failed on them."""

    @abstractmethod
    def commit(self) -> None:
        """Make the draft the memory: the step counts."""

    @abstractmethod
    def rollback(self) -> None:
        """Drop the draft. The memory is as before the step, bit for bit. For steps without a draft see ``resolve``.

        Only a residual that has overflown is dropped, as it would make every later step non-finite too. That is logged,
        and ``dropped`` counts it.
        """

    @abstractmethod
    def rescale(self, factor: float, names: Collection[str] | None = None) -> None:
        """Multiply everything that is held in units of gradients. Call it between steps.

        After the loss scale went from S to S', multiply by S'/S. For a learning rate see ``change_rate``.

        Args:
            factor: Finite and above zero.
            names: Parameters to change; None for all.

        Raises:
            ValueError: The factor is not finite or not above zero.
        """

    def change_rate(self, factor: float, names: Collection[str] | None = None) -> None:
        """Multiply the residual after the learning rate went from η to η', so that it keeps its effect.

        Momentum is not multiplied, just as ``torch.optim.SGD`` leaves its own.

        Args:
            factor: η/η', finite and above zero.
            names: Parameters to change; None for all.

        Raises:
            ValueError: The factor is not finite or not above zero.
        """
        self.rescale(factor, names)

    @abstractmethod
    def nbytes(self) -> int:
        """Return the most bytes that were held in the last step, drafts and hash tables included.

        The work space of one bucket, which is gone when ``update`` returns, does not count.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the residuals as plain tensors: float32 by parameter name, or a tagged sketch."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replace the residuals by a state of this or of any other memory.

        Raises:
            ValueError: A value is not a 1-D float tensor.
        """

    def offered_share(self) -> float:
        """Return 1 - β, the share of the residual that is added in each step."""
        return 1.0

    def amplification(self) -> float:
        """Return the sum over all steps of what one gradient adds to residual and sent values.

        It is 1, or 1/(1 - m) under momentum m.
        """
        return 1.0

    def noise(self, compressor: Compressor, cf: float, numel: int) -> float | None:
        """Return θ in ``E‖C(y) - y‖² <= θ‖y‖²``, proven for the way in which the residual y is stored.

        It is 0 for exact storage and None if nothing is proven.
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
    """Return whether adding this residual would make a finite gradient non-finite, now or soon."""
    return residual.numel() > 0 and not float(torch.linalg.vector_norm(residual, float("inf"))) < LARGEST
