"""The state of one job as the fold of its journal: jobs, windows and decisions in, the decision in force out.

Pure: the controller, replay and an agent that decides in process all run this one class, so they cannot
differ.
Memory is bounded: no history is kept beyond fingerprints of the last windows.
"""

import hashlib
from collections import OrderedDict
from typing import Literal

from pydantic import ValidationError

from gravac.policies import aligned, build, steering
from gravac.policies.base import Policy, PolicyState
from gravac.protocol import Decision, JobAnswer, JobSpec, Override, WindowAnswer, WindowReport
from gravac.wording import first_problem

Judgement = Literal["new", "duplicate", "conflict", "gap", "wrong_job", "wrong_incarnation"]
"""new: the next window. gap: a later one, windows between are missing. duplicate: folded before, same
content. conflict: folded before with other content, or skipped over before. The rest: not this job, not this
start of it."""

REMEMBERED_WINDOWS = 256
"""How many windows back a resent window is compared by content; older ones count as duplicates."""


class JobFold:
    """One job. Raises ValueError for a policy, a setting or a ``policy_state`` that cannot be used."""

    def __init__(self, spec: JobSpec, policy: Policy | None = None) -> None:
        """``policy``: an instance to use where ``spec`` names one that is not registered; else it is built."""
        self.spec = spec
        self.policy: Policy = build(spec.policy) if policy is None else policy
        self.next_window = spec.first_window
        if spec.policy_state is None:
            verdict = self.policy.start()
            self._state: PolicyState = verdict.state
        else:
            self._state = self._read_state(spec.policy_state)
        self.start_decision = self._state.decision
        self._windows: OrderedDict[int, bytes] = OrderedDict()  # fingerprints
        self.ordered: Override | None = None
        """The order that the decision on the next window will obey."""
        self.orders_waiting = 0
        """How many orders came since the last decision; the newest counts."""
        self._forgotten_below = 0  # windows below this were folded or skipped so long ago that we cannot tell

    @property
    def decision(self) -> Decision:
        """The decision in force."""
        return self._state.decision

    @property
    def policy_state(self) -> str:
        """The policy's state as JSON: hand it to a later ``JobSpec.policy_state`` to go on from here."""
        return self._state.model_dump_json()

    @property
    def override(self) -> Override | None:
        """The operator's order in force; null while the policy decides."""
        return self._state.override

    def order(self, override: Override) -> None:
        """Take an order in; the decision on the next window obeys it."""
        self.ordered = override
        self.orders_waiting += 1

    def judge(self, report: WindowReport) -> Judgement:
        """What ``report`` is to this job. Changes nothing."""
        if report.job != self.spec.job:
            return "wrong_job"
        if report.incarnation != self.spec.incarnation:
            return "wrong_incarnation"
        if report.window >= self.next_window:
            return "new" if report.window == self.next_window else "gap"
        remembered = self._windows.get(report.window)
        if remembered is not None:
            return "duplicate" if remembered == _fingerprint(report) else "conflict"
        return "duplicate" if report.window < self._forgotten_below else "conflict"

    def decide(self, report: WindowReport, body: bytes = b"") -> Decision:
        """Fold a window that was judged new or gap, and decide. Raises ValueError for any other.

        ``body``: the report as JSON, if it is at hand.
        """
        judgement = self.judge(report)
        if judgement not in ("new", "gap"):
            raise ValueError(f"window {report.window} of job {report.job!r} cannot be folded: {judgement}")
        verdict = steering.decide(self.policy, self._state, self.ordered, report)
        self._state = verdict.state
        self.ordered, self.orders_waiting = None, 0
        self.next_window = report.window + 1
        self._windows[report.window] = _fingerprint(report, body)
        if len(self._windows) > REMEMBERED_WINDOWS:
            self._forgotten_below = self._windows.popitem(last=False)[0] + 1
        return verdict.decision

    def answer(self) -> WindowAnswer:
        """What a window, new or resent, is answered with: always the newest decision, never an old one."""
        return WindowAnswer(decision=self.decision, policy_state=self.policy_state)

    def job_answer(self) -> JobAnswer:
        """What a registration is answered with."""
        return JobAnswer(
            job=self.spec.job,
            next_window=self.next_window,
            decision=self.decision,
            policy_state=self.policy_state,
        )

    def spec_now(self) -> JobSpec:
        """The job as registered, in the state it is in now: what a new part of its journal begins with."""
        return self.spec.model_copy(
            update={"policy_state": self.policy_state, "first_window": self.next_window}
        )

    def resume(self, spec: JobSpec) -> None:
        """Register the job again: the same incarnation found its controller back, or a new one started.

        State goes on. If the trainer brings a policy state with a higher epoch (it went on elsewhere), that one
        is taken: epochs never go backwards. Raises ValueError, changing nothing, when the spec is another job's
        or what was measured no longer holds: another policy, compressor or memory.
        """
        if spec.job != self.spec.job:
            raise ValueError(f"job: this is {self.spec.job!r}, got {spec.job!r}")
        if spec.incarnation == self.spec.incarnation and spec.world_size != self.spec.world_size:
            raise ValueError(
                f"world_size: incarnation {spec.incarnation!r} registered with {self.spec.world_size}, got "
                f"{spec.world_size}; a restarted trainer needs a new incarnation"
            )
        for field in ("compressor", "memory"):
            had, got = getattr(self.spec, field), getattr(spec, field)
            if had != got:
                raise ValueError(f"{field}: job {spec.job!r} runs {had!r}, got {got!r}; use another job name")
        policy = aligned(spec.policy, self.spec.policy)
        if policy != self.spec.policy and build(policy).spec() != self.policy.spec():
            raise ValueError(
                f"policy: job {spec.job!r} runs {_one_line(self.policy.spec().model_dump_json())}, got "
                f"{_one_line(spec.policy.model_dump_json())}; use another job name to change it"
            )
        brought = None if spec.policy_state is None else self._read_state(spec.policy_state)
        if brought is not None and brought.decision.epoch > self.decision.epoch:
            self._state = brought
        self.next_window = max(self.next_window, spec.first_window)
        self.spec = spec.model_copy(update={"policy": policy})

    def forget(self) -> None:
        """Windows before the next one were folded where this fold cannot see: one that is resent is a duplicate."""
        self._forgotten_below = self.next_window

    def adopt(self, decision: Decision) -> None:
        """Put a journaled decision in force where an older or newer version of the policy decided otherwise.

        The journal is the truth: the ranks have already acted on it.
        """
        self._state = self._state.model_copy(update={"decision": decision})

    def _read_state(self, text: str) -> PolicyState:
        try:
            return self.policy.State.model_validate_json(text)
        except ValidationError as error:
            raise ValueError(
                f"policy_state: not a state of policy {self.spec.policy.name!r}: {first_problem(error)}; "
                "leave it null to start afresh"
            ) from None


def _fingerprint(report: WindowReport, body: bytes = b"") -> bytes:
    return hashlib.sha256(body or report.model_dump_json().encode()).digest()


def _one_line(text: str) -> str:
    return text if len(text) <= 300 else text[:300] + "…"
