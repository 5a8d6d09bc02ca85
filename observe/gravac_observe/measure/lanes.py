"""One device of one rank over its steps: how long it computes, communicates, and waits. Times are in microseconds."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from statistics import fmean

from gravac_observe.traces.intervals import Union, less, waits
from gravac_observe.traces.reading import ProfileError
from gravac_observe.traces.trace import Call, RankTrace, Spans

LATE = 5e3
"""Delay of the end of a call on a CPU: its thread wakes the one that waits, which may take the core before the end is
noted, for as long as Linux lets a thread run. [µs; chosen]"""


@dataclass(slots=True)
class Timed:
    """A call and its share of the time.

    Attributes:
        call: The call.
        exposed: How long nothing was computed meanwhile; time that several calls share counts for the first one.
        hidden: How long something was computed meanwhile, likewise.
        step: Place of its step among those of the trace; -1: outside.
    """

    call: Call
    exposed: float
    hidden: float
    step: int


@dataclass(slots=True)
class Lane:
    """One device of one rank.

    Attributes:
        trace: Trace of the rank.
        device: Number of the device; None: the CPU.
        edges: Times at which steps begin, and the last one ends.
        numbers: Numbers of the steps, as the profiler counts them.
        busy: When it computes; on a CPU also when its threads are busy otherwise, and do not wait for the network.
        computing: When it computes.
        calls: All calls of the trace on this device.
        collecting: When Python collected garbage.
        slowed: How much longer operators of a CPU take in its steps during calls, whose threads share its cores.
    """

    trace: RankTrace
    device: Hashable
    edges: list[float]
    numbers: list[int]
    busy: Union
    computing: Union
    calls: list[Timed]
    collecting: Union
    slowed: float = 0.0

    @property
    def steps(self) -> int:
        return len(self.edges) - 1

    @property
    def inside(self) -> list[Timed]:
        """The calls that were issued in a step."""
        return [each for each in self.calls if each.step >= 0]

    def exposed(self, start: float, end: float) -> float:
        """Return how long a call from ``start`` to ``end`` would be exposed."""
        return max(0.0, end - start) - self.busy.within(start, end)


def lanes_of(trace: RankTrace) -> list[Lane]:
    """Return the devices of a trace: its GPUs, or else its CPU."""
    devices = [
        *dict.fromkeys((*trace.kernels, *(call.device for call in trace.calls if call.device is not None)))
    ]
    if not devices:
        return [_on_cpu(trace)]
    return [_on_gpu(trace, device, alone=len(devices) == 1) for device in devices]


def _on_gpu(trace: RankTrace, device: Hashable, alone: bool) -> Lane:
    calls = [call for call in trace.calls if call.device == device or (alone and call.device is None)]
    spans, computing = trace.kernels[device], trace.kernels[device].union()
    active = Union(
        [*computing.starts, *(call.start for call in calls)], [*computing.ends, *(call.end for call in calls)]
    )
    moments, numbers = _marks(trace, active)
    ends = _ends_of_launched(trace, spans, calls, moments)
    edges = [max(moment, end) for moment, end in zip(moments, ends, strict=True)]
    return _lane(trace, device, edges, moments, numbers, computing, computing, calls)


def _on_cpu(trace: RankTrace) -> Lane:
    """Return the CPU. Threads that do nothing but transfer do not count as computing."""
    issuing = set(trace.issues) | set(trace.nodes) | set(trace.regions)
    transferring = trace.backend_threads - issuing
    parts = [_computing(trace, thread) for thread in trace.operators if thread not in transferring]
    computing = Union(
        [start for each in parts for start in each.starts], [end for each in parts for end in each.ends]
    )
    waiting = waits(computing, [call.end for call in trace.calls], LATE)
    sending = [each for thread, each in trace.sending.items() if thread not in transferring]
    active = Union.of((call.start, call.end) for call in trace.calls)
    extent = Union(
        [*computing.starts, *active.starts, *(start for start, _, _ in trace.steps)],
        [*computing.ends, *active.ends, *(end for _, end, _ in trace.steps)],
    )
    if not extent.starts:
        raise ProfileError(f"{trace.path}: its operators take no time")
    edges, numbers = _marks(trace, extent)
    idle = Union(
        [*waiting.starts, *(start for each in sending for start in each.starts)],
        [*waiting.ends, *(end for each in sending for end in each.ends)],
    )
    idle = less(less(idle, computing), trace.collections)
    busy = less(Union([extent.starts[0]], [extent.ends[-1]]), idle)
    lane = _lane(trace, None, edges, edges, numbers, busy, computing, trace.calls)
    slowed = sum(
        _slowed(trace, thread, active, edges) for thread in trace.operators if thread not in transferring
    )
    lane.slowed = min(slowed, sum(each.hidden for each in lane.inside))
    return lane


def _slowed(trace: RankTrace, thread: Hashable, active: Union, edges: Sequence[float]) -> float:
    """Return how much longer a thread's operators take during calls than operators of the same name and shapes do else.

    Those of which none runs without a call count with the mean of the others.
    """
    spans, kinds = trace.operators[thread], trace.kinds[thread]
    apart: defaultdict[int, list[float]] = defaultdict(list)
    during: defaultdict[int, list[float]] = defaultdict(list)
    sending = Union.of((issue.start, issue.end) for issue in trace.issues.get(thread, ()))
    until = edges[0]
    for at in sorted(range(len(spans.starts)), key=lambda at: (spans.starts[at], -spans.ends[at])):
        start, end = spans.starts[at], spans.ends[at]
        # Not within another one, nor around a call, for which it waits.
        if until <= start < edges[-1] and not sending.within(start, end) > 0.0:
            (during if active.within(start, end) > 0.0 else apart)[kinds[at]].append(end - start)
            until = end
    known = [kind for kind in during if kind in apart]
    took = sum(sum(during[kind]) for kind in known)
    usual = sum(len(during[kind]) * fmean(apart[kind]) for kind in known)
    if not took > usual > 0.0:
        return 0.0
    return (1 - usual / took) * sum(sum(each) for each in during.values())


def _computing(trace: RankTrace, thread: Hashable) -> Union:
    """Return when a thread runs operators, without those of communication: DTensor's run within others."""
    return less(trace.operators[thread].union(), trace.sending[thread].union())


