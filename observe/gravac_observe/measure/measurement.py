"""What a step spends on communication, by purpose and group, over all ranks that are given. Times are in seconds."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import Any

from gravac_observe.measure.lanes import Lane, Timed, lanes_of
from gravac_observe.measure.linking import link
from gravac_observe.measure.patterns import GRADIENTS, MESSAGES, REPLICAS, classify
from gravac_observe.traces.intervals import Union
from gravac_observe.traces.reading import ProfileError
from gravac_observe.traces.trace import Issue, RankTrace

US = 1e-6
TOGETHER = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "barrier")
"""Kinds of calls that no rank can leave before the last one has come."""
LATENCY_BYTES = 16_384
"""Size from which on a message also takes time for its bytes. [bytes; chosen]"""
INSIDE, BETWEEN = "inside a machine", "between machines"
"""Levels of links."""
CLOCKS_APART = 0.01
"""Share of calls that one rank seems to leave before another one came, from which their clocks count as different."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Communication of one purpose, kind, level and size of group, for each step and rank.

    Attributes:
        pattern: What it is for, one of ``gravac_observe.measure.patterns.WORDS``.
        kind: Kind of the calls, such as all-reduce.
        group: Ranks that take part, of the rank that was read first; empty: unknown.
        size: Number of ranks that take part; None: unknown.
        level: Level of the links between them, INSIDE or BETWEEN; empty: unknown, or there is one machine.
        calls: Number of calls.
        nbytes: Bytes of all messages; None: the trace has no sizes.
        seconds: Time of all calls, one after the other.
        exposed: Part of that while nothing was computed. Time that several calls share counts for the first one.
        hidden: Part while something was computed, counted likewise.
        waiting: Part of the exposed time that waits for ranks that came later; None: unknown.
        bandwidth: Bytes a second on a rank's link while transferring; None: unknown.
    """

    pattern: str
    kind: str
    group: tuple[int, ...]
    size: int | None
    level: str
    calls: float
    nbytes: float | None
    seconds: float
    exposed: float
    hidden: float
    waiting: float | None
    bandwidth: float | None

    def record(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "pattern": self.pattern,
            "call": self.kind,
            "group": list(self.group),
            "ranks": self.size,
            "level": self.level or None,
            "calls": self.calls,
            "bytes": self.nbytes,
            "seconds": self.seconds,
            "exposed_seconds": self.exposed,
            "hidden_seconds": self.hidden,
            "waiting_seconds": self.waiting,
            "bytes_per_second": self.bandwidth,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """The exchange of gradients in a step, as far as compressing it is concerned.

    Attributes:
        seconds: Time of the exchange, without waiting for ranks that came later.
        exposed: Part of that while nothing was computed.
        capacity: Computation between the begin of the first call and the end of the last: so much can hide.
        last: The last call's share of the bytes, or of the time where sizes are unknown.
        calls: Number of calls.
        elements: Elements of the gradient; None: unknown.
        itemsize: Bytes of an element; None: unknown.
        size: Ranks that exchange; None: unknown.
        sharded: Whether it is reduce-scattered, as by FSDP.
        usual: Median bytes of a call; None: unknown.
        fastest: Seconds of the fastest call that is so small that it takes nothing but latency; None: there is none.
    """

    seconds: float
    exposed: float
    capacity: float
    last: float
    calls: float
    elements: int | None
    itemsize: int | None
    size: int | None
    sharded: bool
    usual: float | None
    fastest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What the traces of a job show, for each step, as the mean over ranks.

    Attributes:
        ranks: Traces that were read.
        world: Ranks of the job; None: unknown.
        gpu: Whether it computes on GPUs.
        steps: Steps that were measured.
        step: Seconds of a step.
        spread: Standard deviation of steps, relative.
        computing: Seconds while something was computed.
        communicating: Seconds while anything was sent.
        exposed: Part of that while nothing was computed.
        waiting: Part of the exposed time that waits for ranks that came later; None: unknown.
        loader: Seconds that a thread waited for data, while neither computing nor communication went on.
        rows: Communication by purpose, kind and group, the most exposed first.
        gradients: Their exchange; None: there is none.
        tensors: Gradients that backward accumulated.
        parameters: Their elements; None: unknown.
        late: How many seconds each rank came after the first one, at the latest call of a step; empty: unknown.
        optimizer: Its class; empty: unknown.
        wrapper: What exchanges gradients: agent, deepspeed, fsdp2, fsdp1, ddp; empty: unknown.
        hosts: Names of the machines; empty: unknown.
        encoding: Seconds in kernels that encode and decode.
        unknown: What the traces do not show, in a sentence each.
        lanes: What it was measured from.
        profiler: Seconds that the profiler makes a step longer, which no other figure counts; None: unknown.
    """

    ranks: int
    world: int | None
    gpu: bool
    steps: int
    step: float
    spread: float
    computing: float
    communicating: float
    exposed: float
    waiting: float | None
    loader: float
    rows: tuple[Row, ...]
    gradients: Gradients | None
    tensors: float
    parameters: int | None
    late: Mapping[int, float]
    optimizer: str
    wrapper: str
    hosts: tuple[str, ...]
    encoding: float
    unknown: tuple[str, ...]
    lanes: tuple[Lane, ...]
    profiler: float | None = None

    @property
    def share(self) -> float:
        """Share of a step that is exposed communication."""
        return self.exposed / self.step

    @property
    def levels(self) -> dict[str, float]:
        """Exposed seconds by level of links; empty: there is one machine, or a call's level is not known."""
        found = {BETWEEN: 0.0, INSIDE: 0.0}
        for row in self.rows:
            if not row.level:
                return {}
            found[row.level] += row.exposed
        return found if self.rows else {}

    def record(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "traces": self.ranks,
            "world": self.world,
            "steps": self.steps,
            "step_seconds": self.step,
            "computing_seconds": self.computing,
            "communicating_seconds": self.communicating,
            "exposed_seconds": self.exposed if self.rows or self.world == 1 else None,
            "waiting_seconds": self.waiting,
            "level_seconds": self.levels or None,
            "loader_seconds": self.loader,
            "late_seconds": dict(self.late),
            "optimizer": self.optimizer,
            "parameters": self.parameters,
            "wrapper": self.wrapper or None,
            "hosts": list(self.hosts),
            "profiler_seconds": self.profiler,
            "communication": [row.record() for row in self.rows],
        }


