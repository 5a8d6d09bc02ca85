"""Records that the controller answers with: reported records plus figures derived from them.

Times are Unix seconds: when the line was written to the journal. Unknown values are null, never 0.
"""

from typing import Generic, Literal, TypeVar

from pydantic import Field

from gravac.findings import Severity
from gravac.protocol import (
    Candidate,
    Choice,
    CompressionFactor,
    Count,
    Decision,
    Event,
    JobSpec,
    Name,
    Override,
    Phase,
    RankRow,
    Ratio,
    Record,
    Seconds,
    Text,
    WindowReport,
)
from gravac.signals import figures
from gravac.signals.efficiency import Efficiency
from gravac.wording import plan_in_words
from gravac_controller.errors import Fault

LiveState = Literal["running", "stale", "ended"]
"""running: reports arrive. stale: no report for more than max(30 s, 5 x the last window). ended: the trainer closed its
agent."""

State = Literal[LiveState, "interrupted"]
"""A job read from a trace may also be interrupted: the trace does not end with the job, and no process writes to it any
more. Its trainer and controller were killed, or the trace is a copy."""

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
    codec: Choice = Field(description="Codec of that plan, which counts unless its CF is 1: dense.")
    plan: Text = Field(description="That plan in plain words.")
    windows: int
    steps: int
    started_time: float = Field(description="When the job was first registered, Unix seconds.")
    last_report_time: float | None = Field(description="When the last window arrived, Unix seconds.")


class UnreadableJob(Record):
    """A folder whose journal cannot be served. The other jobs are."""

    job: str = Field(description="Name of the folder, printable: any name that a folder can have.")
    reason: str


class Totals(Record):
    """Sums over the windows of the job's present start, all ranks. Exact integers without an upper bound."""

    windows: int = 0
    steps: int = 0
    samples: int = 0
    seconds: float = Field(default=0.0, description="Wall time inside windows on rank 0.")
    paused_seconds: float = Field(
        default=0.0,
        description="Waits for data beyond the usual ones, as while the trainer evaluates or saves.",
    )
    dense_bytes: int = Field(default=0, description="Bytes that dense training would have sent.")
    payload_bytes: int = Field(default=0, description="Bytes handed to collectives, indices included.")
    nonfinite_steps: int = 0
    failed_steps: int = 0
    exposed_seconds: float = Field(default=0.0, description="Waits for the network, mean over ranks.")
    inside_bytes: int = Field(default=0, description="Bytes between ranks of a host that divide gradients.")
    inside_seconds: float = Field(default=0.0, description="Waits for those, mean over ranks.")


class WindowView(Record):
    """One window as reported, and figures derived from it (formulas: ``gravac.signals.figures``)."""

    time: float
    report: WindowReport
    codec: Choice = Field(
        description="Codec of the last step, which counts unless its CF (report.cf) is 1: dense."
    )
    plan: Text = Field(description="Plan of the last step in plain words.")
    gain: float | None = Field(description="sent^2 / compensated^2 over the window.")
    gain_minimum: float | None = Field(description="The same at the decision's minimum CF.")
    gain_candidate: float | None = Field(description="The same at the decision's candidate CF.")
    backlog: float | None = Field(description="tau = sum <residual, gradient> / sum gradient^2, in steps.")
    residual_ratio: float | None = Field(description="sqrt(residual^2 / gradient^2).")
    step_seconds: float | None = Field(description="Mean step on rank 0.")
    usual_step_seconds: float | None = Field(
        description="Median of settled steps on rank 0, so without pauses in which the trainer evaluates or saves; the "
        "mean where no step has settled."
    )
    samples_per_second: float | None = Field(description="T_sys, all ranks.")
    efficiency: float | None = Field(
        description="eta: steps that dense training needs / steps that it needs so, as the policy believes it after "
        "the window; without such a policy, by the window alone."
    )
    efficiency_low: float | None = Field(description="The lowest value of it that is credible.")
    efficiency_high: float | None = Field(description="The highest value of it that is credible.")
    useful_samples_per_second: float | None = Field(description="Useful throughput = T_sys x eta.")
    compression_throughput: float | None = Field(description="GraVAC's T_comp = T_sys x gain.")
    wire_cf: float | None = Field(description="dense bytes / payload bytes.")
    global_batch_samples: float | None = Field(description="Samples a step, all ranks.")
    gradient_diversity: float | None = Field(
        description="sum ||g||^2 / ||sum g||^2 over ranks: 1/ranks when all are equal, 1 when orthogonal. Known for "
        "windows with dense steps (warm-up, fallback) of at least 2 ranks."
    )
    batch_bound_samples: float | None = Field(
        description="B_S, samples a step of all ranks beyond which larger batches stop paying. Null where the "
        "gradient diversity is null, and where noise dominates the gradient."
    )

    def with_efficiency(self, found: Efficiency) -> "WindowView":
        """Return the view with the efficiency that the policy believes."""
        rate = self.samples_per_second
        change = {
            "efficiency": found.likely,
            "efficiency_low": found.low,
            "efficiency_high": found.high,
            "useful_samples_per_second": None if rate is None else rate * found.likely,
        }
        return self.model_copy(update=change)

    @classmethod
    def of(cls, time: float, report: WindowReport, spec: JobSpec) -> "WindowView":
        """Return the view of a report, without its single steps, which stay in the trace.

        ``spec``: the job as the incarnation that sent it registered it.
        """
        kind, compressor, world_size = spec.optimizer_kind, spec.compressor, spec.world_size
        efficiency = figures.efficiency(report, kind, compressor, spec.senders)
        codec = figures.codec(report, compressor)
        return cls(
            time=time,
            report=report,
            codec=codec,
            plan=plan_in_words(codec, report.cf),
            gain=figures.gain(report),
            gain_minimum=figures.gain_minimum(report),
            gain_candidate=figures.gain_candidate(report),
            backlog=figures.backlog(report),
            residual_ratio=figures.residual_ratio(report),
            step_seconds=figures.step_seconds(report),
            usual_step_seconds=figures.usual_step_seconds(report),
            samples_per_second=figures.samples_per_second(report),
            efficiency=None if efficiency is None else efficiency.likely,
            efficiency_low=None if efficiency is None else efficiency.low,
            efficiency_high=None if efficiency is None else efficiency.high,
            useful_samples_per_second=figures.useful_samples_per_second(
                report, kind, compressor, spec.senders
            ),
            compression_throughput=figures.compression_throughput(report),
            wire_cf=figures.wire_cf(report),
            global_batch_samples=figures.global_batch_samples(report),
            gradient_diversity=figures.gradient_diversity(report, world_size),
            batch_bound_samples=figures.batch_bound_samples(report, world_size),
        )


