"""The verdict on a job: whether its steps wait for the network, why, and what to do next, in a line each."""

from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Any

from gravac.findings import Finding, StepParts, diagnose
from gravac.predict.exchange import BUCKET_BYTES
from gravac.wording import (
    format_bytes,
    format_fewer,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
)
from gravac_observe import MOST_STEPS
from gravac_observe.findings.forecast import CannotSay, Forecast, Question, forecast
from gravac_observe.measure import patterns
from gravac_observe.measure.measurement import INSIDE, Gradients, Measurement, Row

UNSURE = 0.03
"""What a small exposed share on CPUs may be off by (lab/benchmarks/observe.md). [share of a step; measured]"""
MANY, SMALL_BYTES = 20, 1 << 20
"""All-reduces of a step, and bytes of the usual one, that say that nothing is bucketed. [1, bytes; chosen]"""
APART_SECONDS = 600.0
"""Time between traces that is more than clocks differ. [s; chosen]"""
SCATTERED = 0.25
"""Two standard errors of a step that are worth a word. [share of a step; chosen]"""
MENTIONED = 0.02
"""Share of the exposed time that is worth a word. [share; chosen]"""
OTHERWISE = {
    patterns.REPLICAS: "exchange gradients between replicas less often, or shard over more ranks",
    patterns.WEIGHTS: "weights are not compressed: prefetch them, keep them after forward, or shard within a node "
    "(HSDP)",
    patterns.ACTIVATIONS: "activations are not compressed: keep tensor parallelism within a node",
    patterns.PIPELINE: "activations are not compressed: use more micro-batches, or an interleaved schedule",
    patterns.EXPERTS: "all-to-all is not compressed: keep its ranks within a node, or let it overlap",
    patterns.BUFFERS: "give DistributedDataParallel broadcast_buffers=False, or fewer buffers",
    patterns.OPTIMIZER: "what the optimizer exchanges in its step is not compressed: shard it within a node",
    patterns.SCALARS: "exchange losses and metrics less often: each of them waits for all ranks",
    patterns.BARRIER: "remove barriers: each of them waits for all ranks",
    patterns.OTHER: "find out what the calls below are for",
}
"""What helps where other things than gradients are exposed."""
BUCKETS = (
    f"wrap the model in DistributedDataParallel, which sends buckets of {BUCKET_BYTES >> 20} MB during backward (or "
    "raise its bucket_cap_mb), and record again"
)
"""What to do about many small messages."""
ELSEWHERE = "--ranks 8 --link 25gbit says what data parallelism would cost"
UNCOMPRESSED = (
    "; what the ranks of a machine send each other is not compressed, and not sent with levels='flat'"
)
HALVED = ": halve them by mixed precision (param_dtype=torch.bfloat16), "
BESIDES = 0.2
"""Share of the exposed time from which other things than gradients are worth advice, too. [share; chosen]"""
BY_AGENT = "by gravac.Agent(model, optimizer)"
DRIVERS = {
    "ddp": BY_AGENT,
    "fsdp2": BY_AGENT,
    "fsdp1": f"{BY_AGENT}, once FullyShardedDataParallel is fully_shard (FSDP2)",
    "deepspeed": f"{BY_AGENT}, once the training has left DeepSpeed for DistributedDataParallel or fully_shard (FSDP2)",
    "": f"{BY_AGENT}, once the model is in DistributedDataParallel, or sharded by fully_shard (FSDP2)",
}
"""How compression comes into a job, by what exchanges its gradients."""
AS_RECORDED = Question()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileVerdict:
    """The verdict on a job.

    Attributes:
        finding: Whether it is the network, what that follows from, and what to do.
        share: Share of a step that is exposed communication, where it ran or is predicted; None: it cannot be said.
        measurement: What the traces show.
        forecast: What steps would take; None: it cannot be said.
        assumed: What it takes for granted, in a sentence each.
        unknown: What the traces do not show, in a sentence each.
    """

    finding: Finding
    share: float | None
    measurement: Measurement
    forecast: Forecast | None
    assumed: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def others(self) -> str:
        """What another optimizer would bring, where the network is the cause; empty: nothing, or not known."""
        network = self.finding.kind.startswith("network")
        return self.forecast.advice.others if network and self.forecast is not None else ""

    @property
    def notes(self) -> list[str]:
        """What it takes for granted, then what the traces do not show."""
        return [f"assumed: {each}" for each in self.assumed] + [f"not known: {each}" for each in self.unknown]

    def record(self) -> dict[str, Any]:
        """Return it and all that it follows from, for programs."""
        return {
            **self.finding.record(),
            "other_optimizers": self.others or None,
            **self.measurement.record(),
            "forecast": None if self.forecast is None else self.forecast.record(),
            "assumed": list(self.assumed),
            "unknown": list(self.unknown),
        }