def _marks(trace: RankTrace, active: Union) -> tuple[list[float], list[int]]:
    """Return where steps begin on the CPU, and where the last one ends: by the profiler, else by the optimizer."""
    steps = sorted(set(trace.steps))
    if steps:
        return [*(start for start, _, _ in steps), max(end for _, end, _ in steps)], [
            number for _, _, number in steps
        ]
    ends = sorted(end for _, end in trace.optimizer_steps)
    if len(ends) > 1:
        return ends, list(range(len(ends) - 1))
    return [active.starts[0], active.ends[-1]], [0]


def _ends_of_launched(
    trace: RankTrace, spans: Spans, calls: Sequence[Call], moments: Sequence[float]
) -> list[float]:
    """Return when the last kernel ended that was launched before each moment: a GPU lags behind its launches.

    Launches are numbered in their order, so kernels whose launch is not in the trace count by their numbers, too.
    """
    firsts = [1 << 62] * len(moments)
    for moment, number in zip(trace.launches.starts, trace.launches.correlations, strict=True):
        place = bisect_right(moments, moment) - 1
        if place >= 0:
            firsts[place] = min(firsts[place], number)
    for place in range(len(firsts) - 2, -1, -1):
        firsts[place] = min(firsts[place], firsts[place + 1])
    ends = [float("-inf")] * (len(moments) + 1)
    sent = ((call.end, -1 if call.correlation is None else call.correlation) for call in calls)
    for end, number in chain(zip(spans.ends, spans.correlations, strict=True), sent):
        if number >= 0:
            place = bisect_right(firsts, number)
            ends[place] = max(ends[place], end)
    return list(accumulate(ends[:-1], max))


def _lane(
    trace: RankTrace,
    device: Hashable,
    edges: list[float],
    moments: list[float],
    numbers: list[int],
    busy: Union,
    computing: Union,
    calls: Sequence[Call],
) -> Lane:
    lane = Lane(trace, device, edges, numbers, busy, computing, [], trace.collections)
    until = float("-inf")
    for call in calls:
        # On a CPU, also while a thread issues it, or waits for it to begin.
        begin = call.start if call.issued is None or device is not None else min(call.start, call.issued)
        # What ends after the last step was not waited for in it, or its end was noted late.
        start, end = max(call.start, until), min(call.end, edges[-1])
        marks, moment = (edges, call.start) if call.issued is None else (moments, call.issued)
        step = bisect_right(marks, moment) - 1
        exposed = lane.exposed(max(begin, until), end)
        hidden = max(0.0, end - start) - lane.exposed(start, end)
        lane.calls.append(Timed(call, exposed, hidden, step if 0 <= step < len(edges) - 1 else -1))
        until = max(until, call.end)
    return lane
