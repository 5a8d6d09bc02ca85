"""Finds who issued each call of communication, when in a step, and so its size and group where the call lacks them."""

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import replace

from gravac_observe.traces.intervals import Union
from gravac_observe.traces.trace import Call, Issue, RankTrace

AROUND = 8
"""Most events that one call leaves on its thread, one within the other: an operator, its record, an annotation."""


def link(trace: RankTrace) -> None:
    """Complete the calls of a trace, by time."""
    for issues in trace.issues.values():
        issues.sort(key=lambda issue: (issue.start, -issue.end))
    trace.calls.sort(key=lambda call: call.start)
    _find_launches(trace)
    _find_issuers(trace, [call for call in trace.calls if call.correlation is None])
    only = trace.groups[0] if len(trace.groups) == 1 else ()
    whole = None if len(trace.groups) > 1 else trace.world
    phases = _Phases(trace)
    for call in trace.calls:
        call.about.group = call.about.group or only
        call.about.size = len(call.about.group) or call.about.size or whole
        if call.issued is not None:
            call.phase, call.region = phases.at(call.thread, call.issued)


def _find_launches(trace: RankTrace) -> None:
    """Find the launches of kernels, and the operators around them."""
    wanted = {call.correlation: call for call in trace.calls if call.correlation is not None}
    launches = trace.launches
    for at, correlation in enumerate(launches.correlations) if wanted else ():
        call = wanted.get(correlation)
        if call is not None:
            call.thread, call.issued = trace.threads[trace.launching[at]], launches.starts[at]
    starts = {thread: [issue.start for issue in issues] for thread, issues in trace.issues.items()}
    for call in wanted.values():
        if call.issued is not None and call.thread in starts:
            around = _around(trace.issues[call.thread], starts[call.thread], call.issued)
            for issue in around:
                call.about.completed(issue)


def _around(issues: Sequence[Issue], starts: Sequence[float], moment: float) -> list[Issue]:
    """Return the events around a moment, the innermost first."""
    at = bisect_right(starts, moment)
    return [issue for issue in reversed(issues[max(0, at - AROUND) : at]) if issue.end >= moment]


def _find_issuers(trace: RankTrace, calls: Sequence[Call]) -> None:
    """Find the operators that issued the calls of a backend on the CPU.

    A backend's threads take them in the order in which they were issued. The operator knows better what a call is for:
    gloo's reduce-scatter is an all-reduce.
    """
    operators = sorted(
        (
            (issue, thread)
            for thread, issues in trace.issues.items()
            for issue in _outermost(issues)
            if issue.kind != "wait"
        ),
        key=lambda pair: pair[0].start,
    )
    first = 0
    for call in calls:
        while first < len(operators) and operators[first] is None:
            first += 1
        for at in range(first, min(len(operators), first + AROUND)):
            pair = operators[at]
            if pair is not None and pair[0].start <= call.end and _same(pair[0], call.about):
                issue, call.thread = pair
                call.issued = issue.start
                call.about = replace(call.about, kind=issue.kind)
                call.about.completed(issue)
                operators[at] = None  # type: ignore[call-overload]
                break
        else:
            call.issued = call.start  # by its own thread, unless the trace begins after its issue


def _outermost(issues: Sequence[Issue]) -> list[Issue]:
    found: list[Issue] = []
    for issue in issues:
        if not found or issue.start >= found[-1].end:
            found.append(issue)
    return found


def _same(issue: Issue, call: Issue) -> bool:
    """Return whether an operator may have issued a call, by their sizes."""
    return issue.elements is None or call.elements is None or call.elements <= issue.elements


class _Phases:
    """The parts of steps in which a thread was at each moment."""

    def __init__(self, trace: RankTrace) -> None:
        self._nodes = {thread: spans.union() for thread, spans in trace.nodes.items()}
        self._backward = sorted(start for spans in trace.nodes.values() for start in spans.starts)
        ends = sorted(end for spans in trace.nodes.values() for end in spans.ends)
        self._optimizer = Union.of(
            (_after_backward(start, end, ends), end) for start, end in trace.optimizer_steps
        )
        self._ends = sorted(end for _, end in trace.optimizer_steps) or sorted(
            end for _, end, _ in trace.steps
        )
        self._regions = {thread: sorted(regions) for thread, regions in trace.regions.items()}

    def at(self, thread: Hashable, moment: float) -> tuple[str, str]:
        """Return phase and annotation."""
        region = self._region(thread, moment)
        if self._optimizer.holds(moment):
            return "optimizer", region
        nodes = self._nodes.get(thread)
        if "backward" in region or (nodes is not None and nodes.holds(moment)):
            return "backward", region
        if "forward" in region:
            return "forward", region
        return self._between(moment), region

    def _region(self, thread: Hashable, moment: float) -> str:
        """Return the innermost annotation around a moment."""
        regions = self._regions.get(thread, [])
        at = bisect_right(regions, (moment, float("inf"), ""))
        around = (name for start, end, name in reversed(regions[max(0, at - AROUND) : at]) if end >= moment)
        return next((name for name in around if not name.startswith("Optimizer")), "")

    def _between(self, moment: float) -> str:
        """Return the phase of what is outside of all annotations, by the nodes of autograd in the same step."""
        ended, at = bisect_right(self._ends, moment), bisect_right(self._backward, moment)
        if at < len(self._backward) and (ended == len(self._ends) or self._backward[at] < self._ends[ended]):
            return "forward"
        if at and ended < len(self._ends) and (ended == 0 or self._backward[at - 1] > self._ends[ended - 1]):
            return "after"
        return "other"


def _after_backward(start: float, end: float, backward: Sequence[float]) -> float:
    """Return where an optimizer begins to step: after the last backward within, if it calls a closure for that."""
    at = bisect_right(backward, end) - 1
    return max(start, backward[at]) if at >= 0 else start