def measure(traces: Sequence[RankTrace]) -> Measurement:
    """Measure one trace, or one of each rank.

    Raises:
        ProfileError: two traces are of one rank, or a trace has no time in it.
    """
    named = Counter(trace.rank for trace in traces if trace.rank is not None)
    twice = next((rank for rank, count in named.items() if count > 1), None)
    if twice is not None:
        paths = ", ".join(str(trace.path) for trace in traces if trace.rank == twice)
        raise ProfileError(f"{paths}: all are of rank {twice}; give one trace of each rank")
    lanes = []
    for trace in traces:
        link(trace)
        classify(trace, _wrapper(trace))
        lanes += lanes_of(trace)
    for lane in lanes:
        if not lane.edges[-1] > lane.edges[0]:
            raise ProfileError(f"{lane.trace.path}: its steps take no time")
    waited, late, why = _waiting(lanes)
    step = fmean(_whole(lane) / lane.steps for lane in lanes) * US
    each = [(end - start) * US / step for lane in lanes for start, end in pairwise(lane.edges)]
    inside = [(lane, timed) for lane in lanes for timed in lane.inside]
    exposed = _each(lanes, (timed.exposed for _, timed in inside))
    known = [_exposed_wait(lane, timed, waited) for lane, timed in inside if id(timed) in waited]
    found = Measurement(
        ranks=len(traces),
        world=next((trace.world for trace in traces if trace.world), None),
        gpu=lanes[0].device is not None,
        steps=sum(lane.steps for lane in lanes) // len(lanes),
        step=step,
        spread=pstdev(each),
        computing=fmean(lane.computing.within(*_extent(lane)) / lane.steps for lane in lanes) * US,
        communicating=_each(lanes, (timed.exposed + timed.hidden for _, timed in inside)),
        exposed=min(step, exposed),
        waiting=_each(lanes, known) if known else None,
        loader=fmean(_loading(lane) / lane.steps for lane in lanes) * US,
        rows=tuple(_rows(lanes, waited)),
        gradients=_gradients(lanes, waited),
        tensors=len(accumulated := _accumulated(lanes[0])) / lanes[0].steps,
        parameters=_parameters(lanes[0], accumulated),
        late=late,
        optimizer=next((trace.optimizer for trace in traces if trace.optimizer), ""),
        wrapper=next(filter(None, map(_wrapper, traces)), ""),
        hosts=tuple(sorted({trace.host for trace in traces if trace.host})),
        encoding=fmean(
            lane.trace.ours[lane.device].union().within(*_extent(lane)) / lane.steps
            if lane.device in lane.trace.ours
            else 0.0
            for lane in lanes
        )
        * US,
        unknown=tuple(_unknown(lanes, why)),
        lanes=tuple(lanes),
    )
    return _corrected(found, [trace.clock for trace in traces])


