"""What a valid answer of a controller is: it parses, fits the job, and its decision stays within the job's bounds."""

import json
from typing import TypeVar

from pydantic import ValidationError

from gravac.policies.base import Policy, PolicyState
from gravac.protocol import Decision, JobAnswer, JobSpec, Record, WindowAnswer
from gravac.wording import first_problem, printable
from gravac_agent.reporting.client import NoAnswer

MAX_STATE_CHARACTERS = 200_000
"""As ``JobSpec.policy_state`` allows: a state that is too long could not be brought back."""
MAX_NEXT_WINDOW = MAX_EPOCH = 2**48
"""Far above any job, and far enough below the largest number that a record holds."""

Answer = TypeVar("Answer", JobAnswer, WindowAnswer)


class Checker:
    """Checks decisions, and the policy's state that comes with each, before the ranks obey the one and keep the other.

    Args:
        policy: the job's policy. No decision may go beyond the largest CF that it can choose.
        pinned_cf: largest CF (elements in / elements kept) that an operator may pin.
        latest: decision of the checkpoint that the job goes on from; None for a fresh start.
    """

    def __init__(self, policy: Policy, pinned_cf: float, latest: Decision | None = None) -> None:
        self._policy, self._pinned_cf = policy, pinned_cf
        self._policy_cf = policy.largest_cf()
        self._latest: Decision | None = None
        if latest is not None:
            self.resume(latest)

    def resume(self, decision: Decision) -> None:
        """Go on from a decision of the user's own checkpoint, whose CF is within bounds then."""
        self._latest = decision
        self._policy_cf = max(self._policy_cf, decision.cf_candidate)

    def accept(self, decision: Decision, policy_state: str, decided: int | None) -> None:
        """Check a decision that a controller wants in force.

        A decision's ``window`` is not compared with anything: after a checkpoint it is in the count of the job that
        saved it, which may be another one.

        Args:
            decision: epochs never go back, and grow by at most one a window.
            policy_state: JSON of the policy's state, which goes into checkpoints.
            decided: the most windows that can have been decided since the last accepted decision; None where nothing is
                known of the job, so that any epoch up to ``MAX_EPOCH`` is valid.

        Raises:
            NoAnswer: naming the field, its value and what is allowed.
        """
        if decision.phase == "fallback":
            raise NoAnswer("a decision of phase 'fallback', which only agents enter")
        if decision.epoch > MAX_EPOCH:
            raise NoAnswer(f"a decision of epoch {decision.epoch}, {MAX_EPOCH} at most")
        before = 0 if self._latest is None else self._latest.epoch
        grown = decision.epoch - before
        if grown < 0 or (decided is not None and grown > decided):
            after = "" if decided is None else f" and at most {decided} windows"
            raise NoAnswer(f"a decision of epoch {decision.epoch}, after epoch {before}{after}")
        largest = max(self._policy_cf, self._pinned_cf) if decision.rule == "pinned" else self._policy_cf
        for name in ("cf_minimum", "cf_candidate"):
            cf = getattr(decision, name)
            if cf > largest:
                raise NoAnswer(f"a decision with {name} {cf:g}, above the job's bound of {largest:g}")
        if read_state(self._policy, policy_state).decision != decision:
            raise NoAnswer("a policy_state that belongs to another decision")
        self._latest = decision


def read_answer(model: type[Answer], body: bytes) -> Answer:
    """Parse an answer. Raises NoAnswer naming what is wrong."""
    try:
        return model.model_validate_json(body)
    except ValueError as error:
        raise NoAnswer(f"the answer is not a {model.__name__}: {_why(error)}") from None


def check_registration(answer: JobAnswer, spec: JobSpec) -> None:
    """Check that the answer is about this job. Raises NoAnswer."""
    if answer.job != spec.job:
        raise NoAnswer(f"the answer is about job {answer.job!r}, not {spec.job!r}")
    if not spec.first_window <= answer.next_window <= MAX_NEXT_WINDOW:
        raise NoAnswer(
            f"next_window {answer.next_window} is outside {spec.first_window} to {MAX_NEXT_WINDOW}"
        )


def read_state(policy: Policy, policy_state: str) -> PolicyState:
    """Parse a policy's state. Raises NoAnswer when it is not one of this policy."""
    if len(policy_state) > MAX_STATE_CHARACTERS:
        raise NoAnswer(f"a policy_state of {len(policy_state)} characters, {MAX_STATE_CHARACTERS} at most")
    try:
        return policy.State.model_validate_json(policy_state)
    except ValueError as error:
        raise NoAnswer(f"policy_state is not a state of policy {policy.name!r}: {_why(error)}") from None


def check_echo(body: bytes, field: str, sent: Record | str) -> None:
    """Check that the answer to an event or an end repeats the event or the job's name. Raises NoAnswer."""
    expected = sent if isinstance(sent, str) else sent.model_dump(mode="json")
    if json.loads(body).get(field) != expected:
        raise NoAnswer(f"the answer does not repeat the {field} that was sent")


def _why(error: Exception) -> str:
    return printable(first_problem(error) if isinstance(error, ValidationError) else str(error), 300)
