"""Sums of one window on one rank, and the gain curve over ranks."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields

import torch
from torch import Tensor

from gravac.protocol import GainCurve
from gravac.signals.spectrum import LADDER, Curve
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.exchange.tick import StepSums
from gravac_agent.windows.meters import StepTimes
from gravac_agent.windows.reference import ProgressSums


@dataclass(slots=True)
class RankTotals:
    """One rank's totals of a window. All ranks gather them at its end, as float64."""

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
        """Return all of them, in order."""
        return [float(value) for value in astuple(self)]


_FIELDS = len(fields(RankTotals))


@dataclass(slots=True)
class LevelTotals:
    """Totals of the steps that sent one CF with one codec under one decision."""

    steps: int = 0
    finite_steps: int = 0
    dense_bytes: int = 0
    payload_bytes: int = 0
    sums: StepSums = field(default_factory=StepSums)
    mean_steps: int = 0
    mean_sq: float = 0.0
    mean_gradient_sq: float = 0.0
    progress: ProgressSums = field(default_factory=ProgressSums)
    settled_seconds: list[float] = field(default_factory=list)
    settled_exposed: list[float] = field(default_factory=list)


def level_of(plan: StepPlan) -> tuple[int, int, float]:
    """Return epoch, codec and CF of a plan: steps with the same three are a level."""
    return plan.directive.epoch, plan.codec, plan.cf


@dataclass(slots=True)
class WindowTotals:
    """One window on one rank. Memory is bounded: a number or two per step."""

    number: int
    first_step: int
    listed: deque[tuple[StepPlan, StepSums, StepTimes, int]] = field(default_factory=lambda: deque(maxlen=0))
    """The newest steps, with the bytes that this rank sent; as many as a report lists one by one."""
    own: RankTotals = field(default_factory=RankTotals)
    """This rank's."""
    levels: dict[tuple[int, int, float], LevelTotals] = field(default_factory=dict)
    """By epoch, codec and CF."""
    last_plan: StepPlan | None = None
    curve: Curve | None = None
    curve_steps: int = 0

    def add(
        self, plan: StepPlan, sums: StepSums, times: StepTimes, dense: int, payload: int, settled: bool
    ) -> None:
        """Add a finished step.

        Args:
            plan: Its plan.
            sums: Energies and flags, over ranks.
            times: Its wall time on this rank.
            dense: Bytes that plain DDP would have sent from this rank.
            payload: Bytes that this rank sent.
            settled: Whether the CF is old enough for the step's time to count.
        """
        own = self.own
        own.steps += 1
        for phase in fields(times):
            setattr(own, phase.name, getattr(own, phase.name) + getattr(times, phase.name))
        own.dense_bytes += dense
        own.payload_bytes += payload
        own.nonfinite += sums.nonfinite > 0
        own.failed += sums.failed > 0
        level = self.levels.setdefault(level_of(plan), LevelTotals())
        level.steps += 1
        level.dense_bytes += dense
        level.payload_bytes += payload
        if not sums.nonfinite:
            level.finite_steps += 1
            added = (a + b for a, b in zip(level.sums.values(), sums.values(), strict=True))
            level.sums = StepSums(*added)
        if settled:
            level.settled_seconds.append(times.seconds)
            level.settled_exposed.append(times.communicate)
        self.listed.append((plan, sums, times, payload))
        self.last_plan = plan

    def add_mean(self, plan: StepPlan, sums: StepSums, mean_sq: float | None) -> None:
        """Add ‖mean of the raw gradients‖² of the step just added; None where it is not known."""
        if mean_sq is not None and not sums.nonfinite:
            level = self.levels[level_of(plan)]
            level.mean_steps += 1
            level.mean_sq += mean_sq
            level.mean_gradient_sq += sums.gradient_sq

    def add_progress(self, plan: StepPlan, progress: ProgressSums) -> None:
        """Add progress under a plan of this window."""
        level = self.levels.get(level_of(plan))
        if level is not None:
            level.progress += progress

    def add_curve(self, curve: Curve | None) -> None:
        """Add this rank's gain curve of a finite step; None where the step was not surveyed."""
        if curve is not None:
            self.curve = curve if self.curve is None else self.curve + curve
            self.curve_steps += 1

    def vector(self) -> Tensor:
        """Return this rank's totals and the sums of its gain curve, zeros when it has none, for all ranks to gather."""
        curve = torch.zeros(len(LADDER) + 1, dtype=torch.float64) if self.curve is None else self.curve.sums()
        return torch.cat((torch.tensor(self.own.values(), dtype=torch.float64), curve))

    def curve_over_ranks(self, vectors: Sequence[Tensor], own: bool) -> GainCurve | None:
        """Return the gain curve of all ranks; None when no step was surveyed.

        Args:
            vectors: Every rank's ``vector``.
            own: The codec sends exactly the largest elements, so that the curve is its own.
        """
        if self.curve is None:
            return None
        total = torch.stack([vector[_FIELDS:] for vector in vectors]).sum(0)
        gains = self.curve.summed(total).gains()
        # Rounded down, so that no reported gain is above the real one.
        rounded = tuple(None if gain is None else math.floor(gain * 1e6) / 1e6 for gain in gains)
        return GainCurve(steps=self.curve_steps, own=own, gains=rounded)

    def add_loss(self, loss: float | None) -> None:
        """Add a logged loss, if there is one."""
        if loss is None:
            return
        self.own.loss_sum += loss
        self.own.loss_count += 1


def totals_of(vector: Tensor) -> RankTotals:
    """Read the totals from a rank's ``vector``."""
    return RankTotals(*vector[:_FIELDS].tolist())
