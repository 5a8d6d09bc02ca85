"""One bucket of one step on one rank: compensate, compress, send, remember, and sum the energies."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gravac import kernels
from gravac.aggregators import Aggregator, Draft, Exchange
from gravac.compressors import Key
from gravac.compressors.base import kept_count
from gravac.kernels import LEAST_CF, Sifter
from gravac.memories import Bucket, Memory
from gravac_agent.exchange import fit, kinds, offer
from gravac_agent.exchange.failing import Failing
from gravac_agent.exchange.offer import Offer
from gravac_agent.exchange.plan import Plan
from gravac_agent.exchange.survey import NOTHING, Survey
from gravac_agent.exchange.tick import StepSums

log = logging.getLogger("gravac.agent")


@dataclass(slots=True)
class Encoder:
    """Puts what a plan asks for on its way: an aggregation in flight, or None for the dense bucket itself."""

    compressor: str
    """What ``aggregator`` was built from."""
    aggregator: Aggregator
    memory: Memory
    failing: Failing = field(default_factory=Failing, init=False)
    _sifters: dict[int, Sifter] = field(default_factory=dict, init=False)
    """By bucket, for the k of the running step's mildest CF."""
    _narrow: fit.Narrow = field(default_factory=fit.Narrow, init=False)
    _said: set[str] = field(default_factory=set, init=False)
    _notes: list[str] = field(default_factory=list, init=False)

    def start(
        self, plan: Plan, bucket: Bucket, gradient: Tensor, key: Key, sums: StepSums, survey: Survey = NOTHING
    ) -> Exchange | None:
        """``gradient`` (flat, DDP's own buffer) changes only when None is returned: it then holds gradient + residual.

        Whatever goes wrong before sending, the ranks exchange what every other rank expects: a failure sends nothing
        and keeps all in the memory, a non-finite bucket sends NaN so that every rank (and a GradScaler) sees it.
        May wait for other ranks. Raises only what a collective raised.
        """
        if gradient.is_sparse:
            self._pass(bucket, gradient, sums)
            return None
        plan, before = self.failing.plan(plan, bucket), sums.failed
        sums.failed = 0
        flight = self._encode(plan, bucket, gradient, key, sums, survey)
        self.failing.count(bucket, failed=sums.failed > 0)
        sums.failed = max(before, sums.failed)
        return flight

    def _encode(
        self, plan: Plan, bucket: Bucket, gradient: Tensor, key: Key, sums: StepSums, survey: Survey
    ) -> Exchange | None:
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

    def land(self, bucket: Bucket, mean_into: Callable[[Tensor], None], buffer: Tensor, dense: bool) -> bool:
        """Write the mean to DDP's ``buffer``; what its format cannot hold stays in the memory. False when the mean is
        not finite, as far as that was looked at: only a narrow format overflows where every rank's part was finite.
        ``dense``: the buffer itself was reduced."""
        if buffer.is_sparse or fit.limit(buffer.dtype, 1) == math.inf:
            mean_into(buffer)
            return True
        if dense:
            return fit.finite(buffer)
        finite, excess = self._narrow.land(mean_into, buffer)
        if excess is not None:
            self.memory.hold_back(bucket, excess)
            self._say_narrow(buffer)
        return finite

    def say(self, sentence: str) -> None:
        """Put a sentence into log and journal, once in a job."""
        if sentence not in self._said:
            self._said.add(sentence)
            self._notes.append(sentence)

    def take_notes(self) -> list[str]:
        """Sentences since this was last asked; between steps."""
        if not self._notes:
            return []
        notes, self._notes = self._notes, []
        return notes

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
        return idle and not self.memory.has_residual(bucket)

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
        ranked = bool(plan.measured) and self.aggregator.uses_histogram(gradient)
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
        part = self._part(bucket, gradient, offered)
        if plan.measured:
            x, known = (offered.x, offered.known) if part is None else (part, None)
            draft = self.aggregator.prepare(bucket, x, plan.measured, key, gradient.dtype, known)
            energies = [draft.kept_energy(cf) for cf in plan.measured]
        _count(sums, offered.gradient_sq, offered.sq, energies[0], energies[-1])
        if plan.cf > 1.0:
            return offered, draft
        sums.sent_sq += offered.sq if part is None else kernels.energy(part)
        residual = fit.send_whole(self.memory, bucket, offered.x, part, gradient.dtype)
        if residual is not None:
            self._owe(kernels.energy(residual), kernels.inner(residual, gradient), sums)
        gradient.copy_(offered.x if part is None else part)
        return offered, None

    def _part(self, bucket: Bucket, gradient: Tensor, offered: Offer) -> Tensor | None:
        """What fits the gradient's format of all that there is to send; None: all of it."""
        if offered.x is gradient:  # no memory: what is not sent would be lost
            return None
        most = fit.limit(gradient.dtype, self.aggregator.communicator.size)
        part = fit.clamped(offered.x, offered.sq, most)
        if part is not None:
            self._say_narrow(gradient)
        return part

    def _pass(self, bucket: Bucket, gradient: Tensor, sums: StepSums) -> None:
        """A sparse gradient is sent as plain DDP sends it."""
        sq = kinds.norm_sq(gradient)
        if not math.isfinite(sq):
            sums.nonfinite = 1
        _count(sums, sq, sq, sq, sq)
        sums.sent_sq += sq
        self.say(f"Gradients of {bucket.names[0]} are sparse: they are not compressed.")

    def _say_narrow(self, gradient: Tensor) -> None:
        self.say(
            f"Gradient + residual leaves {gradient.dtype}, which ends at {torch.finfo(gradient.dtype).max:,.0f}: what "
            "does not fit stays in the error memory. A smaller loss scale or compression factor avoids it."
        )

    def _sifter(self, bucket: Bucket, numel: int, cf: float) -> Sifter | None:
        if cf < LEAST_CF:
            return None
        k, sifter = kept_count(numel, cf), self._sifters.get(bucket.number)
        if sifter is None or (sifter.k, sifter.numel) != (k, numel):
            sifter = self._sifters[bucket.number] = Sifter(k, numel)
        return sifter

    def _keep(
        self, bucket: Bucket, gradient: Tensor, flight: Exchange, offered: Offer | None, sums: StepSums
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


def named(names: tuple[str, ...]) -> str:
    """A bucket's parameters, for a message."""
    return names[0] + (f" and {len(names) - 1} more parameters" if len(names) > 1 else "")


def _count(sums: StepSums, gradient: float, compensated: float, minimum: float, candidate: float) -> None:
    sums.gradient_sq += gradient
    sums.compensated_sq += compensated
    sums.minimum_sq += minimum
    sums.candidate_sq += candidate
