"""The tick: one small all-reduce at the end of each step, after which all ranks know the same numbers.

It is a float64 vector that is summed over ranks. It holds the energies of this step, flags, rank 0's directive (the
other ranks add zeros), and the fingerprint of the plan of the *next* step, so that a disagreement is found before any
rank acts on it. A sample of the step's raw gradients goes along, since it would otherwise need its own collective.
``docs/wire.md`` has all fields in order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, cast, get_args

import torch
from torch import Tensor

from gravac.kernels import Scalar
from gravac.protocol import Phase
from gravac_agent.exchange import raw_mean
from gravac_agent.exchange.plan import Directive, StepPlan

PHASES: tuple[Phase, ...] = get_args(Phase)
_WORDS = tuple(field.name for field in fields(Directive))
_WHOLE = ("epoch", "codec", "window_steps", "back_codec")
"""Words that are whole numbers."""
_PHASE = _WORDS.index("phase")


@dataclass(slots=True)
class Energies:
    """What is measured of gradients: floats. On a device they are tensors of shape ``()`` until the tick is read."""

    gradient_sq: Any = 0.0
    compensated_sq: Any = 0.0  # of gradient + residual
    sent_sq: Any = 0.0
    minimum_sq: Any = 0.0  # what is left of it at the weaker CF of the plan
    candidate_sq: Any = 0.0
    residual_sq: Any = 0.0  # of the new residual
    residual_dot_gradient: Any = 0.0


@dataclass(slots=True)
class StepSums(Energies):
    """One rank's sums over the buckets of one step; after the tick, those of all ranks.

    Energies of non-finite steps are left out.
    """

    nonfinite: float = 0.0  # ranks with a NaN or infinity
    failed: float = 0.0  # ranks whose compression failed
    slow: float = 0.0  # ranks on which the step before, of a trial, took longer than it may
    shards_sq: float = 0.0  # ‖shard of the raw mean‖² of each rank, where gradients are sharded

    def add(self, bucket: "BucketSums") -> None:
        """Add what one bucket has measured."""
        for name in _ENERGIES:
            setattr(self, name, getattr(self, name) + getattr(bucket, name))
        if isinstance(bucket.finite, Tensor):
            self.nonfinite = cast("float", torch.where(bucket.finite, self.nonfinite, 1.0))
        elif not bucket.finite:
            self.nonfinite = 1.0
        if bucket.failed:
            self.failed = 1.0

    def values(self) -> tuple[float, ...]:
        """Return all sums, in order."""
        # Not ``dataclasses.astuple``, which copies deeply and is too slow here.
        return tuple(getattr(self, name) for name in NAMES)

    def flagged(self) -> "StepSums":
        """Return the flags alone, for a rank whose energies are not finite."""
        return StepSums(**{name: getattr(self, name) for name in FLAGS})


NAMES = tuple(field.name for field in fields(StepSums))
FLAGS = ("nonfinite", "failed", "slow")
"""Those that count ranks."""
_ENERGIES = tuple(field.name for field in fields(Energies))


@dataclass(slots=True)
class BucketSums(Energies):
    """One bucket's part of ``StepSums`` on one rank."""

    finite: bool | Tensor = True
    failed: bool = False

    def note_finite(self, *energies: Scalar) -> bool:
        """Note whether energies are finite. Return it; always True on a device, as nothing is read there."""
        for sq in energies:
            if isinstance(sq, Tensor):
                self.finite = self.finite & torch.isfinite(sq)
            elif not math.isfinite(sq):
                self.finite = False
                return False
        return True


@dataclass(frozen=True, slots=True)
class Tick:
    """What all ranks know after the tick of a step."""

    sums: StepSums
    directive: Directive
    agreed: bool
    """Whether every rank announced the same plan for the next step."""
    means: tuple[float, ...] = ()
    """Means over ranks of the aggregator's statistics."""
    raw_mean: tuple[float, ...] = raw_mean.NOT_MEASURED
    """Sums over ranks of what ``RawMeanMeter`` measured."""
    sample: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64, device="cpu"))
    """Mean over ranks of the sampled raw gradients."""


NOTHING = Directive(0, PHASES[0], 0.0, 0.0, 0.0)
NOT_READ = Tick(StepSums(), NOTHING, agreed=False)
"""The tick of a step that has not ended."""


class DirectiveSource(Protocol):
    """What gives rank 0 its directive: its reporter."""

    @property
    def directive(self) -> Directive:
        """What the ranks should do now."""
        ...


