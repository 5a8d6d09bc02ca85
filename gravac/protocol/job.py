"""Jobs: what a job is, and what happens to it besides its windows."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field

from gravac.protocol.decision import Decision
from gravac.protocol.fields import (
    Bytes,
    Choice,
    CompressionFactor,
    Count,
    LearningRate,
    Name,
    Ratio,
    Record,
    Seconds,
    Settings,
    Text,
    WindowSteps,
)


class PolicySpec(Record):
    """A policy by name with every setting resolved, so that a trace replays without defaults."""

    name: Name  # of a policy: gravac, static, dense, warmup
    settings: Settings = Field({})  # by name, as `docs/settings.md` lists them


class LinkSpec(Record):
    """An emulated link (pacing in the collective layer). Absent when the network is the real one."""

    bits_per_second: Annotated[float, Field(gt=0, le=1e15)]  # of each rank's outgoing link
    latency_seconds: Seconds = 0.0  # of each collective


class Environment(Record):
    """Where the job runs. For people; no decision depends on it."""

    python: Text  # version
    torch: Text  # version
    gravac: Text  # version
    platform: Text  # operating system
    backend: Text  # of the process group: gloo, nccl
    device: Text  # of the model's parameters
    revision: Text | None = None  # of the git checkout that the trainer's script is in


class ModelShape(Record):
    """Summary of the wrapped module. ``elements``: trainable elements = gradient elements a step."""

    name: Text  # class of the wrapped module
    tensors: Count  # how many of them are trained
    elements: Count  # trained = gradient elements a step
    digest: Text | None = None  # of names and shapes of all parameters; null: unknown


OptimizerKind = Literal["sgd", "adam", "adam-aged", "adam-low-beta", "matrix", "sign", "other"]


TORCH_ADAM = frozenset({"Adam", "AdamW"})
"""Names of the classes that ``gravac.optim`` has others for."""
OWN_OPTIMIZERS = "gravac.optim."
"""What is put before the names of classes of ``gravac.optim``, since torch's have the same."""
_KINDS: dict[OptimizerKind, tuple[str, ...]] = {
    # The order counts: the name of a rarer kind may hold that of another, as SignSGD and MuonWithAuxAdam do.
    "adam-aged": (OWN_OPTIMIZERS,),
    "matrix": ("muon", "soap", "shampoo", "dion"),
    "sign": ("sign", "lion"),
    "adam": ("adam", "adagrad", "adadelta", "rmsprop", "lamb", "adabelief", "yogi"),
    "sgd": ("sgd", "lars"),
}
"""Parts of class names, in lower case, by the kind of step."""
_CAREFUL: tuple[OptimizerKind, ...] = ("sgd", "adam-aged", "adam-low-beta", "adam", "matrix", "sign", "other")
"""Kinds by how much the same plan costs them, by the efficiencies of codecs; last those of which nobody knows it."""
LOW_BETA = 0.6
"""Largest β₁ of torch's Adam and AdamW, and of those of ``gravac.optim``, that counts as small. Simulated: 0.5 and 0.9.
[1; chosen]"""
MATTERS = 0.1
"""Share of a gradient from which an optimizer's kind counts for the plan of all. [share; chosen]"""


def optimizer_kind(names: Sequence[str], beta: float | None = None) -> OptimizerKind:
    """Return how an optimizer steps.

    Args:
        names: Names of its class, then of those that it derives from.
        beta: Its largest β₁; None: unknown.
    """
    kind: OptimizerKind = next(
        (
            kind
            for name in names
            for kind, parts in _KINDS.items()
            if any(part in name.lower() for part in parts)
        ),
        "other",
    )
    small = beta is not None and beta <= LOW_BETA
    return "adam-low-beta" if small and (kind == "adam-aged" or names[0] in TORCH_ADAM) else kind


def decisive(optimizers: Sequence[tuple[OptimizerKind, int]]) -> int:
    """Return the place of the optimizer that plans are chosen for: of those that matter the one that bears least.

    One plan is sent of the whole gradient. So it has to suit every optimizer that steps a tenth of it or more.

    Args:
        optimizers: Kind and number of parameters of each.
    """
    least = MATTERS * sum(size for _, size in optimizers)
    mattering = [place for place, (_, size) in enumerate(optimizers) if size >= least]
    return max(mattering, key=lambda place: _CAREFUL.index(optimizers[place][0]))


