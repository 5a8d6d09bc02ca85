"""The decision that the ranks follow, and dense training while no controller answers (promise P5)."""

from gravac.policies import build
from gravac.policies.base import PolicyState
from gravac.protocol import Decision, JobSpec
from gravac_agent.exchange.plan import Directive
from gravac_agent.reporting.controller_api import DecisionChecker, read_state


class DecisionInForce:
    """What the ranks do: what the last valid decision says, or the same densely.

    Args:
        spec: The job.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._policy = build(spec.policy).fitted(spec)
        start = self._policy.start().decision
        if spec.policy_state is not None:
            start = read_state(self._policy, spec.policy_state).decision
        latest = None if spec.policy_state is None else start
        self._checker = DecisionChecker(self._policy, latest)
        self.policy_state = spec.policy_state
        """The policy's state as JSON; None before the first answer."""
        self._decided = self.directive = self.directive_of(start)

    @property
    def dense(self) -> bool:
        """Whether the ranks are dense by agreement, because the controller does not answer."""
        return self.directive is not self._decided

    def fall_back(self) -> None:
        """Go dense."""
        self.directive = self._decided.dense()

    def recover(self) -> None:
        """Follow the last valid decision again."""
        self.directive = self._decided

    def adopt(self, decision: Decision, policy_state: str, decided: int | None) -> None:
        """Check a decision, as ``DecisionChecker.accept`` does, and put it in force where the ranks are not dense.

        Raises:
            NoAnswer: The decision is not valid.
        """
        self._checker.accept(decision, policy_state, decided)
        dense, self.policy_state = self.dense, policy_state
        self._decided = self.directive_of(decision)
        if not dense:
            self.directive = self._decided

    def state_of(self, policy_state: str) -> PolicyState:
        """Parse a state of the job's policy. Raises NoAnswer or ValueError if it is none."""
        return read_state(self._policy, policy_state)

    def resume(self, state: PolicyState, directive: Directive) -> None:
        """Continue from a checkpoint, whose decision extends the bounds of later ones.

        Args:
            state: The policy's state.
            directive: What its decision tells the ranks.
        """
        self.policy_state = state.model_dump_json()
        self._decided = self.directive = directive
        self._checker.resume(state.decision)

    def directive_of(self, decision: Decision) -> Directive:
        """Return the directive of a decision. Raises ValueError for one with a codec that the policy does not list."""
        return Directive.of(decision, self._policy.codecs())
