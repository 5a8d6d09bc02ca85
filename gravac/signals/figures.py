"""Figures of one window report: pure functions, each with its formula. Unknown values are None, never 0.

The sums in a report run over ranks and steps, so each figure is a ratio of sums, not a mean of ratios.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from gravac import offers
from gravac.protocol import Decision, GainSums, LevelSums, PlanCost, RankRow, WindowReport
from gravac.signals.diversity import DiversityTracker, diversity
from gravac.signals.efficiency import CERTAIN, SIMULATED_RANKS, Efficiency, between, measured


def ratio(numerator: float, denominator: float) -> float | None:
    """Return numerator / denominator, or None where that is undefined or not finite."""
    if denominator == 0:
        return None
    return _finite(numerator / denominator)


def total_sums(report: WindowReport) -> GainSums:
    """Return the sums of all levels of the window together; zeros for a window without levels."""
    every = [level.sums for level in report.levels]
    if len(every) == 1:  # nearly always, and called often
        return every[0]
    sums: dict[str, Any] = {
        name: (sum if name.endswith("steps") else math.fsum)(getattr(each, name) for each in every)
        for name in GainSums.model_fields
    }
    return GainSums.model_construct(**sums)


def steps(report: WindowReport) -> int:
    """Return the steps of the window: last_step − first_step + 1."""
    return report.last_step - report.first_step + 1


class LinkUse(NamedTuple):
    """What a step sends over one level of links, all ranks, and how long a rank waits for it."""

    bytes: float
    seconds: float


def links(report: WindowReport) -> dict[str, LinkUse]:
    """Return the use of the links between hosts and of those inside; empty where there is one level of links."""
    inside, count = report.inside, steps(report)
    if inside is None or count < 1:
        return {}
    waited = max(0.0, report.phases.communicate - inside.seconds)
    return {
        "between": LinkUse(report.payload_bytes / count, waited / count),
        "inside": LinkUse(inside.sent_bytes / count, inside.seconds / count),
    }


def gain(report: WindowReport) -> float | None:
    """Return the gain: Σ ‖sent‖² / Σ ‖gradient + residual‖² (GraVAC, §III-B). Above 1 where rounding adds energy."""
    sums = total_sums(report)
    return ratio(sums.sent_sq, sums.compensated_sq)


def gain_minimum(report: WindowReport) -> float | None:
    """Return the gain that the minimum CF would have had: Σ minimum_sq / Σ compensated_sq."""
    sums = total_sums(report)
    return ratio(sums.minimum_sq, sums.compensated_sq)


def gain_candidate(report: WindowReport) -> float | None:
    """Return the gain that the candidate CF would have had: Σ candidate_sq / Σ compensated_sq."""
    sums = total_sums(report)
    return ratio(sums.candidate_sq, sums.compensated_sq)


def backlog(report: WindowReport) -> float | None:
    """Return the backlog τ in steps: Σ ⟨residual, gradient⟩ / Σ ‖gradient‖².

    That many steps of progress wait in the error memory.
    """
    sums = total_sums(report)
    return ratio(sums.residual_dot_gradient, sums.gradient_sq)


def residual_ratio(report: WindowReport) -> float | None:
    """Return the norm of the residual relative to the gradient: √(Σ residual_sq / Σ gradient_sq)."""
    sums = total_sums(report)
    square = ratio(sums.residual_sq, sums.gradient_sq)
    return None if square is None else math.sqrt(square)


def step_seconds(report: WindowReport) -> float | None:
    """Return the mean duration of a step on rank 0 in seconds: seconds / steps."""
    return ratio(report.seconds, steps(report))


def usual_step_seconds(report: WindowReport) -> float | None:
    """Return how long a step usually takes, in seconds: medians of settled steps; without any, the mean of all steps.

    A pause in which the trainer evaluates or saves is in the mean, and a dense step is known without it.
    """
    known = [(level.step_seconds_median, level.settled_steps) for level in report.levels]
    settled = [(median, count) for median, count in known if median is not None and count > 0]
    if not settled:
        return step_seconds(report)
    return ratio(sum(median * count for median, count in settled), sum(count for _, count in settled))


def paused_seconds(report: WindowReport) -> float:
    """Return what the steps of a window waited for data beyond what they usually do, in seconds."""
    usual = usual_step_seconds(report) or 0.0
    return min(report.phases.data_wait, max(0.0, report.seconds - usual * steps(report)))


def predicted_dense_step_seconds(report: WindowReport, plans: Sequence[PlanCost]) -> float | None:
    """Predict the duration of a dense step from a window that compressed, in seconds.

    The step as measured, without coding, and with the wait for the network that a dense exchange adds on the network
    as it was measured at the start. An exchange that partly hides behind backward takes longer than the wait that is
    seen, so this is an upper estimate.

    Args:
        report: the window. Its level with the most settled steps counts.
        plans: what each plan costs, of the job's spec.
    """
    dense = next((cost.seconds for cost in plans if cost.cf == 1.0), None)
    costs = {(cost.codec, cost.cf): cost.seconds for cost in plans if cost.cf != 1.0}
    levels = [level for level in report.levels if costs.get((level.codec, level.cf)) is not None]
    level = max(levels, key=lambda level: level.settled_steps, default=None)
    if dense is None or level is None:
        return None
    step, exposed, sent = (
        level.step_seconds_median,
        level.exposed_seconds_median,
        costs[level.codec, level.cf],
    )
    coding = ratio(report.phases.compress + report.phases.decompress, steps(report))
    if step is None or exposed is None or sent is None or coding is None:
        return None
    own = max(0.0, step - exposed - coding)
    return _finite(own + max(0.0, exposed + dense - sent))


def own_step_seconds(row: RankRow) -> float | None:
    """Return the mean time of a rank's own work in a step, in seconds: all phases but communicate, / steps.

    Ranks wait for each other in the network, so whole steps take equally long on all of them.
    """
    phases = row.phases
    return ratio(phases.data_wait + phases.compute + phases.compress + phases.decompress, row.steps)


def samples_per_second(report: WindowReport) -> float | None:
    """Return T_sys of all ranks: samples / seconds."""
    return ratio(report.samples, report.seconds)


def codec(report: WindowReport, compressor: str) -> str:
    """Return the codec that the last step was sent with, if it was not dense.

    Args:
        report: the window.
        compressor: the job's, which a level without a codec was sent with.
    """
    sent = [level for level in report.levels if level.cf == report.cf]
    last = max(sent, key=lambda level: level.epoch, default=None)
    return compressor if last is None or last.codec is None else last.codec


def compression_throughput(report: WindowReport) -> float | None:
    """Return GraVAC's T_comp = T_sys · gain: samples per second, weighted by the gain (GraVAC, §III-C)."""
    throughput, sent = samples_per_second(report), gain(report)
    return None if throughput is None or sent is None else _finite(throughput * sent)


