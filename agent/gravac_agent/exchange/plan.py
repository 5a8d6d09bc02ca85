"""What all ranks must agree on before a step, and how it follows from what they all know. Pure."""

from dataclasses import dataclass, replace
from hashlib import sha256

from gravac.protocol import Decision, Phase
from gravac.signals.gain import GainTracker


@dataclass(frozen=True, slots=True)
class Directive:
    """The part of a decision that the ranks follow. It travels from rank 0 to all ranks in the tick."""

    epoch: int
    phase: Phase
    cf_minimum: float
    cf_candidate: float
    epsilon: float

    @classmethod
    def of(cls, decision: Decision) -> "Directive":
        """Return the directive of a decision."""
        return cls(
            decision.epoch, decision.phase, decision.cf_minimum, decision.cf_candidate, decision.epsilon
        )

    def dense(self) -> "Directive":
        """Return the same decision with the ranks gone dense by agreement (promise P5)."""
        return replace(self, phase="fallback", cf_minimum=1.0, cf_candidate=1.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: the directive in force and the CF to send (1 = dense)."""

    directive: Directive
    cf: float

    @property
    def measured(self) -> tuple[float, ...]:
        """CFs to compress to in this step, weakest first: minimum and candidate, equal in hold; none when dense."""
        pair = {self.directive.cf_minimum, self.directive.cf_candidate}
        return tuple(sorted(cf for cf in pair if cf > 1.0))

    def fingerprint(self, setup: str) -> tuple[int, int, int]:
        """Return 48 bits in three 16-bit pieces, equal exactly if plan and ``setup`` (codec, sizes, …) are."""
        digest = sha256(f"{setup}|{self!r}".encode()).digest()
        return (
            int.from_bytes(digest[0:2], "big"),
            int.from_bytes(digest[2:4], "big"),
            int.from_bytes(digest[4:6], "big"),
        )


def next_plan(directive: Directive, tracker: GainTracker) -> Plan:
    """GraVAC's three-way gate (Alg. 1 lines 11-24): candidate, else minimum, else dense, by smoothed gain >= epsilon.

    A gain that is not measured yet does not pass: the first step at a new CF sends something weaker.
    """
    for cf in (directive.cf_candidate, directive.cf_minimum):
        gain = tracker.gain(cf)
        if gain is not None and gain >= directive.epsilon:
            return Plan(directive, cf)
    return Plan(directive, 1.0)
