"""What another rule, or other settings, would have decided on the windows of a trace, beside what was decided.

Up to the first window after which the ranks would have sent something else, this is what would have happened. From
there on the windows are still those of the recorded run, measured under its CFs: the other rule finds out nothing about
a CF that the run never sent, and what it would have measured is not known. ``Redecision.first`` is that window. A rule
of another ``smoothing`` would have seen other gains from the beginning. ``Redecision.caution`` says which it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pydantic import JsonValue

from gravac import policies
from gravac.policies.base import Policy
from gravac.policies.windows import gain_of
from gravac.protocol import Decision, JobSpec, PolicySpec, WindowReport
from gravac.traces.follow import Difference, Follower, Row
from gravac.traces.trace import Line, TraceError

MAX_NOTES = 100


@dataclass(frozen=True, slots=True)
class Pair:
    """Two decisions on one window. ``measured_cf``: what the ranks sent at its ``last_step``; null for a job's start.

    ``sent`` and ``other_sent``: what each has the ranks send by the next window's gains; null where that is not known.
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
        """The ranks would have been told, or by ε would have come, to send another CF."""
        told = (self.recorded.cf_minimum, self.recorded.cf_candidate)
        return told != (self.other.cf_minimum, self.other.cf_candidate) or self.sent != self.other_sent

    @property
    def differs(self) -> bool:
        """They send otherwise, or search where the other holds. Epochs, ε and words alone make no difference."""
        return self.recorded.phase != self.other.phase or self.sends_otherwise


@dataclass(frozen=True)
class Redecision:
    """A trace decided by another rule. ``differing``: only the windows where it differs; ``first``: see this module.

    ``exact``: whether any other byte counts as a difference.
    """

    recorded_policy: PolicySpec
    policy: PolicySpec
    windows: int
    differing: tuple[Pair, ...]
    first: Pair | None
    notes: tuple[str, ...] = ()
    exact: bool = False

    @property
    def caution(self) -> str:
        """What can be said of the windows after the first difference, and what not."""
        if _smoothing(self.policy) != _smoothing(self.recorded_policy):
            return (
                "The ranks smooth gains by the setting smoothing, and it is another one: the gains recorded in every "
                "window are not those that this rule would have seen."
            )
        if self.first is None:
            return "The ranks would have sent the same throughout: each window is just what this rule would have seen."
        after = "the start" if self.first.window < 0 else f"window {self.first.window}"
        return (
            f"The first difference in what is sent follows {after}. Later windows were measured at the CFs that the "
            "run sent, not at those of the other rule: its decisions from there on show how it judges them, not what "
            "would have happened."
        )


def _smoothing(spec: PolicySpec) -> float | None:
    """As agents use it, on 100 ranks; None: the policy is not registered here, so it is not known."""
    try:
        return policies.build(spec).smoothing(100)
    except ValueError:
        return None


def redecide(
    lines: Iterable[Line],
    policy: str | Policy | None = None,
    settings: Mapping[str, JsonValue] | None = None,
    exact: bool = False,
) -> Redecision:
    """Decide every window by another rule.

    ``policy``: a name, perhaps with settings as ``gravac.policies.parse`` reads them, or a policy; None: the recorded
    one, with its settings. ``settings``: go over those. ``exact``: list decisions that differ in any byte. Raises
    TraceError for a bad trace, and ValueError, naming it, for a policy or setting that there is not.
    """
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
                found.take(item)
        except ValueError as error:
            raise TraceError(path, number, str(error)) from None
    if found.policy is None or found.recorded_policy is None:
        raise TraceError(path, None, "the trace is empty")
    return found.result(tuple(getattr(lines, "notes", ())))


def other_policy(
    recorded: PolicySpec, policy: str | Policy | None, settings: Mapping[str, JsonValue] | None
) -> Policy:
    """The rule to decide by. Raises ValueError."""
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
    """Pairs as they come; each waits for the next window, whose gains say what the ranks' gate would have let pass."""

    def __init__(self, exact: bool) -> None:
        self._exact = exact
        self.recorded_policy: PolicySpec | None = None
        self.policy: Policy | None = None
        self._waiting: Pair | None = None
        self._same = True
        self._differing: list[Pair] = []
        self._first: Pair | None = None
        self._windows = 0
        self._notes: list[str] = []

    def take(self, item: Row | Difference) -> None:
        if isinstance(item, Difference):
            if len(self._notes) < MAX_NOTES:
                self._notes.append(item.message)
            return
        self._windows += item.report is not None
        self._close(item.report)
        if item.recorded is not None:
            report = item.report
            cf, step = (None, None) if report is None else (report.cf, report.last_step)
            self._waiting = Pair(item.window, item.line, cf, step, item.recorded, item.replayed)
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
    """What the ranks send under ``decision`` by the gains at the end of a window (GraVAC, algorithm 1): 1 is dense.

    Null where the run did not measure the gain of a CF that the answer hangs on.
    """
    for cf in (decision.cf_candidate, decision.cf_minimum):
        gain = gain_of(report, cf)
        if gain is None:
            return None
        if gain >= decision.epsilon:
            return cf
    return 1.0