class Announcement:
    """What this rank announces in each tick: rank 0's directive, the fingerprint of the next step's plan, and whether
    a trial is too slow.

    The training thread changes it between steps and the exchange thread reads it at the end of each, so neither calls
    the other for it.

    Args:
        setup: What was agreed on at the start, as text; part of each fingerprint.
        following: Plan of the step after the running one.
        source: Rank 0's reporter; None on the other ranks, whose directive is ignored.
    """

    def __init__(self, setup: str, following: StepPlan, source: DirectiveSource | None) -> None:
        self._setup, self.following, self._source = setup, following, source
        self.slow = False
        """Whether the step before, of a trial, took longer on this rank than it may."""
        self._announced: tuple[StepPlan, tuple[int, int, int]] | None = None  # a plan and its fingerprint

    @property
    def directive(self) -> Directive:
        """The directive that the ranks should follow next, as far as this rank knows."""
        return self.following.directive if self._source is None else self._source.directive

    def fingerprint(self) -> tuple[int, int, int]:
        """Return the fingerprint of the next step's plan."""
        if self._announced is None or self._announced[0] != self.following:
            self._announced = self.following, self.following.fingerprint(self._setup)
        return self._announced[1]

    def add(self, text: str) -> None:
        """Add a text that must be equal on all ranks. If it is not, their fingerprints differ from the next tick on."""
        self._setup += f"|{text}"
        self._announced = None


@dataclass(slots=True)
class TickCodec:
    """Packs and unpacks ticks. Only the directive of ``rank`` 0 is sent."""

    rank: int
    world_size: int
    sampled: int = 0
    """Coordinates of the sample of raw gradients."""
    size: int = field(default=len(NAMES) + len(_WORDS) + 6 + raw_mean.SIZE, init=False)

    def pack(
        self,
        sums: StepSums,
        directive: Directive,
        fingerprint: tuple[int, int, int],
        statistics: Sequence[float] = (),
        measured: Sequence[Scalar] = raw_mean.NOT_MEASURED,
        sample: Tensor | None = None,
    ) -> Tensor:
        """Return this rank's vector, float64 of shape ``(size + len(statistics) + sampled,)``.

        Args:
            sums: This rank's sums of the step.
            directive: Rank 0's directive; other ranks send zeros for it.
            fingerprint: Fingerprint of the next step's plan.
            statistics: The aggregator's numbers, as many on all ranks.
            measured: ``RawMeanMeter.pop``.
            sample: This rank's sampled raw gradients, float64 of shape ``(sampled,)``; None if there is no sample.
        """
        # NaN in one rank's energies would be the sum of all ranks, and hide their flags.
        clean = sums.flagged() if sums.nonfinite else sums
        head = torch.tensor(
            self.numbers(clean, directive, fingerprint, statistics, measured),
            dtype=torch.float64,
            device="cpu",
        )
        return head if sample is None else torch.cat((head, sample))

    def numbers(
        self,
        sums: StepSums,
        directive: Directive,
        fingerprint: tuple[int, int, int],
        statistics: Sequence[Scalar],
        measured: Sequence[Scalar],
    ) -> list[Scalar]:
        """Return the numbers of this rank's vector in order; see ``pack``. On a device some of them are tensors."""
        energies, words = [getattr(sums, name) for name in NAMES], [0.0] * len(_WORDS)
        if self.rank == 0:
            words = [getattr(directive, name) for name in _WORDS]
            words[_PHASE] = PHASES.index(directive.phase)
        # ``unpack`` compares the pieces of all ranks by their sums and those of their squares.
        squares = [piece * piece for piece in fingerprint]
        return [*energies, *words, *fingerprint, *squares, *measured, *statistics]

    def pack_status(self, sums: StepSums, statistics: int) -> Tensor:
        """Return a vector of the same size for use outside a step. Its fingerprint is none that a plan can have, whose
        pieces have 16 bits."""
        zeros = (0.0,) * (statistics + self.sampled)
        numbers = self.numbers(sums, NOTHING, (1 << 16,) * 3, zeros, raw_mean.NOT_MEASURED)
        return torch.tensor(numbers, dtype=torch.float64, device="cpu")

    def unpack(self, vector: Tensor) -> Tick:
        """Read the sum over ranks of what they packed."""
        head, sample = vector.tensor_split((len(vector) - self.sampled,))
        values = head.tolist()
        count = len(NAMES)
        agreed_at = count + len(_WORDS)
        words = dict(zip(_WORDS, values[count:agreed_at], strict=True))
        whole = {name: int(words[name]) for name in _WHOLE}
        pieces, squares = values[agreed_at : agreed_at + 3], values[agreed_at + 3 : agreed_at + 6]
        # All equal exactly when N·Σx² = (Σx)² (Cauchy-Schwarz); integers this small are exact in float64.
        agreed = all(
            self.world_size * int(square) == int(piece) ** 2
            for piece, square in zip(pieces, squares, strict=True)
        )
        return Tick(
            StepSums(*values[:count]),
            Directive(**(words | whole | {"phase": PHASES[int(words["phase"])]})),
            agreed,
            tuple(figure / self.world_size for figure in values[self.size :]),
            tuple(values[agreed_at + 6 : self.size]),
            sample / self.world_size,
        )