def judge(measured: Measurement, question: Question = AS_RECORDED) -> ProfileVerdict:
    """Judge a job by its traces, where it ran or elsewhere."""
    predicted, unknown = None, list(measured.unknown)
    assumed = () if measured.gpu else (ON_A_CPU,)
    try:
        predicted = forecast(measured, question)
    except CannotSay as error:
        unknown.append(f"what other plans would take: {error}")
    moments = [lane.trace.base + lane.edges[0] for lane in measured.lanes]
    apart = (max(moments) - min(moments)) * 1e-6
    if apart > APART_SECONDS:
        one = "whether all traces are of one run: by their clocks they were recorded"
        unknown.append(f"{one} {format_seconds(round(apart))} apart")
    if (scatter := _scatter(measured)) > SCATTERED:
        usual = f"what a usual step takes: the recorded ones scatter by ±{format_percent(scatter)}"
        unknown.append(f"{usual}; {_more(measured, SCATTERED)}")
    unsaid = question.elsewhere and predicted is None
    elsewhere = predicted if question.elsewhere and not _exchange_nothing(measured) else None
    parts = _here(measured) if elsewhere is None else _elsewhere(measured, elsewhere)
    finding = diagnose(
        parts, lambda: BUCKETS if parts.small else _compress(measured, predicted), lambda: _hurry(measured)
    )
    if not (measured.rows or question.elsewhere):
        finding = replace(finding, action=f"{finding.action}; {ELSEWHERE}")
    return ProfileVerdict(
        finding=finding,
        share=None if parts.exposed is None or unsaid else parts.exposed / parts.step,
        measurement=measured,
        forecast=predicted,
        assumed=assumed + (() if predicted is None else predicted.assumed),
        unknown=tuple(unknown),
    )


ON_A_CPU = (
    "on a CPU, communication is exposed while no thread runs an operator, while a thread issues it, and as far as it "
    "slows operators down; interrupts and cold caches count as computation, so shares of FSDP were 5 points too low"
)


def _exchange_nothing(measured: Measurement) -> bool:
    """Return whether several ranks exchange nothing that is learned."""
    return (measured.world or 1) > 1 and all(
        row.pattern in (patterns.SCALARS, patterns.BARRIER, patterns.BUFFERS) for row in measured.rows
    )


def _losses(measured: Measurement) -> dict[str, float]:
    """Return the seconds of a step that are no communication."""
    idle = max(0.0, measured.step - measured.computing - measured.exposed - measured.loader)
    name = "idle GPU" if measured.gpu else "other work of the host"
    return {"computation": measured.computing, "data loader": measured.loader, name: idle}


def _elsewhere(measured: Measurement, predicted: Forecast) -> StepParts:
    """Return the parts of a step on another network, or of other ranks, which wait for no late one."""
    return StepParts(
        step=predicted.dense,
        exposed=min(predicted.exposed, predicted.dense),
        waiting=0.0,
        losses=_losses(measured),
        evidence=(f"in the traces a step takes {format_seconds(measured.step)}",),
        place=f"with {predicted.ranks} ranks on links of {format_rate(predicted.bits_per_second)}",
        error=predicted.error,
    )


def _here(measured: Measurement) -> StepParts:
    """Return the parts of a step as it ran."""
    large = [row for row in measured.rows if row.exposed >= MENTIONED * measured.exposed]
    found = measured.gradients
    small = ""
    if found is not None and _is_unbucketed(measured, found):
        usual = "" if found.usual is None else f" of usually {format_bytes(found.usual)}"
        small = f"{found.calls:.3g} all-reduces of gradients a step{usual}: nothing is bucketed"
    return StepParts(
        step=measured.step,
        exposed=measured.exposed if measured.rows or measured.world == 1 else None,
        waiting=measured.waiting,
        losses=_losses(measured),
        levels=measured.levels,
        alone=not measured.rows and measured.world == 1,
        apart=(measured.world or 0) if _exchange_nothing(measured) else 0,
        small=small,
        evidence=tuple(_row(row) for row in large[:3]),
        unsure=0.0 if measured.gpu else UNSURE,
    )