class OptimizerSpec(Record):
    """The optimizer as the job began. What compression costs depends on its kind."""

    name: Text  # class, such as AdamW
    kind: OptimizerKind  # adam: divides by √v; low-beta: with β₁ up to 0.6; aged: gravac.optim's; matrix: as Muon
    learning_rate: LearningRate | None  # of its first parameter group; null: unknown
    momentum: Annotated[float, Field(ge=0, le=1)] | None  # of SGD, or β₁; null: unknown
    weight_decay: Annotated[float, Field(ge=0, le=1e15)] | None  # of its first parameter group; null: unknown


Times = Annotated[float, Field(ge=0, le=10)]


class Kept(Record):
    """What a plan is expected to keep of the progress of a dense step: its statistical efficiency in simulations."""

    likely: Ratio  # best estimate
    low: Ratio  # in the task that bears it worst
    high: Ratio  # in the task that bears it best
    noise_times: Times = 0.0  # most that its loss grows with less noise in the gradient; 0: it does not
    late: bool = False  # it sends late what the optimizer bears late, so windows show little of it
    unseen: bool = False  # its errors average out over more ranks than there are, which windows do not show


class PlanCost(Record):
    """What a plan of the job's policy costs on one rank in a step, for this model, these ranks and collectives."""

    codec: Choice | None  # of the plan; null: the job's compressor
    cf: CompressionFactor  # of the plan; 1: dense
    payload_bytes: Bytes  # handed to collectives
    link_bytes: Annotated[float, Field(ge=0, le=1e18)]  # put on a link, by all ranks that share it
    messages: Annotated[float, Field(ge=0, le=1e15)]  # sent one after the other
    decoded: Count | None = None  # payloads that the rank decodes; null: unknown
    seconds: Seconds | None = None  # of the exchange on the measured network; null: not measured
    coding_seconds: Seconds | None = None  # of encoding and decoding, measured at the start; null: unknown
    host_seconds: Seconds | None = None  # of a host that queues this for a device meanwhile; null: unknown
    kept: Kept | None = None  # null: not simulated


class NetworkSpec(Record):
    """The network between ranks, as measured at the start while all of them sent. Plans are costed on it."""

    latency_seconds: Seconds  # of a message
    bytes_per_second: Annotated[float, Field(gt=0, le=1e15)]  # of a link
    ranks_per_link: Annotated[int, Field(ge=1, le=1_000_000)] = 1  # ranks of a host that share it


class HostLinks(Record):
    """The links of a job whose ranks of each host divide gradients: inside a host and between hosts.

    As measured on a rank at the start, while all ranks sent.
    """

    hosts: Annotated[int, Field(ge=2, le=1_000_000)]  # or groups of ranks
    ranks: Annotated[int, Field(ge=2, le=1_000_000)]  # of each
    inside_latency_seconds: Seconds  # of a message
    inside_bytes_per_second: Annotated[float, Field(gt=0, le=1e15)]  # of a rank
    between_latency_seconds: Seconds  # of a message
    between_bytes_per_second: Annotated[float, Field(gt=0, le=1e15)]  # of a rank


class CodecSize(Record):
    """A CF of a codec that reaches few of them, such as ``int8``."""

    codec: Choice | None  # null: the job's compressor
    cf: CompressionFactor  # dense bytes / payload bytes, without Huffman coding
    up_to: CompressionFactor  # the largest CF asked for that gives it


ANOTHER = "is another training: {}"
UNREADABLE = "has a journal that cannot be read, and that stays as it is: {}"
"""Why a run of a job gets a name of its own."""


