"""One bucket of one step on one rank: compensate, compress, remember, and sum the energies."""

import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gravac.compressors import Compressor, Key, Payload
from gravac.kernels import energy, inner
from gravac.memories import Bucket, Memory
from gravac_agent.plan import Plan
from gravac_agent.tick import StepSums

log = logging.getLogger("gravac.agent")


@dataclass(slots=True)
class Encoder:
    """Turns a bucket into what this rank sends under a plan: a payload, or None for the dense bucket itself."""

    compressor: Compressor
    memory: Memory

    def encode(
        self, plan: Plan, bucket: Bucket, gradient: Tensor, key: Key, sums: StepSums
    ) -> Payload | None:
        """``gradient`` (flat, DDP's own buffer) changes only when None is returned: it then holds gradient + residual.

        Whatever goes wrong here, the answer has the shape every other rank expects: a failure sends nothing and keeps
        all in the memory, a non-finite bucket sends NaN so that every rank (and a GradScaler) sees it.
        """
        try:
            return self._encode(plan, bucket, gradient, key, sums)
        except Exception:
            log.exception(
                "compressing bucket %d failed; sending nothing from this rank in this step", bucket.number
            )
            sums.failed = 1
            if plan.cf == 1.0:
                return None
            empty = self._blank(plan, gradient, key, 0.0)
            self.memory.update(bucket, self.compressor, empty)
            return empty

    def _encode(
        self, plan: Plan, bucket: Bucket, gradient: Tensor, key: Key, sums: StepSums
    ) -> Payload | None:
        gradient_sq = energy(gradient)
        if plan.cf == 1.0 and not plan.measured and not self.memory.owes(bucket):
            self._count(sums, gradient_sq, gradient_sq, gradient_sq, gradient_sq, gradient_sq)
            return None
        compensated = self.memory.compensate(bucket, gradient)
        compensated_sq = energy(compensated)
        if not math.isfinite(compensated_sq):
            sums.nonfinite = 1
            if plan.cf == 1.0:
                return None  # the gradient is non-finite itself, or about to be summed with those that are
            return self._blank(plan, gradient, key, math.nan)
        payloads = self._compress(plan, compensated, key, gradient.dtype)
        payload, codec = payloads.get(plan.cf), self.compressor
        # Before the memory's update, which works on the compensated tensor in place.
        kept = [codec.kept_energy(payloads[cf], compensated) for cf in plan.measured] or [compensated_sq]
        residual = self.memory.update(bucket, codec, payload)
        sent_sq = compensated_sq if payload is None else codec.energy(payload)
        self._count(sums, gradient_sq, compensated_sq, sent_sq, kept[0], kept[-1])
        if residual is not None:
            sums.residual_sq += energy(residual)
            sums.residual_dot_gradient += inner(residual, gradient)
        if payload is None:
            gradient.copy_(compensated)
        return payload

    def _compress(self, plan: Plan, x: Tensor, key: Key, dtype: torch.dtype) -> dict[float, Payload]:
        """Payloads by CF, the second level from the first (multi-level compression, GraVAC §III-C)."""
        payloads: dict[float, Payload] = {}
        for cf in plan.measured:
            weaker = next(iter(payloads.values()), None)
            if weaker is not None and self.compressor.traits.nested:
                payloads[cf] = self.compressor.narrow(weaker, cf)
            else:
                payloads[cf] = self.compressor.compress(x, cf, key, dtype)
        return payloads

    def _blank(self, plan: Plan, gradient: Tensor, key: Key, value: float) -> Payload:
        return self.compressor.blank(gradient.numel(), plan.cf, key, gradient.dtype, gradient.device, value)

    @staticmethod
    def _count(
        sums: StepSums, gradient: float, compensated: float, sent: float, minimum: float, candidate: float
    ) -> None:
        if not math.isfinite(gradient):
            sums.nonfinite = 1
        sums.gradient_sq += gradient
        sums.compensated_sq += compensated
        sums.sent_sq += sent
        sums.minimum_sq += minimum
        sums.candidate_sq += candidate
