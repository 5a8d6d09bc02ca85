"""One bucket of one step on one rank: compensate, compress, send, remember, and sum the energies."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gravac import kernels
from gravac.aggregators import Aggregator, Draft, Flight
from gravac.compressors import Key
from gravac.compressors.base import kept
from gravac.kernels import LEAST_CF, Sifter
from gravac.memories import Bucket, Memory
from gravac_agent import offer
from gravac_agent.offer import Offer
from gravac_agent.plan import Plan
from gravac_agent.survey import NOTHING, Survey
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
    _sifters: dict[int, Sifter] = field(default_factory=dict, init=False)
    """By bucket, for the k of the running step's mildest CF."""

    def start(
        self, plan: Plan, bucket: Bucket, gradient: Tensor, key: Key, sums: StepSums, survey: Survey = NOTHING
    ) -> Flight | None:
        """``gradient`` (flat, DDP's own buffer) changes only when None is returned: it then holds gradient + residual.

        Whatever goes wrong before sending, the ranks exchange what every other rank expects: a failure sends nothing
        and keeps all in the memory, a non-finite bucket sends NaN so that every rank (and a GradScaler) sees it.
        May wait for other ranks. Raises only what a collective raised.
        """
        offered, finite = None, True
        try:
            offered, draft = self._prepare(plan, bucket, gradient, key, sums, survey)
            finite = offered is not None
        except Exception:
            log.exception(
                "compressing bucket %d failed; sending nothing from this rank in this step", bucket.number
            )
            sums.failed = 1
            draft = None if plan.cf == 1.0 else self._blank(plan, bucket, gradient, key, 0.0)
        if draft is None:
            return None
        flight = draft.send(plan.cf)
        if finite:
            try:
                self._keep(bucket, gradient, flight, offered, sums)
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
        self, plan: Plan, bucket: Bucket, gradient: Tensor, key: Key, sums: StepSums, survey: Survey
    ) -> tuple[Offer | None, Draft | None]:
        """The draft to send, None when the dense bucket goes out, which then holds all there is to send; and what there
        was to send, None when it was not finite."""
        if self.passes_through(plan, bucket):
            counted = kernels.tally(gradient) if survey.wanted else None
            sq = kernels.energy(gradient) if counted is None else counted.energy
            if math.isfinite(sq):
                survey.take(counted)
            else:
                sums.nonfinite = 1
            _count(sums, sq, sq, sq, sq)
            sums.sent_sq += sq
            return None, None
        ranked = bool(plan.measured) and self.aggregator.counts(gradient)
        sifter = self._sifter(bucket, gradient.numel(), plan.measured[0]) if ranked else None
        count = survey.wanted or (ranked and sifter is None)
        offered = offer.make(self.memory, bucket, gradient, whole=plan.cf == 1.0, count=count, sifter=sifter)
        if not (math.isfinite(offered.gradient_sq) and math.isfinite(offered.sq)):
            sums.nonfinite = 1
        if not math.isfinite(offered.sq):
            # Dense: the gradient is non-finite itself, or about to be summed with those that are.
            return None, None if plan.cf == 1.0 else self._blank(plan, bucket, gradient, key, math.nan)
        survey.take(offered.counted)
        draft, energies = None, [offered.sq]
        if plan.measured:
            draft = self.aggregator.prepare(
                bucket, offered.x, plan.measured, key, gradient.dtype, offered.known
            )
            energies = [draft.kept_energy(cf) for cf in plan.measured]
        _count(sums, offered.gradient_sq, offered.sq, energies[0], energies[-1])
        if plan.cf > 1.0:
            return offered, draft
        sums.sent_sq += offered.sq
        residual = self.memory.update(bucket, _NO_CODEC, None)
        if residual is not None:
            self._owe(kernels.energy(residual), kernels.inner(residual, gradient), sums)
        gradient.copy_(offered.x)
        return offered, None

    def _sifter(self, bucket: Bucket, numel: int, cf: float) -> Sifter | None:
        if cf < LEAST_CF:
            return None
        k, sifter = kept(numel, cf), self._sifters.get(bucket.number)
        if sifter is None or (sifter.k, sifter.numel) != (k, numel):
            sifter = self._sifters[bucket.number] = Sifter(k, numel)
        return sifter

    def _keep(
        self, bucket: Bucket, gradient: Tensor, flight: Flight, offered: Offer | None, sums: StepSums
    ) -> None:
        """What this rank is deemed to have sent leaves its memory; the transfer goes on meanwhile. ``offered``: None
        when preparing failed."""
        codec, payload = flight.codec, flight.payload
        sent_sq = codec.energy(payload)
        sums.sent_sq += sent_sq
        if offered is None or not offered.plain or payload.support is None:
            residual = self.memory.update(bucket, codec, payload)
            if residual is not None:
                self._owe(kernels.energy(residual), kernels.inner(residual, gradient), sums)
            return
        # With e = p - s: ‖e‖² = ‖p‖² - 2⟨p, s⟩ + ‖s‖², ⟨e, g⟩ = ⟨p, g⟩ - ⟨s, g⟩; s has few elements.
        owed_sq = offered.sq - 2.0 * codec.inner(payload, offered.x) + sent_sq
        owed_dot = offered.dot(gradient) - codec.inner(payload, gradient)
        if self.memory.update(bucket, codec, payload) is not None:
            self._owe(max(0.0, owed_sq), owed_dot, sums)

    def _owe(self, sq: float, dot_gradient: float, sums: StepSums) -> None:
        share = 1.0 / self.memory.amplification()  # in units of gradients, whatever the memory keeps
        sums.residual_sq += sq * share**2
        sums.residual_dot_gradient += dot_gradient * share

    def _blank(self, plan: Plan, bucket: Bucket, gradient: Tensor, key: Key, value: float) -> Draft:
        return self.aggregator.blank(bucket, plan.cf, key, gradient.dtype, gradient.device, value)


def _count(sums: StepSums, gradient: float, compensated: float, minimum: float, candidate: float) -> None:
    sums.gradient_sq += gradient
    sums.compensated_sq += compensated
    sums.minimum_sq += minimum
    sums.candidate_sq += candidate
