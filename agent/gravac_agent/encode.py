"""One bucket of one step on one rank: compensate, compress, send, remember, and sum the energies."""

import logging
import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gravac.aggregators import Aggregator, Draft, Flight
from gravac.compressors import Key
from gravac.kernels import energy, inner
from gravac.memories import Bucket, Memory
from gravac_agent.plan import Plan
from gravac_agent.tick import StepSums

log = logging.getLogger("gravac.agent")

_NO_CODEC: Any = None  # an update without a payload never looks at the codec


@dataclass(slots=True)
class Encoder:
    """Puts what a plan asks for on its way: an aggregation in flight, or None for the dense bucket itself."""

    compressor: str
    """What ``aggregator`` was built from."""
    aggregator: Aggregator
    memory: Memory

    def start(self, plan: Plan, bucket: Bucket, gradient: Tensor, key: Key, sums: StepSums) -> Flight | None:
        """``gradient`` (flat, DDP's own buffer) changes only when None is returned: it then holds gradient + residual.

        Whatever goes wrong before sending, the ranks exchange what every other rank expects: a failure sends nothing
        and keeps all in the memory, a non-finite bucket sends NaN so that every rank (and a GradScaler) sees it.
        May wait for other ranks. Raises only what a collective raised.
        """
        try:
            draft, finite = self._prepare(plan, bucket, gradient, key, sums)
        except Exception:
            log.exception(
                "compressing bucket %d failed; sending nothing from this rank in this step", bucket.number
            )
            sums.failed = 1
            draft, finite = (None if plan.cf == 1.0 else self._blank(plan, bucket, gradient, key, 0.0)), True
        if draft is None:
            return None
        flight = draft.send(plan.cf)
        if finite:
            try:
                self._keep(bucket, gradient, flight, sums)
            except Exception:  # what was owed stays owed
                log.exception("the error memory failed on bucket %d", bucket.number)
                sums.failed = 1
        return flight

    def commit(self) -> None:
        """The step counts: what is owed and what was learnt stays."""
        self.memory.commit()
        self.aggregator.commit()

    def rollback(self) -> None:
        """The step does not count: it leaves no trace."""
        self.memory.rollback()
        self.aggregator.rollback()

    def passes_through(self, plan: Plan, bucket: Bucket) -> bool:
        """Whether this step hands on the raw gradient: dense, nothing measured, nothing owed."""
        idle = plan.cf == 1.0 and not plan.measured and not self.memory.transforms
        return idle and not self.memory.owes(bucket)

    def _prepare(
        self, plan: Plan, bucket: Bucket, gradient: Tensor, key: Key, sums: StepSums
    ) -> tuple[Draft | None, bool]:
        """The draft to send, None when the dense bucket goes out, which then holds all there is to send; and whether
        what there was to compress was finite."""
        gradient_sq = energy(gradient)
        if not math.isfinite(gradient_sq):
            sums.nonfinite = 1
        if self.passes_through(plan, bucket):
            _count(sums, gradient_sq, gradient_sq, gradient_sq, gradient_sq)
            sums.sent_sq += gradient_sq
            return None, True
        compensated = self.memory.compensate(bucket, gradient, whole=plan.cf == 1.0)
        compensated_sq = energy(compensated)
        if not math.isfinite(compensated_sq):
            sums.nonfinite = 1
            # Dense: the gradient is non-finite itself, or about to be summed with those that are.
            return (None if plan.cf == 1.0 else self._blank(plan, bucket, gradient, key, math.nan)), False
        draft, kept = None, [compensated_sq]
        if plan.measured:
            draft = self.aggregator.prepare(bucket, compensated, plan.measured, key, gradient.dtype)
            kept = [draft.kept_energy(cf) for cf in plan.measured]
        _count(sums, gradient_sq, compensated_sq, kept[0], kept[-1])
        if plan.cf > 1.0:
            return draft, True
        sums.sent_sq += compensated_sq
        self._remember(self.memory.update(bucket, _NO_CODEC, None), gradient, sums)
        gradient.copy_(compensated)
        return None, True

    def _keep(self, bucket: Bucket, gradient: Tensor, flight: Flight, sums: StepSums) -> None:
        """What this rank is deemed to have sent leaves its memory; the transfer goes on meanwhile."""
        sums.sent_sq += flight.codec.energy(flight.payload)
        self._remember(self.memory.update(bucket, flight.codec, flight.payload), gradient, sums)

    def _remember(self, residual: Tensor | None, gradient: Tensor, sums: StepSums) -> None:
        if residual is not None:
            share = 1.0 / self.memory.amplification()  # in units of gradients, whatever the memory keeps
            sums.residual_sq += energy(residual) * share**2
            sums.residual_dot_gradient += inner(residual, gradient) * share

    def _blank(self, plan: Plan, bucket: Bucket, gradient: Tensor, key: Key, value: float) -> Draft:
        return self.aggregator.blank(bucket, plan.cf, key, gradient.dtype, gradient.device, value)


def _count(sums: StepSums, gradient: float, compensated: float, minimum: float, candidate: float) -> None:
    sums.gradient_sq += gradient
    sums.compensated_sq += compensated
    sums.minimum_sq += minimum
    sums.candidate_sq += candidate