class LastKnown(Record):
    """A figure that only some windows have, and the window of its last measurement."""

    value: float
    window: Count


class DecisionView(Record):
    """A decision with its reason. ``changed``: it is the first, or its epoch differs from the one before."""

    time: float
    decision: Decision
    changed: bool
    cf_before: CompressionFactor | None = Field(
        description="Candidate CF of the decision before; null for the first."
    )
    codec_before: Choice | None = Field(
        default=None,
        description="Codec of the decision before; null: the job's compressor, or it is the first.",
    )
    plan: Text = Field(description="Plan of the decision in plain words.")
    plan_before: Text | None = Field(description="The same of the decision before; null for the first.")
    candidate_plans: tuple[Text, ...] = Field(description="The plans of its candidates in plain words.")

    @classmethod
    def of(cls, time: float, decision: Decision, before: Decision | None, compressor: str) -> "DecisionView":
        """Return a decision and how it differs from the one before; None: it is the first.

        ``compressor``: the job's, with which a plan without a codec is sent.
        """
        return cls(
            time=time,
            decision=decision,
            changed=before is None or before.epoch != decision.epoch,
            cf_before=None if before is None else before.cf_candidate,
            codec_before=None if before is None else before.codec,
            plan=_chosen(decision, compressor),
            plan_before=None if before is None else _chosen(before, compressor),
            candidate_plans=candidate_plans(decision, compressor),
        )


def _chosen(decision: Decision, compressor: str) -> str:
    """Return the plan of a decision in plain words."""
    return plan_in_words(decision.codec or compressor, decision.cf_candidate)


def candidate_plans(decision: Decision, compressor: str) -> tuple[str, ...]:
    """Return the plans of a decision's candidates in plain words."""
    return tuple(
        plan_in_words(candidate.codec or compressor, candidate.cf) for candidate in decision.candidates
    )


class EventView(Record):
    """An event other than a window: registration, restart, gap, fallback, fault, end."""

    time: float
    event: Event


class RiskView(Record):
    """How much compression puts learning at risk (``gravac.signals.risk``): an estimate, not a measured accuracy."""

    level: Severity
    because: tuple[Text, ...] = Field(
        description="The reasons as sentences with figures, the most serious first."
    )
    rule: Text = Field(description="How the level is determined, and the source of its limits.")


class PlanView(Candidate):
    """What the policy knows about one plan, and what that means."""

    words: Text = Field(description="The plan in a few plain words.")
    wire_cf: float | None = Field(
        description="dense bytes / payload bytes, expected when the job started; null: it states none."
    )
    why: Text = Field(description="Why it is the one in force, or why it is not.")
    notable: bool = Field(
        description="Whether it is in force, was measured, or is one of the next three by prediction."
    )