class JobSpec(Record):
    """What a job is. First line of its journal; body of ``POST /v1/jobs``.

    ``incarnation`` changes each time the trainer starts; ``policy_state`` carries a resumed policy
    (the JSON of an earlier ``WindowAnswer``) or is null for a fresh start. ``settings``: the agent's other settings,
    for people; no decision depends on them.
    """

    job: Name  # name; also of the folder of its journal
    incarnation: Name  # one start of the trainer
    world_size: Annotated[int, Field(ge=1, le=1_000_000)]  # ranks
    window_steps: WindowSteps  # steps between decisions
    policy: PolicySpec  # the rule that decides
    compressor: Choice  # codec or aggregator
    memory: Choice  # error memory
    model: ModelShape  # what is trained
    environment: Environment  # where it runs
    link: LinkSpec | None = None  # emulated network; null: the real one
    first_window: Count = 0  # number of the next window
    policy_state: Annotated[str, Field(max_length=200_000)] | None = None  # of a resumed policy; else null
    settings: Settings | None = None  # the agent's other settings
    optimizer: OptimizerSpec | None = None  # null: unknown
    hosts: HostLinks | None = None  # two levels of links; null: each rank exchanges whole gradients
    network: NetworkSpec | None = None  # between ranks; null: emulated, in `hosts`, or not measured
    plans: Annotated[
        tuple[PlanCost, ...], Field(max_length=64)
    ] = ()  # that the policy may choose, dense among them
    sizes: Annotated[
        tuple[CodecSize, ...], Field(max_length=600)
    ] = ()  # of each codec, ascending; one without any takes every CF

    @property
    def optimizer_kind(self) -> str:
        """Kind of the optimizer; ``unknown`` where the job does not say it, which counts as adam."""
        return "unknown" if self.optimizer is None else self.optimizer.kind

    @property
    def aged(self) -> bool:
        """Whether every optimizer is of ``gravac.optim``, with a usual β₁: it steps by how much of an element came."""
        found = self.optimizer
        return (
            found is not None
            and found.kind == "adam-aged"
            and all(name.startswith(OWN_OPTIMIZERS) for name in found.name.split(", "))
        )

    @property
    def senders(self) -> int:
        """Ranks whose payloads meet: all, or with two levels of links one of each host."""
        return self.world_size if self.hosts is None else self.hosts.hosts

    @property
    def torch_adam(self) -> bool:
        """Whether the optimizer is torch's Adam or AdamW with a usual β₁, next to which others may do better."""
        found = self.optimizer
        return found is not None and found.name in TORCH_ADAM and found.kind == "adam"

    def sizes_of(self, codec: str | None) -> tuple[CodecSize, ...]:
        """Return the CFs that a codec reaches, ascending; empty: any. ``codec`` None: the job's compressor."""
        return tuple(size for size in self.sizes if size.codec == codec)

    def reached(self, codec: str | None, cf: float) -> float:
        """Return the CF that a codec sends where ``cf`` is asked for. ``codec`` as in ``sizes_of``."""
        sizes = self.sizes_of(codec)
        if cf == 1.0 or not sizes:
            return cf
        return next((size.cf for size in sizes if cf <= size.up_to), sizes[-1].cf)

    def wire_cf(self, codec: str | None, cf: float) -> float | None:
        """Return dense bytes / payload bytes of a plan, as registered; None: not. ``codec`` as in ``sizes_of``."""
        payloads = {(cost.codec or self.compressor, cost.cf): cost.payload_bytes for cost in self.plans}
        dense = next((cost.payload_bytes for cost in self.plans if cost.cf == 1.0), None)
        payload = dense if cf == 1.0 else payloads.get((codec or self.compressor, cf))
        return dense / payload if dense and payload else None

    def named(self, name: str, why: str) -> str:
        """Return what a log says of a run that got a name of its own; ``why``: ANOTHER or UNREADABLE, with more."""
        return f"job {self.job!r} {why}. So this run is job {name!r}"


class Event(Record):
    """Something that happened to a job besides its windows. For people and for the list of faults."""

    kind: Literal[
        "registered", "restarted", "gap", "override", "fallback", "recovered", "nonfinite", "failed", "note"
    ]  # what happened
    window: Count | None  # in which it happened; null: in none
    message: Text  # for people


class End(Record):
    """The trainer closed its agent. No window follows under this incarnation."""

    incarnation: Name  # that ended
    windows: Count  # of the whole job
    steps: Count  # of the whole job
    message: Text  # how it ended

    def with_totals(self, windows: int, steps: int) -> Self:
        """Return this record with the counts of the whole job.

        An agent counts from its own start, or from its checkpoint, so it misses windows that an earlier start of the
        trainer reported after that checkpoint.

        Args:
            windows: Windows in the journal.
            steps: Steps in the journal.
        """
        return self.model_copy(
            update={"windows": max(windows, self.windows), "steps": max(steps, self.steps)}
        )


class JobAnswer(Record):
    """Answer to ``POST /v1/jobs``: the decision in force and the first window that the controller lacks.

    ``job``: the name that the run has, for its further requests. It is not the name asked for where that one is of
    another training; ``note`` says why.
    """

    job: Name
    note: Text = ""
    next_window: Count
    decision: Decision
    policy_state: str
