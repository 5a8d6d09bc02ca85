"""The steps of a window one by one, where its report is to list them (setting ``step_rows``); on rank 0 only."""

import logging
from collections import deque

from gravac.protocol import StepDetail
from gravac_agent.exchange.clock import Lap
from gravac_agent.exchange.plan import Plan
from gravac_agent.exchange.tick import StepSums

log = logging.getLogger("gravac.agent")

ENERGIES = ("gradient_sq", "compensated_sq", "sent_sq", "candidate_sq", "residual_sq")
TIMES = ("seconds", "data_wait", "compute", "compress", "communicate", "decompress")


class Listing:
    """The newest ``most`` steps of one window; 0: none. ``ranks``: of the job, whose payloads are of one size."""

    def __init__(self, most: int, ranks: int) -> None:
        self._ranks = ranks
        self._steps: deque[tuple[int, Plan, StepSums, Lap, int]] = deque(maxlen=most)

    def add(self, step: int, plan: Plan, sums: StepSums, lap: Lap, payload_bytes: int) -> None:
        """A finished step; ``sums`` are over ranks, ``payload_bytes`` of this one."""
        self._steps.append((step, plan, sums, lap, payload_bytes))

    def detail(self) -> StepDetail | None:
        """As a report has it. Null when nothing was listed, or it cannot be written: a window is worth more."""
        if not self._steps:
            return None
        steps, plans, sums, laps, payloads = zip(*self._steps, strict=True)
        columns: dict[str, tuple[object, ...]] = {
            "epoch": tuple(plan.directive.epoch for plan in plans),
            "cf": tuple(plan.cf for plan in plans),
            "payload_bytes": tuple(payload * self._ranks for payload in payloads),
            "nonfinite_ranks": tuple(int(each.nonfinite) for each in sums),
            "failed_ranks": tuple(int(each.failed) for each in sums),
        }
        for name in ENERGIES:
            columns[name] = tuple(None if each.nonfinite else getattr(each, name) for each in sums)
        for name in TIMES:
            columns[name] = tuple(round(getattr(lap, name), 6) for lap in laps)
        try:
            return StepDetail.model_validate({"first_step": steps[0], **columns})
        except ValueError:
            log.exception("the steps of this window are not listed")
            return None
