"""State of one job, as the fold of its journal: job lines, windows and orders in, the decision in force out.

Pure. The controller, replay, and an agent that decides in process all run this class, so they cannot differ. Memory is
bounded: the only history is fingerprints of the last windows.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from pydantic import ValidationError

from gravac.policies import build, steering
from gravac.policies.base import Policy, PolicyState
from gravac.protocol import (
    Decision,
    JobAnswer,
    JobSpec,
    ModelShape,
    Override,
    PolicySpec,
    WindowAnswer,
    WindowReport,
)
from gravac.wording import first_problem, shortened

Judgement = Literal["new", "duplicate", "conflict", "gap", "wrong_job", "wrong_incarnation"]
"""new: the next window. gap: a later one; windows between are missing. duplicate: folded before, with equal content.
conflict: folded before with other content, or skipped before. wrong_job, wrong_incarnation: of another job, or another
start of its trainer."""

REMEMBERED_WINDOWS = 256
"""Windows for which a resent window is compared by content; older ones count as duplicates."""


class JobFold:
    """State of one job.

    Args:
        spec: the job as registered.
        policy: the policy to use, such as one that is not registered; None: build the one that ``spec`` names.

    Attributes:
        spec: the job as last registered.
        policy: Policy that decides.
        next_window: number of the next window.
        start_decision: decision that this state began with.
        ordered: order that the decision on the next window will obey; None: no new one.
        orders_waiting: orders since the last decision; the newest counts.

    Raises:
        ValueError: the policy, a setting or the ``policy_state`` cannot be used.
    """

    def __init__(self, spec: JobSpec, policy: Policy | None = None) -> None:
        self.spec = spec
        self.policy: Policy = (build(spec.policy) if policy is None else policy).fitted(spec)
        self.next_window = spec.first_window
        if spec.policy_state is None:
            verdict = self.policy.start()
            self._state: PolicyState = verdict.state
        else:
            self._state = self.read_state(spec.policy_state)
        self.start_decision = self._state.decision
        self._windows: OrderedDict[int, bytes] = OrderedDict()  # fingerprints
        self.pending_override: Override | None = None
        self.orders_waiting = 0
        self._forgotten_below = 0  # windows below this were folded or skipped too long ago to tell which

    @property
    def decision(self) -> Decision:
        """The decision in force."""
        return self._state.decision

    @property
    def policy_state(self) -> str:
        """The policy's state as JSON. Pass it as a later ``JobSpec.policy_state`` to continue from here."""
        return self._state.model_dump_json()

    @property
    def codecs(self) -> tuple[str, ...]:
        """What decisions may send with, by the names that records have: the job's compressor first."""
        return (self.spec.compressor, *self.policy.codecs())

    @property
    def override(self) -> Override | None:
        """The operator's order in force; None while the policy decides."""
        return self._state.override

    def order(self, override: Override) -> None:
        """Accept an order. The decision on the next window obeys it."""
        self.pending_override = override
        self.orders_waiting += 1

    def judge(self, report: WindowReport) -> Judgement:
        """Classify a report. Changes nothing."""
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
        """Fold a window and decide.

        Args:
            report: a window that ``judge`` calls new or gap.
            body: the report as JSON, if the caller has it.

        Raises:
            ValueError: the window is anything else.
        """
        judgement = self.judge(report)
        if judgement not in ("new", "gap"):
            raise ValueError(f"window {report.window} of job {report.job!r} cannot be folded: {judgement}")
        verdict = steering.decide(self.policy, self._state, self.pending_override, report)
        self._state = verdict.state
        self.pending_override, self.orders_waiting = None, 0
        self.next_window = report.window + 1
        self._windows[report.window] = _fingerprint(report, body)
        if len(self._windows) > REMEMBERED_WINDOWS:
            self._forgotten_below = self._windows.popitem(last=False)[0] + 1
        return verdict.decision

    def answer(self) -> WindowAnswer:
        """Return the answer to a window, new or resent: always the newest decision."""
        return WindowAnswer(decision=self.decision, policy_state=self.policy_state)

    def job_answer(self, note: str = "") -> JobAnswer:
        """Return the answer to a registration. ``note``: what the trainer's log should say."""
        return JobAnswer(
            job=self.spec.job,
            note=note,
            next_window=self.next_window,
            decision=self.decision,
            policy_state=self.policy_state,
        )

    def spec_now(self) -> JobSpec:
        """Return the job as registered with its current state, which a new part of its journal begins with."""
        return self.spec.model_copy(
            update={"policy_state": self.policy_state, "first_window": self.next_window}
        )

    def resume(self, spec: JobSpec) -> str:
        """Register the job again: the same incarnation reconnected, or a new one started.

        The state continues. A policy state with a higher epoch in ``spec`` replaces it: the job ran elsewhere
        meanwhile, and epochs never decrease. An operator's order ends with its incarnation.

        A decision that sends with what the policy no longer chooses, as for another number of ranks, begins again.

        Returns:
            Sentences about the order or the decision that ended; empty where none did.

        Raises:
            ValueError: ``spec`` is of another job, or has another policy, compressor or memory, so that measurements no
                longer hold. Nothing changed.
        """
        if spec.job != self.spec.job:
            raise ValueError(f"job: this is {self.spec.job!r}, got {spec.job!r}")
        if spec.incarnation == self.spec.incarnation and spec.world_size != self.spec.world_size:
            raise ValueError(
                f"world_size: incarnation {spec.incarnation!r} registered with {self.spec.world_size}, got "
                f"{spec.world_size}; a restarted trainer needs a new incarnation"
            )
        if found := _changed(spec, self.spec):
            field, had, got = found
            raise ValueError(
                f"{field}: job {spec.job!r} runs {had!r}, got {got!r}; use another job name to change it"
            )
        brought = None if spec.policy_state is None else self.read_state(spec.policy_state)
        if brought is not None and brought.decision.epoch > self.decision.epoch:
            self._state = brought
        over, epoch = "", self.decision.epoch
        if spec.incarnation != self.spec.incarnation:
            if self.override is not None:
                self._state = steering.ended(self._state)
                over = self.decision.reason
            elif self.pending_override is not None and self.pending_override.action != "resume":
                order = self.pending_override
                over = f"The order of {order.actor} ({order.action}) came too late for the start before."
            self.pending_override, self.orders_waiting = None, 0
        self.next_window = max(self.next_window, spec.first_window)
        self.spec = spec
        self.policy = self.policy.fitted(self.spec)
        return " ".join(filter(None, (over, self._begin_again(epoch + 1))))

    def _begin_again(self, epoch: int) -> str:
        """Start the policy afresh where it does not choose the codec in force. Return what to say of it."""
        before = self.decision
        if before.codec is None or before.codec in self.policy.codecs():
            return ""
        begun = self.policy.start(max(epoch, before.epoch)).state
        decision = begun.decision.model_copy(update={"window": before.window})
        self._state = begun.model_copy(update={"decision": decision})
        return (
            f"The decision in force sends with {before.codec}, which is not among the plans of this start: the policy "
            "begins again."
        )

    def forget(self) -> None:
        """Treat all windows before the next one as duplicates: they are in parts of the journal that were not read."""
        self._forgotten_below = self.next_window

    def adopt(self, decision: Decision) -> None:
        """Put a journaled decision in force, where another version of the policy decided differently.

        The journal is authoritative: the ranks have already acted on it.
        """
        self._state = self._state.model_copy(update={"decision": decision})

    def read_state(self, text: str) -> PolicyState:
        """Parse a state of the job's policy. Raises ValueError, which says what is wrong."""
        try:
            return self.policy.State.model_validate_json(text)
        except ValidationError as error:
            raise ValueError(
                f"policy_state: not a state of policy {self.spec.policy.name!r}: {first_problem(error)}; "
                "leave it null to start afresh"
            ) from None


