"""What a rank collects over a window, and the report rank 0 makes of everybody's."""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields
from statistics import median

import torch
from torch import Tensor

from gravac.protocol import (
    GainCurve,
    GainSums,
    LevelSums,
    PhaseSeconds,
    RankRow,
    SmoothedGain,
    Spread,
    StepDetail,
    WindowReport,
    quantiles,
)
from gravac.signals.spectrum import LADDER, Curve
from gravac_agent.exchange.clock import Lap
from gravac_agent.exchange.plan import Plan
from gravac_agent.exchange.tick import StepSums


@dataclass(slots=True)
class Row:
    """One rank's numbers of a window, gathered from all ranks at its end (as float64)."""

    steps: float = 0
    seconds: float = 0.0
    data_wait: float = 0.0
    compute: float = 0.0
    compress: float = 0.0
    communicate: float = 0.0
    decompress: float = 0.0
    samples: float = 0
    nonfinite: float = 0
    failed: float = 0
    memory_bytes: float = 0
    dense_bytes: float = 0
    payload_bytes: float = 0
    loss_sum: float = 0.0
    loss_count: float = 0
    agent_cpu: float = 0.0

    def values(self) -> list[float]:
        return [float(value) for value in astuple(self)]

    def phases(self, share: float = 1.0) -> PhaseSeconds:
        return PhaseSeconds(
            data_wait=self.data_wait * share,
            compute=self.compute * share,
            compress=self.compress * share,
            communicate=self.communicate * share,
            decompress=self.decompress * share,
        )


ROW_SIZE = len(fields(Row))


@dataclass(slots=True)
class _Level:
    steps: int = 0
    finite_steps: int = 0
    dense_bytes: int = 0
    payload_bytes: int = 0
    sums: StepSums = field(default_factory=StepSums)
    mean_steps: int = 0
    mean_sq: float = 0.0
    mean_gradient_sq: float = 0.0
    settled_seconds: list[float] = field(default_factory=list)
    settled_exposed: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Window:
    """One window on one rank. Bounded: a number or two per step."""

    number: int
    first_step: int
    row: Row = field(default_factory=Row)
    levels: dict[tuple[int, float], _Level] = field(default_factory=dict)
    last_plan: Plan | None = None
    curve: Curve | None = None
    curve_steps: int = 0

    def add(self, plan: Plan, sums: StepSums, lap: Lap, dense: int, payload: int, settled: bool) -> None:
        """One finished step; ``sums`` are over ranks, the rest is this rank's."""
        row = self.row
        row.steps += 1
        for phase in ("seconds", "data_wait", "compute", "compress", "communicate", "decompress"):
            setattr(row, phase, getattr(row, phase) + getattr(lap, phase))
        row.dense_bytes += dense
        row.payload_bytes += payload
        row.nonfinite += sums.nonfinite > 0
        row.failed += sums.failed > 0
        level = self.levels.setdefault((plan.directive.epoch, plan.cf), _Level())
        level.steps += 1
        level.dense_bytes += dense
        level.payload_bytes += payload
        if not sums.nonfinite:
            level.finite_steps += 1
            added = (a + b for a, b in zip(level.sums.values(), sums.values(), strict=True))
            level.sums = StepSums(*added)
        if settled:
            level.settled_seconds.append(lap.seconds)
            level.settled_exposed.append(lap.communicate)
        self.last_plan = plan

    def add_mean(self, plan: Plan, sums: StepSums, mean_sq: float | None) -> None:
        """Of that step: ‖mean of the raw gradients‖², where it is known (plainly dense steps)."""
        if mean_sq is not None and not sums.nonfinite:
            level = self.levels[plan.directive.epoch, plan.cf]
            level.mean_steps += 1
            level.mean_sq += mean_sq
            level.mean_gradient_sq += sums.gradient_sq

    def survey(self, curve: Curve | None) -> None:
        """A finite step's curve, on this rank."""
        if curve is not None:
            self.curve = curve if self.curve is None else self.curve + curve
            self.curve_steps += 1

    def curve_sums(self) -> Tensor:
        """This rank's share of the window's curve, zeros when it has none: all ranks gather it."""
        return torch.zeros(len(LADDER) + 1, dtype=torch.float64) if self.curve is None else self.curve.sums()

    def curve_of(self, rows: Sequence[Tensor], own: bool) -> GainCurve | None:
        """The curve of all ranks; ``rows``: what they gathered, ``curve_sums`` last. None: nothing was surveyed."""
        if self.curve is None:
            return None
        total = torch.stack([row[ROW_SIZE:] for row in rows]).sum(0)
        gains = self.curve.summed(total).gains()
        # Rounded down: a gain said is one that is kept.
        rounded = tuple(None if gain is None else math.floor(gain * 1e6) / 1e6 for gain in gains)
        return GainCurve(steps=self.curve_steps, own=own, gains=rounded)

    def log_loss(self, loss: float | None) -> None:
        if loss is None:
            return
        self.row.loss_sum += loss
        self.row.loss_count += 1