class JobView(JobSummary):
    """One job: its state, decision in force and totals. History is in the lists.

    Totals and predictions are of the present start of the trainer, and so are baselines as soon as it has measured
    some; before, they are those of the start before, if that had the same ranks, model and network.
    """

    spec: JobSpec = Field(description="As last registered.")
    decision: Decision = Field(description="In force, with its reason.")
    plans: tuple[PlanView, ...] = Field(
        description="The notable plans at the decision in force; the others are in /candidates."
    )
    latest: WindowView | None
    risk: RiskView | None = Field(description="Of the last window; null before the first.")
    totals: Totals
    baseline_step_seconds: Seconds | None = Field(
        description="A dense step as measured on today's network, in seconds; null where it was not. Of policies that "
        "do not follow the network: median of the warm-up."
    )
    predicted_dense_step_seconds: Seconds | None = Field(
        description="A dense step as predicted on today's network, in seconds; null where it was measured, and while "
        "unknown. Of policies that do not follow the network: by the last windows that compressed and the network as "
        "measured at the start, an upper estimate."
    )
    gradient_diversity: LastKnown | None = Field(
        description="Last measured in a window with at least half of its steps dense (warm-up, fallback); later "
        "windows often have none."
    )
    batch_bound_samples: LastKnown | None = Field(
        description="B_S as last measured in such a window, in samples a step of all ranks. Compare it with "
        "latest.global_batch_samples: far below B_S more workers pay, near it cheaper steps do."
    )
    events: tuple[EventView, ...] = Field(description="The last 100, oldest first.")
    event_counts: dict[str, int] = Field(description="Number of events by kind, over the whole job.")
    missing_windows: int = Field(description="Windows that never arrived.")
    stale_seconds: Seconds = Field(description="Seconds without a report after which the job is stale.")
    control_enabled: bool = Field(
        description="Whether operators may steer over HTTP, with the control token."
    )
    override: Override | None = Field(
        description="The operator's order in force; null while the policy decides."
    )
    override_waiting: Override | None = Field(
        description="The order that the decision on the next window will apply; null when there is none."
    )


class OverrideView(Record):
    """Who decides. The ETag is the epoch, with ``+1`` (``+2``, …) while that many orders wait for the next window."""

    job: Name
    epoch: Count = Field(description="Epoch of the decision in force: the ETag for If-Match.")
    control_enabled: bool
    in_force: Override | None = Field(description="The order in force; null while the policy decides.")
    waiting: Override | None = Field(
        description="The order that the decision on the next window will apply. ``resume`` ends the one in force."
    )


class CandidatesView(Record):
    """What the policy knows about each plan it may choose, at the decision in force: the notable ones first."""

    job: Name
    window: int = Field(description="Window that the decision followed; -1 for the first.")
    epoch: Count
    epsilon: Ratio = Field(description="Smallest gain that a CF must reach.")
    candidates: tuple[PlanView, ...] = Field(description="codec null: the job's compressor.")


class RankView(Record):
    """One rank in the last window. ``relative_speed``: by its own work (all phases but communicate); fastest = 1."""

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
    """One window, or several merged (first to last, inclusive). ``percent``: by row, null where unknown."""

    first_window: Count
    last_window: Count
    percent: tuple[int | None, ...] = Field(
        description="Own time of the row's ranks in percent of the median rank's in that window: the slowest of the "
        "merged ranks and windows."
    )


class RankHeatView(Record):
    """Own time by rank and window, over the whole job. Row i holds the ranks from i x ``ranks_per_row`` on."""

    job: Name
    ranks_per_row: int
    columns: tuple[HeatColumn, ...] = Field(description="Oldest first, at most 240, of at most 128 rows.")


class Snapshot(Record):
    """Message ``snapshot`` of an event stream: everything a page needs to draw.

    It comes first, and again when the reader has missed something: replace everything.
    """

    job: JobView
    windows: tuple[WindowView, ...] = Field(description="The last 600, oldest first.")
    decisions: tuple[DecisionView, ...] = Field(description="The last 200, oldest first.")


class WindowDelta(Record):
    """Message ``window`` of the stream: a new window and the decision on it.

    In jobs of more than ``history_rank_rows`` ranks, their rows are in ``job.latest`` alone, as in the snapshot.
    """

    window: WindowView
    decision: DecisionView
    job: JobView


class EventDelta(Record):
    """Message ``event`` of the stream: an event other than a window."""

    event: EventView
    job: JobView


class EndView(Record):
    """Message ``end`` of the stream: the trainer closed its agent. The stream stays open: a job may resume."""

    time: float
    message: Text
    job: JobView


class JobDelta(Record):
    """Message ``job`` of the stream: only the job's state changed, for instance to stale. It has no id."""

    job: JobView


class Page(Record, Generic[T]):
    """One page of a list, oldest first. ``next``: cursor for ``?after=``; null on the last page."""

    items: tuple[T, ...]
    next: str | None


class JobList(Page[JobSummary]):
    """The jobs by name, and the journals that cannot be read."""

    unreadable: tuple[UnreadableJob, ...] = ()


class Health(Record):
    """Answer of /healthz and /readyz. ``instance`` changes at every start of the controller."""

    status: Literal["ok"]
    instance: Name


class ProofView(Record):
    """Answer of /v1/proof: a proof for each token that the controller knows; none where it has no token."""

    proofs: tuple[str, ...]


class Problem(Record):
    """Every error answer (RFC 9457), sent as application/problem+json."""

    type: str
    title: str
    status: int
    detail: str = Field(description="What is wrong and how to fix it, for people.")
    reason: str = Field(default="", description="One word for programs: `unreadable`, `job_is_live`.")
    errors: tuple[Fault, ...] = ()


PHASES = ("data_wait", "compute", "compress", "communicate", "decompress")
"""Parts of a step, as they are shown."""
