"""What is kept of one rank's profiler trace: calls of communication, computing, steps. Times are in microseconds."""

import re
import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, TypeGuard, TypeVar, cast

import gravac
from gravac.wording import format_bytes
from gravac_observe.traces.intervals import Union
from gravac_observe.traces.reading import EVENTS, ProfileError, read_events

Key = TypeVar("Key", bound=Hashable)
LATEST = 1e17
"""Microseconds, three thousand years."""
BYTES = {
    **dict.fromkeys(("double", "long", "long int", "int64", "float64"), 8),
    **dict.fromkeys(("float", "int", "int32", "float32"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "short int", "int16", "float16"), 2),
    **dict.fromkeys(("byte", "char", "unsigned char", "signed char", "bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1),
}
"""Bytes of an element, by the names that traces use, in lower case and without ``c10::``."""
WHOLE = frozenset(("long", "long int", "int64", "int", "int32"))
"""Types of counts, of the same names."""
KINDS = {"waittensor": "wait"} | {
    re.sub("[-/]", "", kind): kind
    for kind in (
        *("reduce-scatter", "all-gather", "all-reduce", "all-to-all", "broadcast", "barrier"),
        *("send/recv", "send", "recv", "scatter", "gather", "reduce"),
    )
}
"""Kinds of calls by what is in names of kernels, operators and annotations, without underscores; the first counts."""
_OF_NETWORK = re.compile(
    r"^(nccl|rccl|msccl)|nvshmem|cross_device_reduce|multimem_all_|(one|two)_shot_all_reduce", re.IGNORECASE
)
RECORD = "record_param_comms"
_ISSUES = ("c10d::", "_c10d_functional::", "c10d_functional::", "nccl:", RECORD)
_ON_HOST = ("gloo:", "mpi:", "ucc:")
_REGIONS = ("DistributedDataParallel.forward", "FSDP::", "FullyShardedDataParallel", "Optimizer.step#")
_NODES = ("autograd::engine::", "torch::autograd::", "profiler::")
MOST_RANKS = 1 << 20
MOST_BYTES = 500_000_000
"""Most memory for a trace. Gzip packs events a thousand times, so a file does not show it. [bytes; chosen]"""
SPAN_BYTES, OBJECT_BYTES, KEY_BYTES = 200, 600, 1500
"""Memory that an interval takes until it is judged, a call or the like, and what is the first of a thread or device.
[bytes; measured]"""
OWN_KERNELS = 3
"""Names of gravac's kernels from which on they are taken for its own: a step has more."""


@dataclass(slots=True)
class Issue:
    """What a trace says of a call: on its kernel, or on the operator or annotation that issued it.

    Attributes:
        start: Start of the event.
        end: End of the event.
        kind: Kind of the call, such as all-reduce; unknown where the trace does not say.
        elements: Elements of the larger of input and output; None: unknown.
        itemsize: Bytes of an element; None: unknown.
        group: Ranks that take part; empty: unknown.
        size: Number of ranks that take part; None: unknown.
        counts: Whether its elements are counts, so no gradient.
    """

    start: float
    end: float
    kind: str
    elements: int | None
    itemsize: int | None
    group: tuple[int, ...]
    size: int | None
    counts: bool = False

    def completed(self, by: "Issue") -> None:
        """Take over what only the other event says."""
        if by.kind != "unknown" and self.kind in (
            "unknown",
            "send/recv",
        ):  # such kernels serve all-to-all, too
            self.kind = by.kind
        self.elements = max((each for each in (self.elements, by.elements) if each is not None), default=None)
        self.itemsize = by.itemsize if self.itemsize is None else self.itemsize
        self.group, self.size = self.group or by.group, self.size or by.size
        self.counts = self.counts or by.counts


@dataclass(slots=True)
class Call:
    """One collective, or one message, as one rank saw it.

    Attributes:
        about: What the trace says of it.
        start: Start of the kernel, or of the work of a backend on the CPU.
        end: End of the same.
        correlation: Number that the kernel shares with its launch; None on the CPU.
        device: Device on which it ran; None: the CPU.
        thread: Thread that issued it; None: unknown.
        issued: Time at which that thread issued it.
        phase: Phase of a step: forward, backward, after (backward), optimizer, other.
        region: Annotation of DDP or FSDP around it; empty: none.
        pattern: What it is for (``gravac_observe.measure.patterns``).
    """

    about: Issue
    start: float
    end: float
    correlation: int | None = None
    device: Hashable = None
    thread: Hashable = None
    issued: float | None = None
    phase: str = "other"
    region: str = ""
    pattern: str = "other"

    @property
    def nbytes(self) -> int | None:
        """Bytes of the whole message; None: unknown."""
        elements, itemsize = self.about.elements, self.about.itemsize
        return None if elements is None or itemsize is None else elements * itemsize


@dataclass(slots=True)
class Spans:
    """Intervals, in arrays. ``correlations`` only for those of a GPU."""

    starts: "array[float]" = field(default_factory=lambda: array("d"))
    ends: "array[float]" = field(default_factory=lambda: array("d"))
    correlations: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, start: float, end: float) -> None:
        self.starts.append(start)
        self.ends.append(end)

    def union(self) -> Union:
        return Union(self.starts, self.ends)


@dataclass
class RankTrace:
    """What is kept of the trace of one rank.

    Attributes:
        path: The file.
        rank: Rank of the process; None: the trace does not say.
        world: Number of ranks; None: the same.
        host: Name of its machine; empty: unknown.
        groups: Ranks of the process groups, those of different ones, as far as the trace lists them.
        base: Microseconds that all times of the trace count from.
        calls: Calls of communication, by start.
        kernels: Computing of each GPU.
        ours: Those kernels among them that gravac compiled, for encoding and decoding.
        operators: Computing of each thread of the CPU.
        kinds: Numbers of these operators, the same for equal names and shapes.
        launches: Launches of kernels: start, and correlation.
        launching: Places of their threads in ``threads``.
        threads: Threads that launch kernels.
        issues: Issues by thread.
        sending: Operators of c10d and waits for them, by thread: what runs within them is communication.
        nodes: Nodes of autograd, by thread.
        regions: Annotations of DDP, FSDP and optimizers, by thread.
        steps: Start, end and number of each step that the profiler knows.
        optimizer_steps: Start and end of each step of an optimizer.
        optimizer: Its class; empty: unknown.
        about: What ``gravac observe`` says of the process, as ``gravac_observe.Recorded`` if nobody altered it.
        scaler_updates: When a gradient scaler ended a step, also one that it skipped.
        backend_threads: Threads on which a backend on the CPU transfers.
        loader: When a thread waited for a data loader.
        gradients: When a gradient was accumulated, and its elements; None: unknown.
        damaged: Events that were left out, because their times or names are none.
    """

    path: Path
    rank: int | None = None
    world: int | None = None
    host: str = ""
    groups: list[tuple[int, ...]] = field(default_factory=list)
    base: float = 0.0
    calls: list[Call] = field(default_factory=list)
    kernels: dict[Hashable, Spans] = field(default_factory=lambda: defaultdict(Spans))
    ours: dict[Hashable, Spans] = field(default_factory=lambda: defaultdict(Spans))
    operators: dict[Hashable, Spans] = field(default_factory=lambda: defaultdict(Spans))
    kinds: dict[Hashable, "array[int]"] = field(default_factory=lambda: defaultdict(lambda: array("q")))
    launches: Spans = field(default_factory=Spans)
    launching: "array[int]" = field(default_factory=lambda: array("l"))
    threads: list[Hashable] = field(default_factory=list)
    issues: dict[Hashable, list[Issue]] = field(default_factory=lambda: defaultdict(list))
    sending: dict[Hashable, Spans] = field(default_factory=lambda: defaultdict(Spans))
    nodes: dict[Hashable, Spans] = field(default_factory=lambda: defaultdict(Spans))
    regions: dict[Hashable, list[tuple[float, float, str]]] = field(default_factory=lambda: defaultdict(list))
    steps: list[tuple[float, float, int]] = field(default_factory=list)
    optimizer_steps: list[tuple[float, float]] = field(default_factory=list)
    optimizer: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    scaler_updates: list[float] = field(default_factory=list)
    backend_threads: set[Hashable] = field(default_factory=set)
    loader: Spans = field(default_factory=Spans)
    gradients: list[tuple[float, int | None]] = field(default_factory=list)
    damaged: int = 0

    @property
    def clock(self) -> tuple[float, float, float] | None:
        """Seconds of a step without the profiler, and of the thread that trains, without and with it; None: unknown."""
        names = ("step_seconds", "thread_seconds", "recorded_thread_seconds")
        known = [each for name in names if _is_time(each := self.about.get(name)) and each > 0.0]
        return (known[0], known[1], known[2]) if len(known) == len(names) else None

    @property
    def optimizers(self) -> list[tuple[tuple[str, ...], float | None, int]]:
        """Names of each optimizer's class and of those that it derives from, β₁, and parameters; empty: unknown."""
        said = self.about.get("optimizers")
        return [
            (tuple(each["classes"]), each.get("beta") if _is_time(each.get("beta")) else None, count)
            for each in (said if isinstance(said, list) else ())
            if isinstance(each, dict)
            and isinstance(each.get("classes"), list)
            and each["classes"]
            and all(isinstance(name, str) for name in each["classes"])
            and (count := _whole(each.get("parameters"))) is not None
        ]

    @property
    def collections(self) -> Union:
        """Times at which Python collected garbage in the recorded steps, as far as they are known."""
        said = self.about.get("collections")
        return Union.of(
            (pair[0] - self.base, pair[1] - self.base)
            for pair in (said if isinstance(said, list) else ())
            if isinstance(pair, list) and len(pair) == 2 and all(map(_is_time, pair)) and pair[0] <= pair[1]
        )


def read(path: Path) -> RankTrace:
    """Read a trace of PyTorch's profiler.

    Args:
        path: File, ``.json`` or ``.json.gz``.

    Raises:
        ProfileError: The file is no profiler trace, or a broken one. The message says where.
    """
    kept = _Keeping(RankTrace(path))
    events = 0
    for name, value in read_events(path):
        if name == EVENTS:
            events += 1
            kept.event(value)
        else:
            kept.head(name, value)
    trace = kept.trace
    whole = _whole(trace.about.get("whole_steps"))
    if whole is not None:  # the program ended, or its own profiler began, in the middle of the last one
        trace.steps = sorted(trace.steps)[:whole]
    trace.world = trace.world or _whole(trace.about.get("world"))
    host = trace.about.get("host")
    if isinstance(host, str):
        trace.host = host[:100]
    optimizer = trace.about.get("optimizer")
    if isinstance(optimizer, str):
        trace.optimizer = optimizer[:100]
    if len(kept.ours) < OWN_KERNELS:  # another program's kernel may have the name of one of ours
        trace.ours.clear()
    if not (trace.kernels or trace.operators or trace.calls):
        what = f"none of its {events:,} events is an operator or a kernel" if events else "it has no events"
        raise ProfileError(f"{path}: {what}: write it with torch.profiler's export_chrome_trace")
    return trace


class _Keeping:
    """Keeps what counts of each event. Names repeat, so each is looked at once."""

    def __init__(self, trace: RankTrace) -> None:
        self.trace = trace
        self._kernels: dict[str, str] = {}
        self._names: dict[str, Callable[[str, float, float, Any, dict[str, Any]], None] | None] = {}
        self._numbers: dict[Hashable, int] = {}
        self._keys: dict[Hashable, Hashable] = {}
        self._kept = 0  # bytes
        self._take: dict[str, Callable[[str, float, float, Any, dict[str, Any]], None]] = {
            **dict.fromkeys(("kernel", "Kernel"), self._kernel),
            **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime", "privateuse1_runtime"), self._launch),
            **dict.fromkeys(("cpu_op", "Operator", "user_annotation"), self._named),
        }

    def _keep(self, size: int) -> None:
        """Count what is kept. Raises ProfileError."""
        self._kept += size
        if self._kept > MOST_BYTES:
            raise ProfileError(
                f"{self.trace.path}: what counts of its events takes more than {format_bytes(MOST_BYTES)} of memory: "
                "record fewer steps (gravac observe records 5)"
            )

    def _place(self, where: Any) -> Hashable:
        """Return a thread or a device, as a key."""
        return self._once(where if type(where) in (int, str) else 0, KEY_BYTES + sys.getsizeof(where))

    def _once(self, key: Key, size: int) -> Key:
        """Return the one that is kept of all that are equal."""
        if key not in self._keys:
            self._keep(size)
        return cast("Key", self._keys.setdefault(key, key))

    @property
    def ours(self) -> list[str]:
        """Names of gravac's kernels that were met."""
        return [name for name, kind in self._kernels.items() if kind == "ours"]

    def head(self, name: str, value: Any) -> None:
        """Take a value beside the events."""
        trace = self.trace
        if name == "baseTimeNanoseconds" and _whole(value) is not None:
            trace.base = value / 1000
        elif name == "host_name" and isinstance(value, str):
            trace.host = value[:100]
        elif name == "gravac" and isinstance(value, dict):
            trace.about = value
        elif name == "distributedInfo" and isinstance(value, dict):
            trace.rank, trace.world = _whole(value.get("rank")), _whole(value.get("world_size"))
            groups = value.get("pg_config")
            found = (
                _ranks(group.get("ranks"))
                for group in (groups if isinstance(groups, list) else ())
                if isinstance(group, dict)
            )
            trace.groups += dict.fromkeys(ranks for ranks in found if len(ranks) > 1)

    def event(self, event: Any) -> None:
        """Take an event."""
        if type(event) is not dict:
            self.trace.damaged += 1
            return
        category = event.get("cat")
        take = self._take.get(category) if type(category) is str else None
        if take is None or event.get("ph") != "X":
            return
        name, start, lasts = event.get("name"), event.get("ts"), event.get("dur", 0)
        if not (type(name) is str and _is_time(start) and _is_time(lasts) and lasts >= 0):
            self.trace.damaged += 1
            return
        thread, args = event.get("tid"), event.get("args")
        thread = self._place(thread)
        if type(args) is not dict:
            args = {}
        if take == self._kernel and "device" not in args:
            args = {**args, "device": event.get("pid")}
        take(name, float(start), float(start) + float(lasts), thread, args)

    def _kernel(self, name: str, start: float, end: float, thread: Any, args: dict[str, Any]) -> None:
        kind = self._kernels.get(name)
        if kind is None:
            kind = kind_of(name) if _OF_NETWORK.search(name) else "ours" if name in own_kernels() else ""
            self._keep(OBJECT_BYTES + len(name))
            self._kernels[name] = kind
        device, correlation = self._place(args["device"]), args.get("correlation")
        if type(correlation) is not int or not -(1 << 62) < correlation < 1 << 62:
            correlation = -1
        if kind in ("", "ours"):
            self._keep(SPAN_BYTES)
            for spans in (self.trace.kernels, self.trace.ours)[: 1 + (kind == "ours")]:
                spans[device].add(start, end)
            self.trace.kernels[device].correlations.append(correlation)
            return
        self._keep(OBJECT_BYTES)
        self.trace.calls.append(
            Call(self._issue(name, start, end, args), start, end, correlation=correlation, device=device)
        )

    def _launch(self, name: str, start: float, end: float, thread: Any, args: dict[str, Any]) -> None:
        correlation = args.get("correlation")
        if "aunch" in name and type(correlation) is int and -(1 << 62) < correlation < 1 << 62:
            self._keep(SPAN_BYTES)
            number = self._numbers.setdefault(thread, len(self._numbers))
            if number == len(self.trace.threads):
                self.trace.threads.append(thread)
            self.trace.launches.starts.append(start)
            self.trace.launches.correlations.append(correlation)
            self.trace.launching.append(number)

    def _named(self, name: str, start: float, end: float, thread: Any, args: dict[str, Any]) -> None:
        if name not in self._names:
            self._keep(OBJECT_BYTES + len(name))
            self._names[name] = self._of_name(name)
        take = self._names[name]
        if take is not None:
            self._keep(SPAN_BYTES if take == self._operator else OBJECT_BYTES)
            take(name, start, end, thread, args)

    def _of_name(self, name: str) -> Callable[[str, float, float, Any, dict[str, Any]], None] | None:
        """Return what takes operators and annotations of a name; None: nobody."""
        if name.startswith(_ISSUES):
            known = kind_of(name) != "unknown" or name == RECORD
            return self._issued if known else None
        if name.startswith(_ON_HOST):
            return self._on_host
        if name.startswith("ProfilerStep#"):
            return self._step
        if name.startswith(_REGIONS):
            return self._region
        if name.startswith("enumerate(DataLoader)#"):
            return lambda _, start, end, *__: self.trace.loader.add(start, end)
        if name == "torch::autograd::AccumulateGrad":
            return self._gradient
        if name == "aten::_amp_update_scale_":
            return self._scaler_update
        if name.startswith("autograd::engine::evaluate_function"):
            return lambda _, start, end, thread, __: self.trace.nodes[thread].add(start, end)
        if "::" in name and not name.startswith(_NODES):
            return self._operator
        return None

    def _operator(self, name: str, start: float, end: float, thread: Any, args: dict[str, Any]) -> None:
        self.trace.operators[thread].add(start, end)
        self.trace.kinds[thread].append(hash((name, repr(args.get("Input Dims")))))

    def _issue(self, name: str, start: float, end: float, args: dict[str, Any]) -> Issue:
        issue = _issue(name, start, end, args)
        issue.group = self._once(issue.group, KEY_BYTES + 36 * len(issue.group))
        return issue

    def _issued(self, name: str, start: float, end: float, thread: Any, args: dict[str, Any]) -> None:
        issue = self._issue(name, start, end, args)
        self.trace.issues[thread].append(issue)
        if name.startswith("c10d::") or issue.kind == "wait":
            self.trace.sending[thread].add(start, end)

    def _on_host(self, name: str, start: float, end: float, thread: Any, args: dict[str, Any]) -> None:
        self.trace.backend_threads.add(thread)
        self.trace.calls.append(Call(self._issue(name, start, end, args), start, end, thread=thread))

    def _step(self, name: str, start: float, end: float, thread: Any, args: dict[str, Any]) -> None:
        number = name.partition("#")[2]
        if number.isdecimal() and len(number) < 19:
            self.trace.steps.append((start, end, int(number)))

    def _region(self, name: str, start: float, end: float, thread: Any, args: dict[str, Any]) -> None:
        self.trace.regions[thread].append((start, end, name))
        if name.startswith("Optimizer.step#"):
            self.trace.optimizer_steps.append((start, end))
            self.trace.optimizer = name.partition("#")[2].removesuffix(".step")

    def _scaler_update(self, name: str, start: float, end: float, thread: Any, args: dict[str, Any]) -> None:
        self.trace.scaler_updates.append(start)
        self._operator(name, start, end, thread, args)

    def _gradient(self, name: str, start: float, end: float, thread: Any, args: dict[str, Any]) -> None:
        self.trace.gradients.append((start, elements_of(args.get("Input Dims"))))


@cache
def own_kernels() -> frozenset[str]:
    """Return the names of gravac's kernels on a GPU, from their source: Triton need not be installed here."""
    folder = Path(gravac.__path__[0]) / "kernels" / "cuda"
    return frozenset(
        name
        for file in folder.glob("*.py")
        for name in re.findall(r"@jit\(.*\)\ndef (_\w+)\(", file.read_text())
    )


def kind_of(name: str) -> str:
    """Return the kind of a call by the name of a kernel, an operator or an annotation."""
    plain = name.lower().replace("_", "")
    return next((kind for part, kind in KINDS.items() if part in plain), "unknown")


def elements_of(dims: Any) -> int | None:
    """Return the elements of the largest argument of an operator by its ``Input Dims``; None: unknown."""
    found = [count for each in dims if (count := _count(each))] if isinstance(dims, list) else []
    return max(found, default=None)


def _count(dims: Any) -> int:
    """Return the elements of a tensor, or of a list of tensors; 0: it is neither, or a scalar."""
    if not isinstance(dims, list) or not dims:
        return 0
    if all(type(each) is int for each in dims):
        return min(prod(dims), 1 << 62) if all(0 <= each < 1 << 48 for each in dims) and len(dims) < 64 else 0
    return sum(1 if each == [] else _count(each) for each in dims)


def _issue(name: str, start: float, end: float, args: dict[str, Any]) -> Issue:
    said = args.get("Collective name")
    counts = [
        count for key in ("In msg nelems", "Out msg nelems") if (count := _whole(args.get(key))) is not None
    ]
    dims, types = args.get("Input Dims"), args.get("Input type")
    elements = max(counts, default=None) or elements_of(dims)
    kinds: list[str] = [each for each in types if isinstance(each, str)] if isinstance(types, list) else []
    dtype = next((each for each in map(_plain, (args.get("dtype"), *kinds)) if each in BYTES), "")
    if elements is None and isinstance(dims, list) and [] in dims and kinds and _plain(kinds[0]) in BYTES:
        elements = 1  # a tensor without dimensions
    kind = kind_of(said) if isinstance(said, str) else "unknown"
    return Issue(
        start,
        end,
        kind if kind != "unknown" else kind_of(name),
        elements,
        BYTES.get(dtype),
        _ranks(args.get("Process Group Ranks")),
        _whole(args.get("Group size")) or None,
        dtype in WHOLE,
    )


def _plain(dtype: Any) -> str:
    return dtype.lower().removeprefix("c10::") if isinstance(dtype, str) else ""


def _is_time(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and -LATEST < value < LATEST


def _whole(value: Any) -> int | None:
    """Return a number from 0 on that is whole, as it should be; None for all else."""
    return value if type(value) is int and 0 <= value < 1 << 62 else None


def _ranks(value: Any) -> tuple[int, ...]:
    """Return the ranks of a group, also as text: ``[0, 1]``; empty where they are cut short, as in ``[0, 1, ...]``."""
    if isinstance(value, str):
        if not re.fullmatch(r"\[[\d, ]{1,1000000}\]", value):
            return ()
        value = [int(each[:12]) for each in re.findall(r"\d+", value)]
    if not isinstance(value, list) or not all(_whole(each) is not None for each in value):
        return ()
    return tuple(sorted(set(value)))[:MOST_RANKS]
