"""Redeciding: what another policy, or other settings, would have decided on the windows of a trace.

Up to the first window after which the ranks would have sent something else, this is what would have happened.
``Redecision.first`` is that window. Later windows are still those of the recorded run, measured at its CFs: what the
other policy would have measured is unknown. A policy whose agents measure gains in another way (setting ``smoothing``
or ``denominator``) would have seen other gains from the beginning. ``Redecision.caution`` says which case applies.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from pydantic import JsonValue

from gravac import policies
from gravac.policies.base import Policy
from gravac.policies.windows import gain_of
from gravac.protocol import Decision, JobSpec, PolicySpec, WindowReport
from gravac.replays.follow import Difference, Follower, ReplayedDecision
from gravac.traces.line import Line, TraceError
from gravac.traces.reader import open_lines

MAX_NOTES = 100


@dataclass(frozen=True, slots=True)
class DecisionPair:
    """Two decisions on one window.

    Attributes:
        window: Number of the window; -1 for a job's start.
        line: Number of the recorded decision's line.
        measured_cf: CF that the ranks sent at ``last_step``; None for a job's start.
        last_step: Last step of the window; None for a job's start.
        recorded: The recorded decision.
        other: The other policy's decision.
        sent: CF that the ranks send under ``recorded`` by the next window's gains; None where unknown.
        other_sent: The same under ``other``.
    """

    window: int
    line: int
    measured_cf: float | None
    last_step: int | None
    recorded: Decision
    other: Decision
    sent: float | None = None
    other_sent: float | None = None

    @property
    def sends_otherwise(self) -> bool:
        """Whether the ranks would have sent another plan: by the decision itself, or by what ε lets pass."""
        return _plans(self.recorded) != _plans(self.other) or self.sent != self.other_sent

    @property
    def differs(self) -> bool:
        """Whether codec, CFs or phase differ. Differences in epoch, ε or reason alone do not count."""
        return self.recorded.phase != self.other.phase or self.sends_otherwise


@dataclass(frozen=True)
class Redecision:
    """A trace decided by another policy.

    Attributes:
        recorded_policy: The policy that the trace begins with.
        policy: The other policy.
        windows: Windows compared.
        differing: The pairs that differ.
        first: The first window after which the ranks would have sent something else; None: they never would.
        notes: Repairs and oddities of the trace.
        exact: Whether any differing byte counts.
    """

    recorded_policy: PolicySpec
    policy: PolicySpec
    windows: int
    differing: tuple[DecisionPair, ...]
    first: DecisionPair | None
    notes: tuple[str, ...] = ()
    exact: bool = False

    @property
    def caution(self) -> str:
        """What the comparison shows after the first difference, and what it cannot show."""
        here, there = _measuring(self.policy), _measuring(self.recorded_policy)
        if here != there:
            differs = "smoothing" if here is None or there is None or here[0] != there[0] else "denominator"
            return (
                f"The ranks measure gains by the setting {differs}, which differs: the gains recorded in every window "
                "are not those that this policy would have seen."
            )
        if self.first is None:
            return "The ranks would have sent the same throughout: each window is what this policy would have seen."
        after = "the start" if self.first.window < 0 else f"window {self.first.window}"
        return (
            f"The first difference in what is sent follows {after}. Later windows were measured at the CFs that the "
            "run sent, not at those of the other policy: its later decisions show how it judges them, not what would "
            "have happened."
        )


def _plans(decision: Decision) -> tuple[str | None, float, float]:
    """Return what a decision lets the ranks send; dense is dense with any codec."""
    codec = None if decision.dense else decision.codec
    return codec, decision.cf_minimum, decision.cf_candidate


def _measuring(spec: PolicySpec) -> tuple[float, str] | None:
    """Smoothing, on 100 ranks, and denominator; None: the policy is not registered here, so neither is known."""
    try:
        policy = policies.build(spec)
        return policy.smoothing(100), policy.gain_denominator()
    except ValueError:
        return None


def redecide(
    trace: str | Path | BinaryIO | Iterable[Line],
    policy: str | Policy | None = None,
    settings: Mapping[str, JsonValue] | None = None,
    exact: bool = False,
) -> Redecision:
    """Decide every window of a trace by another policy, and compare with what was decided.

    Args:
        trace: Path of a trace, an open binary stream, or the lines of one. Of a journal, the path of its active part.
        policy: A name, with settings behind a colon if wanted (``"gravac:epsilon=0.4"``), or a policy; None: the
            recorded policy with its settings.
        settings: By name; override those of ``policy``.
        exact: Also list decisions that differ in any other byte, such as their reason.

    Returns:
        The windows where the decisions differ, and what can be concluded from them.

    Raises:
        TraceError: The trace cannot be read, or was altered.
        ValueError: Unknown policy or setting; the message names it.

    Example::

        found = gravac.redecide("gravac-runs/my-job/journal.jsonl", settings={"epsilon": 0.4})
        print(len(found.differing), "decisions differ.", found.caution)
    """
    with open_lines(trace) as lines:
        return _redecide(lines, policy, settings, exact)


def _redecide(
    lines: Iterable[Line],
    policy: str | Policy | None,
    settings: Mapping[str, JsonValue] | None,
    exact: bool,
) -> Redecision:
    found = _Comparing(exact)
    number, path = 0, str(getattr(lines, "path", "trace"))
    follower: Follower | None = None
    for line in lines:
        number = line.number
        if follower is None:
            if isinstance(line.record, JobSpec):
                found.recorded_policy = line.record.policy
                found.policy = other_policy(line.record.policy, policy, settings)
                follower = Follower(found.policy)
            else:
                continue
        try:
            for item in follower.push(line):
                found.add(item)
        except ValueError as error:
            raise TraceError(path, number, str(error)) from None
    if found.policy is None or found.recorded_policy is None:
        raise TraceError(path, None, "the trace is empty")
    return found.result(tuple(getattr(lines, "notes", ())))


def other_policy(
    recorded: PolicySpec, policy: str | Policy | None, settings: Mapping[str, JsonValue] | None
) -> Policy:
    """Return the policy to decide by: ``policy`` or the recorded one, with ``settings``. Raises ValueError."""
    changes = {} if settings is None else dict(settings)
    if policy is None:
        name, given = recorded.name, recorded.settings
    elif isinstance(policy, str):
        return policies.parse(policy, changes)
    elif not changes:
        return policy
    else:
        name, given = policy.spec().name, policy.spec().settings
    return policies.build(PolicySpec(name=name, settings={**given, **changes}))


class _Comparing:
    """Collects pairs. Each waits for the next window, whose gains say what the gate of the ranks would have sent."""

    def __init__(self, exact: bool) -> None:
        self._exact = exact
        self.recorded_policy: PolicySpec | None = None
        self.policy: Policy | None = None
        self._waiting: DecisionPair | None = None
        self._same = True
        self._differing: list[DecisionPair] = []
        self._first: DecisionPair | None = None
        self._windows = 0
        self._notes: list[str] = []

    def add(self, item: ReplayedDecision | Difference) -> None:
        if isinstance(item, Difference):
            if len(self._notes) < MAX_NOTES:
                self._notes.append(item.message)
            return
        self._windows += item.report is not None
        self._close(item.report)
        if item.recorded is not None:
            report = item.report
            cf, step = (None, None) if report is None else (report.cf, report.last_step)
            self._waiting = DecisionPair(item.window, item.line, cf, step, item.recorded, item.replayed)
            self._same = item.same

    def result(self, notes: tuple[str, ...]) -> Redecision:
        self._close(None)
        assert self.policy is not None
        assert self.recorded_policy is not None
        return Redecision(
            self.recorded_policy,
            self.policy.spec(),
            self._windows,
            tuple(self._differing),
            self._first,
            (*self._notes, *notes),
            self._exact,
        )

    def _close(self, following: WindowReport | None) -> None:
        pair, self._waiting = self._waiting, None
        if pair is None:
            return
        if following is not None and following.phase != "fallback":
            sent, other = gate(pair.recorded, following), gate(pair.other, following)
            pair = replace(pair, sent=sent, other_sent=other)
        if pair.differs or (self._exact and not self._same):
            self._differing.append(pair)
        if self._first is None and pair.sends_otherwise:
            self._first = pair


def gate(decision: Decision, report: WindowReport) -> float | None:
    """Return the CF that the ranks send under ``decision``, by the gains at the end of a window; 1 is dense.

    The three-way gate of GraVAC (Tyagi and Swany 2023, algorithm 1). None where the run did not measure a gain that the
    answer depends on.
    """
    for cf in (decision.cf_candidate, decision.cf_minimum):
        gain = gain_of(report, cf, decision.codec)
        if gain is None:
            return None
        if gain >= decision.epsilon:
            return cf
    return 1.0