def differs(spec: JobSpec, known: JobSpec) -> str:
    """Return why a job that is known by this name is another training; empty where nothing shows it.

    A name stands for one policy, compressor and error memory, since what was measured holds for no other, and for one
    model and one optimizer, which a start from a checkpoint may change. Ranks, windows, network and learning rate may
    change with any start.

    Args:
        spec: A start of a trainer.
        known: The job as last registered.
    """
    if spec.incarnation == known.incarnation:
        return ""
    if found := _changed(spec, known):
        field, had, got = found
        return f"its {field} is {had}, that of this run {got}"
    ours, theirs = spec.model, known.model
    if spec.policy_state is not None:
        return ""
    if None not in (ours.digest, theirs.digest) and ours.digest != theirs.digest:
        return f"it trains {_shown(theirs)}, this run {_shown(ours)}"
    if spec.optimizer and known.optimizer and spec.optimizer.name != known.optimizer.name:
        return f"it trains with {known.optimizer.name}, this run with {spec.optimizer.name}"
    return ""


def _changed(spec: JobSpec, known: JobSpec) -> tuple[str, str, str] | None:
    """Return which of policy, compressor and memory a start has changed, and both in words; None: none."""
    had, got = known.policy, spec.policy
    if had != got:
        had, got = _resolved(had), _resolved(got)
    if had.name != got.name:
        return "policy", had.name, got.name
    if had != got:
        names = sorted(had.settings.keys() | got.settings.keys())
        other = [name for name in names if had.settings.get(name) != got.settings.get(name)]
        return "policy", _with(had, other), _with(got, other)
    for field in ("compressor", "memory"):
        if (before := getattr(known, field)) != (now := getattr(spec, field)):
            return field, before, now
    return None


def _with(policy: PolicySpec, names: Sequence[str]) -> str:
    settings = ",".join(f"{name}={policy.settings.get(name)}" for name in names)
    return shortened(f"{policy.name}:{settings}", 300)


def _resolved(policy: PolicySpec) -> PolicySpec:
    """Return a policy with the settings that it was recorded without; as it is where it cannot be built here."""
    try:
        return build(policy).spec()
    except ValueError:  # of another version, or of a plug-in that is not installed
        return policy


def _shown(model: ModelShape) -> str:
    return f"{model.name} ({model.tensors} tensors, {model.elements:,} elements, digest {model.digest})"


def _fingerprint(report: WindowReport, body: bytes = b"") -> bytes:
    return hashlib.sha256(body or report.model_dump_json().encode()).digest()