def _corrected(found: Measurement, clocks: Sequence[tuple[float, float, float] | None]) -> Measurement:
    """Return the figures of a job on CPUs as they are without the profiler, and where calls slow nothing down.

    What the profiler adds to computing is known from the CPU time of the thread that trains, and how much shorter a
    step is without, from the clock. The rest runs while a transfer does, and would be waited for without it. A full
    collection of garbage, which few steps have, counts as far as the steps before were shorter, too.
    """
    known = [clock for clock in clocks if clock is not None]
    if found.gpu:
        return found
    slowed = _each(found.lanes, (lane.slowed for lane in found.lanes))
    added = shorter = collected = 0.0
    if known and len(known) == len(clocks):
        usual, plain, recorded = map(fmean, zip(*known, strict=True))
        added = max(0.0, recorded - plain)
        longer = max(0.0, found.step - usual)
        collecting = (each.collecting.within(*_extent(each)) for each in found.lanes)
        collected = min(longer, _each(found.lanes, collecting))
        shorter = min(added, longer - collected)
    step = found.step - collected - shorter
    sent = sum(row.exposed + row.hidden for row in found.rows)
    exposed = min(step, sent, found.exposed + slowed + added - shorter)

    def moved(exposed_before: float, hidden: float) -> float:
        """Return a part of the exposed time after the correction."""
        return exposed_before + (exposed - found.exposed) * (exposed_before + hidden) / sent

    gradients = found.gradients
    if gradients is not None and sent > 0.0:
        more = moved(gradients.exposed, gradients.seconds - gradients.exposed) - gradients.exposed
        gradients = replace(
            gradients,
            seconds=max(gradients.seconds, gradients.exposed + more),
            exposed=gradients.exposed + more,
            capacity=max(0.0, gradients.capacity - more),
        )
    return replace(
        found,
        step=step,
        computing=max(0.0, found.computing - slowed - added),
        exposed=exposed,
        rows=tuple(
            replace(
                row,
                exposed=(shown := moved(row.exposed, row.hidden)),
                hidden=max(0.0, row.hidden - (shown - row.exposed)),
            )
            for row in found.rows
        )
        if sent > 0.0
        else found.rows,
        gradients=gradients,
        profiler=added if known else None,
    )


def link_bytes(kind: str, nbytes: float, size: int | None) -> float | None:
    """Return what a rank puts on its link for a message, in a ring; None: that depends on the unknown group."""
    if kind in ("broadcast", "send/recv"):
        return nbytes
    if not size:
        return None
    return nbytes * (size - 1) / size * (2 if kind == "all-reduce" else 1)


def _extent(lane: Lane) -> tuple[float, float]:
    return lane.edges[0], lane.edges[-1]


def _whole(lane: Lane) -> float:
    return lane.edges[-1] - lane.edges[0]


def _each(lanes: Sequence[Lane], microseconds: Iterable[float]) -> float:
    """Return the seconds for each step and lane."""
    return sum(microseconds) * US / sum(lane.steps for lane in lanes)


