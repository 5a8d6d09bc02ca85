"""The Policy protocol: one verb, ``decide``, pure and deterministic.

No clock, no I/O, no randomness, no library maths beyond + - * / and comparisons: replaying a trace must give
the same decisions, byte for byte, on every platform (promise P7).
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from pydantic import model_validator

from gravac.protocol import Decision, Override, PolicySpec, Record, WindowReport


class PolicyState(Record):
    """Base of every policy's state. ``decision`` is the one in force, so a state alone can resume a job.

    ``override``: the operator's order in force, null while the policy decides; ``suspended``: the policy's own decision
    meanwhile. Both are ``gravac.policies.steering``'s: no policy is asked while they are set.
    """

    decision: Decision
    override: Override | None = None
    suspended: Decision | None = None

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.override is None) != (self.suspended is None):
            raise ValueError("override and suspended go together: give both or neither")
        if self.decision.phase == "fallback":
            raise ValueError(
                "decision.phase must not be 'fallback': only agents enter it, no policy decides it"
            )
        return self


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy answers: the decision (its reason inside) and the state to hand back next time."""

    decision: Decision
    state: PolicyState


class Policy(Protocol):
    """A decision rule. Settings live in the instance, everything that changes lives in the state."""

    name: ClassVar[str]
    State: ClassVar[type[PolicyState]]

    def start(self, epoch: int = 0) -> Verdict:
        """The decision a job begins with (window -1), numbered ``epoch``."""
        ...

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Decide after one window. Never raises on a valid report."""
        ...

    def largest_cf(self) -> float:
        """The largest CF that this policy can choose. An agent refuses a decision above it."""
        ...

    def spec(self) -> PolicySpec:
        """Name and every setting resolved; ``gravac.policies.build`` makes an equal policy from it."""
        ...