def build_report(
    window: Window,
    rows: Sequence[Row],
    gains: dict[float, float],
    curve: GainCurve | None,
    job: str,
    incarnation: str,
    listed: int,
    steps: StepDetail | None = None,
) -> WindowReport:
    """Rank 0's report of a window with at least one step. Energies are over ranks already; rows come from all ranks.

    ``listed``: how many of the rows the report shows one by one; ``steps``: those it shows so.
    """
    plan = window.last_plan
    assert plan is not None
    ranks = len(rows)
    losses = sum(row.loss_count for row in rows)
    total = Row(*(sum(column) for column in zip(*(row.values() for row in rows), strict=True)))
    own = rows[0]
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
        loss=sum(row.loss_sum for row in rows) / losses if losses else None,
        nonfinite_steps=int(own.nonfinite),
        failed_steps=int(own.failed),
        levels=tuple(_level(epoch, cf, level, ranks) for (epoch, cf), level in window.levels.items()),
        gains=tuple(SmoothedGain(cf=cf, gain=gain) for cf, gain in gains.items()),
        phases=total.phases(1 / ranks),
        spread=_spread(rows),
        ranks=tuple(_rank(rank, row) for rank, row in enumerate(rows[:listed])),
        curve=curve,
        steps=steps,
    )


def _level(epoch: int, cf: float, level: _Level, ranks: int) -> LevelSums:
    sums = level.sums
    return LevelSums(
        epoch=epoch,
        cf=cf,
        steps=level.steps,
        settled_steps=len(level.settled_seconds),
        step_seconds_median=median(level.settled_seconds) if level.settled_seconds else None,
        exposed_seconds_median=median(level.settled_exposed) if level.settled_exposed else None,
        dense_bytes=level.dense_bytes * ranks,  # payload sizes are equal on all ranks by agreement
        payload_bytes=level.payload_bytes * ranks,
        sums=GainSums(
            steps=level.finite_steps,
            gradient_sq=sums.gradient_sq,
            compensated_sq=sums.compensated_sq,
            sent_sq=sums.sent_sq,
            minimum_sq=sums.minimum_sq,
            candidate_sq=sums.candidate_sq,
            residual_sq=sums.residual_sq,
            residual_dot_gradient=sums.residual_dot_gradient,
            mean_steps=level.mean_steps,
            mean_sq=level.mean_sq,
            mean_gradient_sq=level.mean_gradient_sq,
        ),
    )


def _spread(rows: Sequence[Row]) -> Spread:
    return Spread(
        step_seconds=quantiles([row.seconds for row in rows]),
        data_wait=quantiles([row.data_wait for row in rows]),
        compute=quantiles([row.compute for row in rows]),
        compress=quantiles([row.compress for row in rows]),
        communicate=quantiles([row.communicate for row in rows]),
        decompress=quantiles([row.decompress for row in rows]),
    )


def _rank(rank: int, row: Row) -> RankRow:
    return RankRow(
        rank=rank,
        steps=int(row.steps),
        step_seconds=row.seconds,
        phases=row.phases(),
        samples=int(row.samples),
        nonfinite_steps=int(row.nonfinite),
        failed_steps=int(row.failed),
        memory_bytes=int(row.memory_bytes),
        agent_cpu_seconds=row.agent_cpu,
    )
