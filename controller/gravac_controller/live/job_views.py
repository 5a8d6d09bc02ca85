"""Views of live jobs, as REST and the event streams answer them."""

from collections.abc import Sequence
from itertools import islice

from gravac.protocol import RankRow
from gravac.signals import figures, risk
from gravac.wording import plan_in_words
from gravac_controller.live.projection import LiveJob
from gravac_controller.settings import SNAPSHOT_DECISIONS, SNAPSHOT_WINDOWS
from gravac_controller.views.models import (
    CandidatesView,
    HeatColumn,
    JobSummary,
    JobView,
    OverrideView,
    RankHeatView,
    RanksView,
    RankView,
    RiskView,
    Snapshot,
)
from gravac_controller.views.plans import plan_views


def summary(job: LiveJob) -> JobSummary:
    """Return the job's line of the job list."""
    spec, decision = job.spec_and_decision()
    report = None if job.latest is None else job.latest.report
    cf = decision.cf_candidate if report is None else report.cf
    codec = decision.codec or spec.compressor if job.latest is None else job.latest.codec
    return JobSummary(
        job=spec.job,
        state=job.state(),
        policy=spec.policy.name,
        compressor=spec.compressor,
        world_size=spec.world_size,
        epoch=decision.epoch,
        phase=decision.phase if report is None else report.phase,
        cf=cf,
        codec=codec,
        plan=plan_in_words(codec, cf),
        windows=job.counts.windows,
        steps=job.counts.steps,
        started_time=job.presence.started_time,
        last_report_time=job.presence.reported_time,
    )


def job_view(job: LiveJob) -> JobView:
    """Return everything about one job except its history."""
    spec, decision = job.spec_and_decision()
    return JobView(
        **dict(summary(job)),
        spec=spec,
        decision=decision,
        plans=tuple(view for view in plan_views(decision, spec) if view.notable),
        latest=job.latest,
        risk=_risk(job),
        totals=job.counts.totals,
        baseline_step_seconds=job.baseline_step_seconds,
        predicted_dense_step_seconds=job.predicted_dense_step_seconds,
        gradient_diversity=job.learning.gradient_diversity,
        batch_bound_samples=job.learning.batch_bound_samples,
        events=tuple(job.recent.events),
        event_counts=dict(job.counts.events_by_kind),
        missing_windows=job.counts.missing_windows,
        stale_seconds=job.stale_seconds,
        control_enabled=job.orders.enabled,
        override=job.orders.in_force,
        override_waiting=job.orders.pending,
    )


def _risk(job: LiveJob) -> RiskView | None:
    found = job.learning.light.risk
    return None if found is None else RiskView(level=found.level, because=found.because, rule=risk.RULE)


def snapshot(job: LiveJob) -> Snapshot:
    """Return what a page needs to draw: the job, its last windows and decisions."""
    # The job has the rows of the latest window's ranks.
    windows = tuple(map(job.recent.without_many_ranks, job.all_windows()))[-SNAPSHOT_WINDOWS:]
    decisions = tuple(islice(reversed(job.recent.decisions), SNAPSHOT_DECISIONS))[::-1]
    return Snapshot(job=job_view(job), windows=windows, decisions=decisions)


def override(job: LiveJob) -> OverrideView:
    """Return the order in force and the one that waits."""
    spec, decision = job.spec_and_decision()
    return OverrideView(
        job=spec.job,
        epoch=decision.epoch,
        control_enabled=job.orders.enabled,
        in_force=job.orders.in_force,
        waiting=job.orders.pending,
    )


def candidates(job: LiveJob) -> CandidatesView:
    """Return what the policy knows about each plan."""
    spec, decision = job.spec_and_decision()
    return CandidatesView(
        job=spec.job,
        window=decision.window,
        epoch=decision.epoch,
        epsilon=decision.epsilon,
        candidates=plan_views(decision, spec),
    )


def ranks(job: LiveJob) -> RanksView:
    """Return the ranks in the last window, by rank."""
    spec, _ = job.spec_and_decision()
    if job.latest is None:
        return RanksView(job=spec.job, window=None, time=None, ranks=())
    report = job.latest.report
    return RanksView(
        job=spec.job, window=report.window, time=job.latest.time, ranks=tuple(rank_views(report.ranks))
    )


def rank_heat(job: LiveJob) -> RankHeatView:
    """Return the own time by rank and window."""
    spec, _ = job.spec_and_decision()
    heat = job.recent.heat
    columns = (
        HeatColumn(
            first_window=column.first, last_window=column.last, percent=tuple(x or None for x in column.cells)
        )
        for column in heat.columns
    )
    return RankHeatView(job=spec.job, ranks_per_row=heat.ranks_per_row, columns=tuple(columns))


def rank_views(rows: Sequence[RankRow]) -> list[RankView]:
    """Return each rank with its mean step, and its speed relative to the fastest (own time: all but communicate).

    Ranks wait for each other in the collective, so whole steps take equally long on all of them. A slow rank shows in
    the time of its own work.
    """
    own = [figures.own_step_seconds(row) for row in rows]
    fastest = min((value for value in own if value), default=None)
    return [
        RankView(
            row=row,
            step_seconds=figures.ratio(row.step_seconds, row.steps),
            relative_speed=None if fastest is None or not seconds else figures.ratio(fastest, seconds),
        )
        for row, seconds in sorted(zip(rows, own, strict=True), key=lambda pair: pair[0].rank)
    ]