def _loading(lane: Lane) -> float:
    """Return how long a thread waited for data while nothing else went on."""
    taken = Union(
        [*lane.computing.starts, *lane.collecting.starts, *(each.call.start for each in lane.calls)],
        [*lane.computing.ends, *lane.collecting.ends, *(each.call.end for each in lane.calls)],
    )
    loading = lane.trace.loader.union()
    first, last = _extent(lane)
    return sum(
        max(0.0, min(end, last) - max(start, first)) - taken.within(max(start, first), min(end, last))
        for start, end in zip(loading.starts, loading.ends, strict=True)
        if end > first and start < last
    )


def _exposed_wait(lane: Lane, timed: Timed, waited: Mapping[int, float]) -> float:
    start = timed.call.start
    return min(timed.exposed, lane.exposed(start, start + waited[id(timed)]))


def _hosts(lanes: Sequence[Lane]) -> dict[int, str]:
    """Return the machines of ranks, as far as they are known."""
    traces = (lane.trace for lane in lanes)
    return {trace.rank: trace.host for trace in traces if trace.rank is not None and trace.host}


def _level(group: Sequence[int], hosts: Mapping[int, str]) -> str:
    """Return the level of links that a group's calls take."""
    known = [hosts[rank] for rank in group if rank in hosts]
    if len(set(known)) > 1:
        return BETWEEN
    return INSIDE if known and len(known) == len(group) and len(set(hosts.values())) > 1 else ""


def _rows(lanes: Sequence[Lane], waited: Mapping[int, float]) -> Iterator[Row]:
    found: defaultdict[tuple[str, str, int | None, str], list[tuple[Lane, Timed]]] = defaultdict(list)
    hosts = _hosts(lanes)
    for lane in lanes:
        for timed in lane.inside:
            call = timed.call
            kind = "send/recv" if call.about.kind in MESSAGES else call.about.kind
            found[call.pattern, kind, call.about.size, _level(call.about.group, hosts)].append((lane, timed))
    steps = sum(lane.steps for lane in lanes)
    rows = []
    for (pattern, kind, size, level), calls in found.items():
        sizes = [timed.call.nbytes for _, timed in calls]
        sized = [nbytes for nbytes in sizes if nbytes is not None]
        nbytes = sum(sized) / steps if len(sized) == len(sizes) else None
        seconds = _each(lanes, (timed.call.end - timed.call.start for _, timed in calls))
        known = [(lane, timed) for lane, timed in calls if id(timed) in waited]
        sent = None if nbytes is None else link_bytes(kind, nbytes, size)
        # Calls that are in flight together share the link: their time counts once.
        moving = defaultdict[int, list[tuple[float, float]]](list)
        for lane, timed in calls:
            moving[id(lane)].append((timed.call.start + waited.get(id(timed), 0.0), timed.call.end))
        transfer = _each(lanes, (Union.of(pairs).length for pairs in moving.values()))
        rows.append(
            Row(
                pattern=pattern,
                kind=kind,
                group=calls[0][1].call.about.group,
                size=size,
                level=level,
                calls=len(calls) / steps,
                nbytes=nbytes,
                seconds=seconds,
                exposed=_each(lanes, (timed.exposed for _, timed in calls)),
                hidden=_each(lanes, (timed.hidden for _, timed in calls)),
                waiting=_each(lanes, (_exposed_wait(lane, timed, waited) for lane, timed in known))
                if known
                else None,
                bandwidth=sent / transfer if sent and transfer > 0 else None,
            )
        )
    yield from sorted(rows, key=lambda row: -row.exposed)


