"""What the controller answers: read models made of the wire records plus what follows from them.

Times are Unix seconds (when the line was written to the journal). Unknown is ``null``, never 0.
"""

from typing import Generic, Literal, TypeVar

from pydantic import Field

from gravac.protocol import (
    Candidate,
    Choice,
    CompressionFactor,
    Count,
    Decision,
    Event,
    JobSpec,
    Name,
    Phase,
    RankRow,
    Ratio,
    Record,
    Seconds,
    Text,
    WindowReport,
)
from gravac.protocol.orders import Override
from gravac.signals.risk import Level

LiveState = Literal["running", "stale", "ended"]
"""running: reports come in. stale: none for more than max(30 s, 5 x the last window).
ended: the trainer closed its agent."""

State = Literal[LiveState, "interrupted"]
"""Of a job read from a trace there is one more. interrupted: the trace does not say that the job ended, and no process
writes it any more: the trainer and its controller were killed, or the trace is a copy."""

T = TypeVar("T")


class JobSummary(Record):
    """One line of the job list. Counts run over the whole job."""

    job: Name
    state: State
    policy: Name
    compressor: Choice
    world_size: Count = Field(description="Ranks.")
    epoch: Count = Field(description="Number of the decision in force.")
    phase: Phase = Field(description="Phase the ranks last reported; the decision's before the first window.")
    cf: CompressionFactor = Field(
        description="CF the ranks last sent; the decision's before the first window."
    )
    windows: int
    steps: int
    started_time: float = Field(description="When the job was first registered, Unix seconds.")
    last_report_time: float | None = Field(description="When the last window arrived, Unix seconds.")


class UnreadableJob(Record):
    """A folder whose journal cannot be served. It is listed; the other jobs are served."""

    job: str = Field(description="Name of its folder as plain text: any name that a folder can have.")
    reason: str


class Totals(Record):
    """Sums over all windows of a job, all ranks. Exact integers without an upper bound."""

    windows: int = 0
    steps: int = 0
    samples: int = 0
    seconds: float = Field(default=0.0, description="Wall time inside windows on rank 0.")
    dense_bytes: int = Field(default=0, description="What dense would have handed to collectives.")
    payload_bytes: int = Field(default=0, description="What was handed over, indices included.")
    nonfinite_steps: int = 0
    failed_steps: int = 0


class WindowView(Record):
    """One window as reported, and what follows from it (formulas: ``gravac.signals.derived``)."""

    time: float
    report: WindowReport
    gain: float | None = Field(description="sent^2 / compensated^2 over the window.")
    gain_minimum: float | None = Field(description="The same at the decision's minimum CF.")
    gain_candidate: float | None = Field(description="The same at the decision's candidate CF.")
    backlog: float | None = Field(description="tau = sum <residual, gradient> / sum gradient^2, in steps.")
    residual_ratio: float | None = Field(description="sqrt(residual^2 / gradient^2).")
    step_seconds: float | None = Field(description="Mean step on rank 0.")
    samples_per_second: float | None = Field(description="T_sys, all ranks.")
    useful_samples_per_second: float | None = Field(description="T_comp = T_sys x gain.")
    wire_cf: float | None = Field(description="dense bytes / payload bytes.")
    global_batch_samples: float | None = Field(description="Samples a step, all ranks.")
    gradient_diversity: float | None = Field(
        description="sum ||g||^2 / ||sum g||^2 over ranks: 1/ranks when all agree, 1 when orthogonal. Known of "
        "windows with plainly dense steps (warm-up, fallback), from 2 ranks on."
    )
    batch_bound_samples: float | None = Field(
        description="B_S, samples a step of all ranks beyond which larger batches stop paying. Null where the "
        "gradient diversity is, and where noise drowns the gradient."
    )


class LastKnown(Record):
    """A figure that only some windows show, and the window it was last measured in."""

    value: float
    window: Count


class DecisionView(Record):
    """A decision with its reason. ``changed``: its epoch differs from the one before, or it is the first."""

    time: float
    decision: Decision
    changed: bool
    cf_before: CompressionFactor | None = Field(
        description="Candidate CF of the decision before; null for the first."
    )


class EventView(Record):
    """Something that happened besides windows: registration, restart, gap, fallback, fault, end."""

    time: float
    event: Event


class RiskView(Record):
    """How much compression puts learning at risk (``gravac.signals.risk``). Of the gradient, not of accuracy."""

    level: Level
    because: tuple[Text, ...] = Field(description="Sentences with their figures, the gravest first.")
    rule: Text = Field(description="How the level is found, and from where its limits are.")


