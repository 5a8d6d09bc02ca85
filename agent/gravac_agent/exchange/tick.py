"""The tick: one small all-reduce a step that makes every rank know the same things.

A float64 vector, summed over ranks: energies of this step, flags, rank 0's directive (zeros from the others), and the
fingerprint of the plan for the *next* step, so that a disagreement is seen before it is acted on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import get_args

import torch
from torch import Tensor

from gravac.protocol import Phase
from gravac_agent.exchange.plan import Directive

PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(slots=True)
class StepSums:
    """One rank's sums over the buckets of one step; after the tick, over ranks. Energies of bad steps are left out."""

    gradient_sq: float = 0.0
    compensated_sq: float = 0.0
    sent_sq: float = 0.0
    minimum_sq: float = 0.0
    candidate_sq: float = 0.0
    residual_sq: float = 0.0
    residual_dot_gradient: float = 0.0
    nonfinite: float = 0.0  # ranks with a NaN or infinity
    failed: float = 0.0  # ranks whose compression failed

    def values(self) -> tuple[float, ...]:
        """All of them, in order. (``dataclasses.astuple`` copies deeply, which costs more than a tick should.)"""
        return tuple(getattr(self, name) for name in NAMES)

    def flagged(self) -> "StepSums":
        """Flags only: what a rank contributes when its energies mean nothing."""
        return StepSums(nonfinite=self.nonfinite, failed=self.failed)


NAMES = tuple(field.name for field in fields(StepSums))


@dataclass(frozen=True, slots=True)
class Tick:
    """What all ranks know after the tick of a step."""

    sums: StepSums
    directive: Directive
    agreed: bool
    """Whether every rank announced the same plan for the next step."""
    means: tuple[float, ...] = ()
    """Of the aggregator's figures, over ranks."""


@dataclass(slots=True)
class TickCodec:
    """Packs and unpacks ticks. ``rank`` 0 speaks for the controller."""

    rank: int
    world_size: int
    size: int = field(default=len(NAMES) + 5 + 6, init=False)

    def pack(
        self,
        sums: StepSums,
        directive: Directive,
        fingerprint: tuple[int, int, int],
        figures: Sequence[float] = (),
    ) -> Tensor:
        """``figures``: the aggregator's, as many on all ranks; they come after the ``size`` numbers of every tick."""
        if self.rank == 0:
            words = (
                directive.epoch,
                PHASES.index(directive.phase),
                directive.cf_minimum,
                directive.cf_candidate,
                directive.epsilon,
            )
        else:
            words = (0, 0, 0.0, 0.0, 0.0)
        squares = tuple(piece * piece for piece in fingerprint)
        clean = sums.flagged() if sums.nonfinite else sums
        return torch.tensor([*clean.values(), *words, *fingerprint, *squares, *figures], dtype=torch.float64)

    def pack_verdict(self, sums: StepSums, figures: int) -> Tensor:
        """A vector of the same size that is no step's: its fingerprint is of no plan (those have 16 bits a piece)."""
        pieces = (1 << 16,) * 3
        numbers = [
            *sums.values(),
            *(0.0,) * 5,
            *pieces,
            *(piece * piece for piece in pieces),
            *(0.0,) * figures,
        ]
        return torch.tensor(numbers, dtype=torch.float64)

    def unpack(self, vector: Tensor) -> Tick:
        values = vector.tolist()
        count = len(NAMES)
        epoch, phase, minimum, candidate, epsilon = values[count : count + 5]
        pieces, squares = values[count + 5 : count + 8], values[count + 8 : self.size]
        # All equal exactly when N·Σx² = (Σx)² (Cauchy-Schwarz); integers this small are exact in float64.
        agreed = all(
            self.world_size * int(square) == int(piece) ** 2
            for piece, square in zip(pieces, squares, strict=True)
        )
        return Tick(
            StepSums(*values[:count]),
            Directive(int(epoch), PHASES[int(phase)], minimum, candidate, epsilon),
            agreed,
            tuple(figure / self.world_size for figure in values[self.size :]),
        )