def efficiency(
    report: WindowReport, kind: str, compressor: str, ranks: int = SIMULATED_RANKS
) -> Efficiency | None:
    """Return the statistical efficiency η of a window: steps that dense training needs / steps that it needs so.

    The mean over its levels, weighted by their steps, of ``gravac.signals.efficiency.measured``; of dense steps 1.

    Args:
        report: the window.
        kind: Kind of the optimizer, as in ``gravac.protocol.OptimizerSpec``.
        compressor: the job's, which a level without a codec was sent with.
        ranks: Whose payloads meet.

    Returns:
        None where no level shows it: there was no gradient, or no error memory, without which the backlog says nothing.
    """
    known: list[tuple[int, Efficiency]] = []
    for level in report.levels:
        found = level_efficiency(level, kind, compressor, ranks)
        if found is not None and level.steps > 0:
            known.append((level.steps, found))
    if len(known) == 1:
        return known[0][1]
    every = sum(count for count, _ in known)
    if every == 0:
        return None
    return Efficiency(
        likely=math.fsum(count * each.likely for count, each in known) / every,
        low=math.fsum(count * each.low for count, each in known) / every,
        high=math.fsum(count * each.high for count, each in known) / every,
    )


def believed(decision: Decision, before: Decision) -> Efficiency | None:
    """Return the efficiency of the plan of a window as the policy believes it after the window.

    Args:
        decision: The decision on the window, whose candidates say it.
        before: The decision that the window ran under.

    Returns:
        None where the policy has no such figure, or the window compressed nothing.
    """
    plan = (before.codec, before.cf_candidate)
    row = next((row for row in decision.candidates if (row.codec, row.cf) == plan), None)
    if row is None or row.cf == 1.0 or row.efficiency is None or row.efficiency_error is None:
        return None
    return between(
        row.efficiency, row.efficiency - row.efficiency_error, row.efficiency + row.efficiency_error
    )