def _is_unbucketed(measured: Measurement, found: Gradients) -> bool:
    """Return whether a step has many small all-reduces, or, where sizes are unknown, about one for each parameter."""
    if found.sharded or found.calls < MANY:
        return False
    if found.usual is not None:
        return found.usual < SMALL_BYTES
    return found.calls > measured.tensors / 2 > 0


def _compress(measured: Measurement, predicted: Forecast | None) -> str:
    """Return what to do about exposed communication."""
    most = measured.rows[0].pattern if measured.rows else patterns.GRADIENTS
    if measured.wrapper == "agent":
        inside = measured.levels.get(INSIDE, 0.0) > measured.exposed / 2
        return (
            "gravac.Agent decides already how far to compress: gravac explain says why"
            + UNCOMPRESSED * inside
        )
    if predicted is None or predicted.chosen.cf == 1.0:
        if most in OTHERWISE:
            return _otherwise(measured, most)
        if predicted is None:
            return "compress gradients; what is missing to say with which plan stands below"
        found = predicted.advice.finding
        return "; ".join(filter(None, (f"do not compress: {found.evidence[0]}", found.why, found.action)))
    chosen = predicted.chosen
    others = [
        row for row in measured.rows if row.pattern in OTHERWISE and row.exposed >= BESIDES * measured.exposed
    ]
    besides = f"; besides, {_otherwise(measured, others[0].pattern)}" if others else ""
    optimizer = f" under {measured.optimizer}" if measured.optimizer else ""
    way = f", collective={predicted.collective!r}" if predicted.collective else ""
    gained = predicted.dense / chosen.step.seconds - 1
    if (scatter := _scatter(measured)) > gained:
        share, more = format_percent(scatter), _more(measured, gained)
        besides += f"; but steps scatter by ±{share}, more than that gains: first {more}"
    return (
        f"send {format_fewer(chosen.wire_cf)} with {chosen.named}{way}: steps of about "
        f"{format_seconds(chosen.step.seconds)} ({format_number(predicted.dense / chosen.step.seconds)}x, "
        f"±{format_percent(predicted.error)}), expected to keep {format_percent(chosen.efficiency)} of the progress"
        f"{optimizer}, {DRIVERS[measured.wrapper if measured.wrapper in DRIVERS else '']}{besides}"
    )


def _otherwise(measured: Measurement, pattern: str) -> str:
    """Return what helps where something else than gradients is exposed."""
    calls = (timed.call for lane in measured.lanes for timed in lane.inside)
    if pattern == patterns.WEIGHTS and any(
        call.pattern == patterns.WEIGHTS and call.about.itemsize == 4 for call in calls
    ):
        return OTHERWISE[pattern].replace(": ", HALVED, 1)
    return OTHERWISE[pattern]


def _scatter(measured: Measurement) -> float:
    """Return two standard errors of a step, relative."""
    return 2 * measured.spread / sqrt(measured.steps)


def _more(measured: Measurement, most: float) -> str:
    """Return how to get steps that scatter by ``most`` at most: more of them, which helps by their square root."""
    steps = MOST_STEPS + 1 if most <= 0 else 10 * ceil(measured.steps * (_scatter(measured) / most) ** 2 / 10)
    return "use a quieter machine" if steps > MOST_STEPS else f"record more (gravac observe --steps {steps})"


def _hurry(measured: Measurement) -> str:
    """Return what to do about late ranks."""
    longest = max(measured.rows, key=lambda row: row.waiting or 0.0)
    if longest.pattern == patterns.PIPELINE or not measured.late:
        return "balance the stages of the pipeline, and use more micro-batches: they wait for each other"
    late = max(measured.late, key=lambda rank: measured.late[rank])
    return f"find what delays rank {late}: it comes {format_seconds(measured.late[late])} a step later than the first"


def _row(row: Row) -> str:
    """Describe communication of one purpose."""
    kind = f"{row.kind} {row.level}" if row.level else row.kind
    about = [kind, f"{row.size} ranks"] if row.size else [kind]
    about.append("of unknown size" if row.nbytes is None else format_bytes(row.nbytes))
    if row.bandwidth is not None:
        about.append(f"{format_bytes(row.bandwidth)}/s achieved")
    text = f"{patterns.WORDS[row.pattern]} ({', '.join(about)}): {format_seconds(row.exposed)}"
    if row.waiting is not None and row.waiting >= MENTIONED * row.exposed:
        text += f", {format_seconds(row.waiting)} of it for late ranks"
    if row.hidden >= MENTIONED * row.seconds:
        text += f", and {format_seconds(row.hidden)} hidden"
    return text