class JobView(JobSummary):
    """All about one job but its history."""

    spec: JobSpec = Field(description="As last registered.")
    decision: Decision = Field(description="In force, with its reason.")
    latest: WindowView | None
    risk: RiskView | None = Field(description="Of the last window; null before the first.")
    totals: Totals
    baseline_step_seconds: Seconds | None = Field(
        description="Median dense step of the warm-up, in seconds; null while unknown."
    )
    gradient_diversity: LastKnown | None = Field(
        description="As last measured in a window of which at least half the steps were plainly dense (warm-up, "
        "fallback); later windows often have none."
    )
    batch_bound_samples: LastKnown | None = Field(
        description="B_S as last measured in such a window, in samples a step of all ranks. To be compared with "
        "latest.global_batch_samples: far below B_S adding workers pays, near it cheaper steps do."
    )
    events: tuple[EventView, ...] = Field(description="The last 100, oldest first.")
    event_counts: dict[str, int] = Field(description="How many of each kind the job has had, over all of it.")
    missing_windows: int = Field(description="Windows that never arrived.")
    stale_seconds: Seconds = Field(description="Seconds without a report after which the job is stale.")
    control_enabled: bool = Field(
        description="Whether operators may steer over HTTP, with the control token."
    )
    override: Override | None = Field(
        description="The operator's order in force; null while the policy decides."
    )
    override_waiting: Override | None = Field(
        description="An order that the decision on the next window will obey; null when there is none."
    )


class OverrideView(Record):
    """Who decides. Its ETag is the epoch, with ``+1`` (``+2``, …) while that many orders wait for the next window."""

    job: Name
    epoch: Count = Field(description="Of the decision in force: what If-Match must name.")
    control_enabled: bool
    in_force: Override | None = Field(description="The order obeyed; null while the policy decides.")
    waiting: Override | None = Field(
        description="The order that the decision on the next window will obey. One to resume ends the one in force."
    )


class CandidatesView(Record):
    """What the policy knows of each CF on its ladder, as of the decision in force."""

    job: Name
    window: int = Field(description="Window the decision followed; -1 for the first.")
    epoch: Count
    epsilon: Ratio = Field(description="Smallest gain a CF must keep.")
    candidates: tuple[Candidate, ...]


class RankView(Record):
    """One rank in the last window. ``relative_speed``: by its own work (all but communicate); fastest = 1."""

    row: RankRow
    step_seconds: float | None = Field(description="Mean step of this rank.")
    relative_speed: float | None


class RanksView(Record):
    """All ranks in the last window; empty before the first."""

    job: Name
    window: Count | None
    time: float | None
    ranks: tuple[RankView, ...]


class HeatColumn(Record):
    """One window, or several put together (first to last, inclusive). ``percent``: by row, null where not known."""

    first_window: Count
    last_window: Count
    percent: tuple[int | None, ...] = Field(
        description="Own time of the row's ranks, as per cent of the median rank's in that window; the slowest rank "
        "and window of those put together."
    )


class RankHeatView(Record):
    """Which rank was slow when, over the whole job. Row i stands for ranks i x ``ranks_per_row`` and following."""

    job: Name
    ranks_per_row: int
    columns: tuple[HeatColumn, ...] = Field(description="Oldest first, at most 240, of at most 128 rows.")


class Page(Record, Generic[T]):
    """One page of a list, oldest first. ``next``: cursor for ``?after=``; null when there is no more now."""

    items: tuple[T, ...]
    next: str | None


class JobList(Page[JobSummary]):
    """The jobs, ordered by name, and the journals that cannot be read."""

    unreadable: tuple[UnreadableJob, ...] = ()


class Health(Record):
    """Answer of /healthz and /readyz. ``instance`` changes with every start of the controller."""

    status: Literal["ok"]
    instance: Name


class ProofView(Record):
    """Answer of /v1/proof: one proof for each token that the controller knows; none where it has no token."""

    proofs: tuple[str, ...]


class Fault(Record):
    """One thing wrong with a request. ``field``: dotted path into the body, or the name of a parameter."""

    field: str
    message: str


class Problem(Record):
    """Every error answer (RFC 9457), sent as application/problem+json."""

    type: str
    title: str
    status: int
    detail: str = Field(description="What is wrong and what to do about it, for people.")
    reason: str = Field(
        default="", description="What is wrong in one word, for programs: `unreadable`, `job_is_live`."
    )
    errors: tuple[Fault, ...] = ()