def level_efficiency(
    level: LevelSums, kind: str, compressor: str, ranks: int = SIMULATED_RANKS
) -> Efficiency | None:
    """Return the statistical efficiency η of the steps of a level; as ``efficiency`` of a window."""
    codec = level.codec or compressor
    if level.cf == 1.0:
        return CERTAIN
    sums = level.sums
    forgotten = (
        sums.residual_sq == 0.0 and sums.sent_sq != sums.compensated_sq
    )  # no error memory has what is missing
    if forgotten and not offers.of(codec).lossless:
        return None
    return measured(level.sums, codec, level.cf, kind, ranks=ranks)


def useful_samples_per_second(
    report: WindowReport, kind: str, compressor: str, ranks: int = SIMULATED_RANKS
) -> float | None:
    """Return the useful throughput T_sys · η: samples per second that count as much as those of dense training.

    The arguments are those of ``efficiency``.
    """
    throughput, found = samples_per_second(report), efficiency(report, kind, compressor, ranks)
    return None if throughput is None or found is None else _finite(throughput * found.likely)


def wire_cf(report: WindowReport) -> float | None:
    """Return the wire CF: dense bytes / payload bytes, indices and headers included."""
    return ratio(report.dense_bytes, report.payload_bytes)


def global_batch_samples(report: WindowReport) -> float | None:
    """Return the samples a step of all ranks: samples / steps. None where samples could not be counted."""
    return ratio(report.samples, steps(report)) if report.samples > 0 else None


def gradient_diversity(report: WindowReport, world_size: int) -> float | None:
    """Return the diversity of the ranks' raw gradients g in plainly dense steps: Σ ‖g‖² / Σ ‖sum over ranks of g‖².

    Returns:
        1 / ``world_size`` when all ranks agree, 1 when they are orthogonal, more when they oppose each other. None
        without a plainly dense step, with one rank, or where the gradients cancel.
    """
    squares = _raw_squares(report, world_size)
    found = None if squares is None else diversity(*squares, world_size)
    return None if found is None else _finite(found)


def mostly_dense(report: WindowReport) -> bool:
    """Return whether at least half the steps were plainly dense; the two or three at a change of CF are too few."""
    return 2 * total_sums(report).mean_steps >= steps(report)


def noise_scale_samples(report: WindowReport, world_size: int) -> float | None:
    """Return the simple gradient noise scale S / ‖G‖² in samples, from dense steps (``gravac.signals.diversity``).

    Both are summed over steps, then divided. None where ``gradient_diversity`` is None, where samples are unknown, and
    where ‖G‖² is not above 0: the scale is then far above the batch.
    """
    squares, batch = _raw_squares(report, world_size), global_batch_samples(report)
    if squares is None or batch is None:
        return None
    sums = DiversityTracker(smoothing=1.0)
    sums.update(
        *squares, ranks=world_size, local_batch=1
    )  # S in units of a rank's batch, which may be no integer
    batches = sums.noise_scale()
    return None if batches is None else batches * (batch / world_size)


def batch_bound_samples(report: WindowReport, world_size: int) -> float | None:
    """Return B_S = 1 + S / ‖G‖² in samples a step: beyond it larger batches stop paying (Yin et al. 2018).

    None where ``noise_scale_samples`` is None.
    """
    scale = noise_scale_samples(report, world_size)
    return None if scale is None else 1.0 + scale


def agent_cpu_ratio(report: WindowReport) -> float | None:
    """Return the CPU time of the agents' exchange threads per second of training, over the ranks that report it."""
    known = [
        (row.agent_cpu_seconds, row.step_seconds) for row in report.ranks if row.agent_cpu_seconds is not None
    ]
    return ratio(sum(cpu for cpu, _ in known), sum(seconds for _, seconds in known))


def _raw_squares(report: WindowReport, world_size: int) -> tuple[float, float] | None:
    """Return sums over plainly dense steps: (mean over ranks of ‖g‖², ‖mean over ranks of g‖²)."""
    sums = total_sums(report)
    if sums.mean_steps == 0 or world_size < 2:
        return None
    return sums.mean_gradient_sq / world_size, sums.mean_sq


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