def _waiting(lanes: Sequence[Lane]) -> tuple[dict[int, float], dict[int, float], str]:
    """Return for calls how long they waited for later ranks, how late ranks come in a step, and what is unknown.

    The earliest end less the latest begin is the transfer. Where clocks differ, the shortest call is taken for it.
    """
    if len({lane.trace.path for lane in lanes}) < 2:
        return (
            {},
            {},
            "how much of the exposed time is waiting for late ranks: that needs traces of several ranks",
        )
    same: defaultdict[tuple[object, ...], list[tuple[Lane, Timed]]] = defaultdict(list)
    for lane in lanes:
        counts: Counter[tuple[object, ...]] = Counter()
        for timed in lane.inside:
            about = timed.call.about
            what = about.kind if about.kind in TOGETHER else _sender(lane.trace.rank, about)
            if what is not None and (about.group or len(lane.trace.groups) < 2):
                key = (lane.numbers[timed.step], about.group, what, about.elements)
                counts[key] += 1
                same[*key, counts[key]].append((lane, timed))
    met = [calls for calls in same.values() if len(calls) > 1]
    if not met:
        return {}, {}, "how much is waiting for late ranks: the traces share no call of a known group"
    apart = sum(
        min(_moment(lane, timed.call.end) for lane, timed in calls)
        < max(_moment(lane, timed.call.start) for lane, timed in calls)
        for calls in met
        if calls[0][1].call.about.kind in TOGETHER
    )
    shared = apart <= CLOCKS_APART * len(met)
    waited: dict[int, float] = {}
    late: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for calls in met:
        last = max(_moment(lane, timed.call.start) for lane, timed in calls)
        shortest = min(timed.call.end - timed.call.start for _, timed in calls)
        for lane, timed in calls:
            lasts = timed.call.end - timed.call.start
            waits = last - _moment(lane, timed.call.start) if shared else lasts - shortest
            waited[id(timed)] = min(lasts, max(0.0, waits))
        first = max(waited[id(timed)] for _, timed in calls)
        for lane, timed in calls:
            if lane.trace.rank is not None:
                of_rank = late[lane.trace.rank]
                of_rank[timed.step] = max(of_rank[timed.step], (first - waited[id(timed)]) * US)
    why = (
        ""
        if shared
        else "clocks of the ranks differ, so the shortest of a collective's calls counts as its transfer"
    )
    return waited, {rank: fmean(each.values()) for rank, each in late.items()}, why


def _sender(rank: int | None, about: Issue) -> int | None:
    """Return who sends the message of a call; None: unknown, or the call is none between two ranks."""
    if len(about.group) != 2 or rank not in about.group or about.kind not in ("send", "recv"):
        return None
    return rank if about.kind == "send" else sum(about.group) - rank


def _moment(lane: Lane, moment: float) -> float:
    return lane.trace.base + moment


def _gradients(lanes: Sequence[Lane], waited: Mapping[int, float]) -> Gradients | None:
    found = [(lane, timed) for lane in lanes for timed in lane.inside if timed.call.pattern == GRADIENTS]
    if not found:
        return None
    parts: defaultdict[tuple[int, int], list[Timed]] = defaultdict(list)
    for lane, timed in found:
        parts[id(lane), timed.step].append(timed)
    of = {id(lane): lane for lane in lanes}
    seconds, exposed, capacity, last = [], [], [], []
    for (lane_id, _), calls in parts.items():
        lane = of[lane_id]
        wait = sum(_exposed_wait(lane, timed, waited) for timed in calls if id(timed) in waited)
        whole = Union.of((timed.call.start, timed.call.end) for timed in calls)
        seconds.append(
            Union.of(
                (timed.call.start + waited.get(id(timed), 0.0), timed.call.end) for timed in calls
            ).length
        )
        exposed.append(min(seconds[-1], max(0.0, sum(timed.exposed for timed in calls) - wait)))
        capacity.append(lane.busy.within(whole.starts[0], whole.ends[-1]))
        weights = [timed.call.nbytes or 0 for timed in calls]
        if not all(weights):
            weights = [max(1, round(timed.call.end - timed.call.start)) for timed in calls]
        last.append(weights[max(range(len(calls)), key=lambda at: calls[at].call.start)] / sum(weights))
    steps = sum(lane.steps for lane in lanes)
    sizes = [timed.call.nbytes for _, timed in found]
    sized = [nbytes for nbytes in sizes if nbytes is not None]
    elements = [timed.call.about.elements for _, timed in found]
    abouts = [timed.call.about for _, timed in found]
    size = next((about.size for about in abouts if about.size), None)
    return Gradients(
        seconds=sum(seconds) * US / steps,
        exposed=sum(exposed) * US / steps,
        capacity=fmean(capacity) * US,
        last=fmean(last),
        calls=len(found) / steps,
        elements=round(sum(each or 0 for each in elements) / steps) if all(elements) else None,
        itemsize=next((about.itemsize for about in abouts if about.itemsize), None),
        size=size,
        sharded=any(about.kind == "reduce-scatter" for about in abouts),
        usual=median(sized) if len(sized) == len(sizes) else None,
        fastest=min(
            (
                (timed.call.end - timed.call.start) * US
                for lane in lanes
                for timed in lane.inside
                if timed.call.about.kind in TOGETHER
                and timed.call.about.size in (size, None)
                and (timed.call.nbytes or LATENCY_BYTES) < LATENCY_BYTES
            ),
            default=None,
        ),
    )


