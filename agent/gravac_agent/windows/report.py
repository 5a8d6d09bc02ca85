"""Rank 0's report of a window: the totals of all ranks as a record of the protocol."""

import logging
from collections.abc import Sequence
from dataclasses import fields
from statistics import median

import torch
import torch.distributed as dist

from gravac.predict import Recording
from gravac.protocol import (
    GainCurve,
    GainSums,
    InsideHosts,
    LevelSums,
    PhaseSeconds,
    RankRow,
    SmoothedGain,
    Spread,
    WindowReport,
    quantiles,
)
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.tick import NAMES
from gravac_agent.reporting.reporter import Reporter
from gravac_agent.windows.meters import LevelTotals, ProgressSums, RankTotals, WindowTotals, totals_of

log = logging.getLogger("gravac.agent")

_FROM_TICKS = [name for name in GainSums.model_fields if name in NAMES]
_FROM_PROGRESS = [energy.name for energy in fields(ProgressSums) if energy.name not in ("steps", "raw_sq")]
"""Sums that a record has by the same name; ``steps`` and ``raw_sq`` have other names there."""
LISTED_RANKS = 1024
"""Most ranks that a report lists one by one, from rank 0 on. The spread of times is over all ranks."""


class WindowReports:
    """Gathers the totals of all ranks, and reports each window on rank 0.

    Args:
        group: Group of the ticks.
        channels: The executor's.
        reporter: Rank 0's; None on the other ranks.
        job: The job's name.
        incarnation: Which run of the job this is.
        recording: Takes in all windows; None: nobody asks for it.

    Attributes:
        last: The newest window's report, on rank 0. The exchange thread sets it.
        recording: What another optimizer would bring follows from it, at the end.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        channels: Channels,
        reporter: Reporter | None,
        job: str,
        incarnation: str,
        recording: Recording | None,
    ) -> None:
        self._group, self._channels, self._reporter = group, channels, reporter
        self.job, self._incarnation = job, incarnation
        self.last: WindowReport | None = None
        self.recording = recording

    def gather(self, window: WindowTotals, gains: dict[float, float]) -> None:
        """Gather the totals of all ranks on rank 0, which reports the window. Runs on the exchange thread.

        Args:
            window: This rank's totals.
            gains: Smoothed gain by CF, of the last step's codec.
        """
        try:
            mine = window.vector()
            first = self._reporter is not None
            vectors = [torch.empty_like(mine) for _ in range(self._group.size())] if first else []
            dist.gather(mine, vectors or None, group=self._group, group_dst=0)
            if self._reporter is not None:
                assert window.last_plan is not None
                aggregator = self._channels.aggregators[window.last_plan.codec]
                report = build_report(
                    window,
                    [totals_of(vector) for vector in vectors],
                    gains,
                    window.curve_over_ranks(vectors, own=aggregator.keeps_largest),
                    self.job,
                    self._incarnation,
                    (None, *self._channels.codecs[1:]),
                )
                self._reporter.report_window(report)
                self.last = report
                if self.recording is not None:
                    self.recording.add(report)
        except Exception:  # a missing report must not stop the training
            log.exception("window %d could not be reported", window.number)


def build_report(
    window: WindowTotals,
    ranks: Sequence[RankTotals],
    gains: dict[float, float],
    curve: GainCurve | None,
    job: str,
    incarnation: str,
    codecs: Sequence[str | None] = (None,),
) -> WindowReport:
    """Return rank 0's report of a window with at least one step.

    Args:
        window: Rank 0's totals; its energies are over ranks already.
        ranks: Every rank's totals.
        gains: Smoothed gain by CF, of the last step's codec.
        curve: Gain curve over ranks.
        job: The job's name.
        incarnation: Which run of the job this is.
        codecs: Codecs by their number, as records have them: None is the job's compressor.
    """
    plan = window.last_plan
    assert plan is not None
    losses = sum(rank.loss_count for rank in ranks)
    total = RankTotals(*(sum(column) for column in zip(*(rank.values() for rank in ranks), strict=True)))
    own = ranks[0]
    return WindowReport(
        job=job,
        incarnation=incarnation,
        window=window.number,
        first_step=window.first_step,
        last_step=window.first_step + int(own.steps) - 1,
        epoch=plan.directive.epoch,
        phase=plan.directive.phase,
        cf=plan.cf,
        seconds=own.seconds,
        samples=int(total.samples),
        dense_bytes=int(total.dense_bytes),
        payload_bytes=int(total.payload_bytes),
        loss=sum(rank.loss_sum for rank in ranks) / losses if losses else None,
        nonfinite_steps=int(own.nonfinite),
        failed_steps=int(own.failed),
        levels=tuple(
            _level(epoch, codecs[codec], cf, level, len(ranks))
            for (epoch, codec, cf), level in window.levels.items()
        ),
        gains=tuple(SmoothedGain(cf=cf, gain=gain, codec=codecs[plan.codec]) for cf, gain in gains.items()),
        phases=_phases(total, 1 / len(ranks)),
        spread=_spread(ranks),
        ranks=tuple(_rank_row(rank, totals) for rank, totals in enumerate(ranks[:LISTED_RANKS])),
        curve=curve,
        trial_seconds=window.trial_seconds,
        residual_rate=window.residual_rate(),
        inside=None if not total.inside_bytes else _inside(total, len(ranks)),
    )


def _inside(totals: RankTotals, ranks: int) -> InsideHosts:
    return InsideHosts(sent_bytes=int(totals.inside_bytes), seconds=totals.inside_seconds / ranks)


def _level(epoch: int, codec: str | None, cf: float, level: LevelTotals, ranks: int) -> LevelSums:
    sums, progress = level.sums, level.progress
    return LevelSums(
        epoch=epoch,
        codec=codec,
        cf=cf,
        steps=level.steps,
        settled_steps=len(level.settled_seconds),
        step_seconds_median=median(level.settled_seconds) if level.settled_seconds else None,
        exposed_seconds_median=median(level.settled_exposed) if level.settled_exposed else None,
        dense_bytes=level.dense_bytes * ranks,  # payload sizes are equal on all ranks by agreement
        payload_bytes=level.payload_bytes * ranks,
        sums=GainSums(
            steps=level.finite_steps,
            mean_steps=level.mean_steps,
            mean_sq=level.mean_sq,
            mean_gradient_sq=level.mean_gradient_sq,
            progress_steps=progress.steps,
            raw_mean_sq=progress.raw_sq,
            **{name: getattr(sums, name) for name in _FROM_TICKS},
            **{name: getattr(progress, name) for name in _FROM_PROGRESS},
        ),
    )


def _phases(totals: RankTotals, share: float = 1.0) -> PhaseSeconds:
    return PhaseSeconds(**{name: getattr(totals, name) * share for name in PhaseSeconds.model_fields})


def _spread(ranks: Sequence[RankTotals]) -> Spread:
    phases = {name: [getattr(rank, name) for rank in ranks] for name in PhaseSeconds.model_fields}
    found = {name: quantiles(seconds) for name, seconds in phases.items()}
    return Spread(step_seconds=quantiles([rank.seconds for rank in ranks]), **found)


def _rank_row(rank: int, totals: RankTotals) -> RankRow:
    return RankRow(
        rank=rank,
        steps=int(totals.steps),
        step_seconds=totals.seconds,
        phases=_phases(totals),
        samples=int(totals.samples),
        nonfinite_steps=int(totals.nonfinite),
        failed_steps=int(totals.failed),
        memory_bytes=int(totals.memory_bytes),
        agent_cpu_seconds=totals.agent_cpu,
    )
