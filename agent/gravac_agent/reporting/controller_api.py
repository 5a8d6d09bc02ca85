"""The requests of an agent to a controller, and the checks of its answers.

A valid answer parses and fits the job, and its decision stays within the job's bounds. Anything else raises NoAnswer.
"""

import json
import re
from typing import TypeVar

from pydantic import ValidationError

from gravac.policies.base import Policy, PolicyState
from gravac.policies.steering import LARGEST_PIN
from gravac.protocol import Decision, End, Event, JobAnswer, JobSpec, Record, WindowAnswer, WindowReport
from gravac.wording import first_problem, printable
from gravac_agent.exchange.plan import Directive
from gravac_agent.reporting.connection import ControllerConnection, NoAnswer

MAX_STATE_CHARACTERS = 200_000
"""The limit of ``JobSpec.policy_state``: a longer state could not be registered again."""
MAX_NEXT_WINDOW = MAX_EPOCH = 2**48
"""Far above any job, and far below the largest integer that a record holds."""

Answer = TypeVar("Answer", JobAnswer, WindowAnswer)


def resumed(spec: JobSpec, policy_state: str | None, first_window: int | None) -> JobSpec:
    """Return the spec with the agent's policy state, so that a controller that lost its folder continues from there."""
    if policy_state is None:
        return spec
    window = spec.first_window if first_window is None else first_window
    return spec.model_copy(update={"policy_state": policy_state, "first_window": window})


def register(connection: ControllerConnection, spec: JobSpec) -> JobAnswer:
    """Begin or resume the job. Return the decision in force and the number of the next window."""
    answer = read_answer(JobAnswer, connection.post("/v1/jobs", spec.model_dump_json()))
    check_registration(answer, spec)
    return answer


def send_record(
    connection: ControllerConnection, job: str, record: WindowReport | Event | End
) -> WindowAnswer | None:
    """Deliver a record, which is on disk when this returns. Return the answer to a window; None for other records."""
    path = f"/v1/jobs/{job}/"
    if isinstance(record, WindowReport):
        return read_answer(WindowAnswer, connection.post(path + "windows", record.model_dump_json()))
    if isinstance(record, Event):
        check_echo(connection.post(path + "events", record.model_dump_json()), "event", record)
    else:
        check_echo(connection.post(path + "end", record.model_dump_json()), "job", job)
    return None


class DecisionChecker:
    """Checks each decision and the policy state that comes with it, before the ranks follow the decision.

    Args:
        policy: The job's policy, fitted to the job. No decision may exceed ``LARGEST_PIN`` and the largest CF that it
            can choose, or send with another codec than the job's compressor and those that it can choose.
        latest: Decision of the checkpoint that the job continues from; None for a fresh start.
    """

    def __init__(self, policy: Policy, latest: Decision | None = None) -> None:
        self._policy = policy
        self._policy_cf, self._codecs = policy.largest_cf(), policy.codecs()
        self._latest: Decision | None = None
        if latest is not None:
            self.resume(latest)

    def resume(self, decision: Decision) -> None:
        """Continue from the decision of the user's own checkpoint, which extends the bounds to its CF."""
        self._latest = decision
        self._policy_cf = max(self._policy_cf, decision.cf_candidate)

    def accept(self, decision: Decision, policy_state: str, decided: int | None) -> None:
        """Check a decision from a controller.

        The decision's ``window`` is not checked: after a checkpoint it is the number in the job that saved it, which
        may be another one.

        Args:
            decision: Its epoch may not decrease, and may grow by at most one for each window.
            policy_state: The policy's state as JSON, which goes into checkpoints.
            decided: The most windows that can have been decided since the last accepted decision; None where nothing is
                known of the job, so that any epoch up to ``MAX_EPOCH`` is valid.

        Raises:
            NoAnswer: The decision is not valid; the message names the field, its value and the bound.
        """
        if decision.phase == "fallback":
            raise NoAnswer("a decision of phase 'fallback', which only agents enter")
        if decision.epoch > MAX_EPOCH:
            raise NoAnswer(f"a decision of epoch {decision.epoch}; the most is {MAX_EPOCH}")
        before = 0 if self._latest is None else self._latest.epoch
        grown = decision.epoch - before
        if grown < 0 or (decided is not None and grown > decided):
            after = "" if decided is None else f" and at most {decided} windows"
            raise NoAnswer(f"a decision of epoch {decision.epoch}, after epoch {before}{after}")
        largest = max(self._policy_cf, LARGEST_PIN) if decision.rule == "pinned" else self._policy_cf
        try:
            Directive.of(decision, self._codecs)
        except ValueError as error:
            raise NoAnswer(str(error)) from None
        cfs = {"cf_minimum": decision.cf_minimum, "cf_candidate": decision.cf_candidate}
        if decision.trial is not None:
            cfs["trial.cf"] = decision.trial.cf
        for name, cf in cfs.items():
            if cf > largest:
                raise NoAnswer(f"a decision with {name} {cf:g}, above the job's bound of {largest:g}")
        if read_state(self._policy, policy_state).decision != decision:
            raise NoAnswer("a policy_state that belongs to another decision")
        self._latest = decision


def read_answer(model: type[Answer], body: bytes) -> Answer:
    """Parse an answer. Raises NoAnswer, which names what is wrong."""
    try:
        return model.model_validate_json(body)
    except ValueError as error:
        raise NoAnswer(f"the answer is not a {model.__name__}: {_why(error)}") from None


def check_registration(answer: JobAnswer, spec: JobSpec) -> None:
    """Check that the answer is about this job. Raises NoAnswer if it is not."""
    # See ``gravac.wording.numbered``.
    own = re.fullmatch(re.escape(spec.job[:60]) + "-[1-9][0-9]*", answer.job)
    if answer.job != spec.job and own is None:
        raise NoAnswer(f"the answer is about job {answer.job!r}, not {spec.job!r}")
    if not spec.first_window <= answer.next_window <= MAX_NEXT_WINDOW:
        raise NoAnswer(
            f"next_window {answer.next_window} is outside {spec.first_window} to {MAX_NEXT_WINDOW}"
        )


def read_state(policy: Policy, policy_state: str) -> PolicyState:
    """Parse a policy's state. Raises NoAnswer if it is not one of this policy."""
    if len(policy_state) > MAX_STATE_CHARACTERS:
        raise NoAnswer(
            f"a policy_state of {len(policy_state)} characters; the most is {MAX_STATE_CHARACTERS}"
        )
    try:
        return policy.State.model_validate_json(policy_state)
    except ValueError as error:
        raise NoAnswer(f"policy_state is not a state of policy {policy.name!r}: {_why(error)}") from None


def check_echo(body: bytes, field: str, sent: Record | str) -> None:
    """Check that an answer repeats the event, or the job's name for an end. Raises NoAnswer if it does not."""
    expected = sent if isinstance(sent, str) else sent.model_dump(mode="json")
    if json.loads(body).get(field) != expected:
        raise NoAnswer(f"the answer does not repeat the {field} that was sent")


def _why(error: Exception) -> str:
    return printable(first_problem(error) if isinstance(error, ValidationError) else str(error), 300)