def _parameters(lane: Lane, accumulated: Sequence[int | None]) -> int | None:
    """Return the number of parameters; without ``gravac observe``, as one backward in each step has them."""
    said = lane.trace.about.get("parameters")
    if type(said) is int and 0 < said < 1 << 62:
        return said
    known = accumulated and all(accumulated)
    return round(sum(count or 0 for count in accumulated) / lane.steps) if known else None


def _text(trace: RankTrace, name: str) -> str:
    value = trace.about.get(name)
    return value[:100] if isinstance(value, str) else ""


def _wrapper(trace: RankTrace) -> str:
    """Return what exchanges gradients in a trace."""
    names = {name for regions in trace.regions.values() for _, _, name in regions}
    starts = {
        "fsdp2": "FSDP::",
        "fsdp1": "FullyShardedDataParallel",
        "ddp": "DistributedDataParallel.forward",
    }
    found = (each for each, start in starts.items() if any(name.startswith(start) for name in names))
    return _text(trace, "framework") or next(found, "")


def _accumulated(lane: Lane) -> list[int | None]:
    """Return the elements of each gradient that backward accumulated in the steps; None: shapes were not recorded."""
    first = min([lane.edges[0], *(start for start, _, _ in lane.trace.steps)])
    return [count for start, count in lane.trace.gradients if first <= start < lane.edges[-1]]


def _unknown(lanes: Sequence[Lane], why: str) -> Iterator[str]:
    """Yield what the traces do not show."""
    inside = [timed.call for lane in lanes for timed in lane.inside]
    traces = list({id(lane.trace): lane.trace for lane in lanes}.values())
    if why and inside:
        yield why
    sizeless = [call for call in inside if call.nbytes is None]
    if sizeless:
        yield (
            f"the size of {len(sizeless)} of {len(inside)} calls, and so their bandwidth: record the trace with "
            "record_shapes=True, or a newer PyTorch"
        )
    if any(not call.about.group for call in inside):
        yield "which ranks take part in some calls: the trace does not name their group"
    hosts = _hosts(lanes)
    if len(set(hosts.values())) > 1 and any(not _level(call.about.group, hosts) for call in inside):
        yield (
            "which calls stay within a machine and which cross to others: of some the ranks are not named, or no trace "
            "names their machines"
        )
    if any(call.pattern == REPLICAS for call in inside):
        yield "whether gradients between replicas wait for those within: both count as communication"
    if not any(trace.steps or len(trace.optimizer_steps) > 1 for trace in traces):
        yield "where steps begin: nothing marks them, so the whole trace counts as one; call profiler.step()"
    skipped = max(
        sum(lane.edges[0] <= moment < lane.edges[-1] for moment in lane.trace.scaler_updates) - lane.steps
        for lane in lanes
    )
    if skipped > 0:
        yield f"how long {skipped} steps took that the gradient scaler skipped: each counts to the next one"
    outside = sum(len(lane.calls) - len(lane.inside) for lane in lanes)
    if outside:
        yield f"the step of {outside} calls that were issued before or after the recorded steps: they are left out"
    damaged = sum(trace.damaged for trace in traces)
    if damaged:
        yield f"what {damaged} damaged events were: they are left out"
