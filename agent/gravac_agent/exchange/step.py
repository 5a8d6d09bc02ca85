"""What belongs to one step while it is under way: its buckets, what is in flight, and how it ended."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives import Work
from gravac.memories import Bucket
from gravac.signals.spectrum import Curve
from gravac_agent.exchange.plan import Plan
from gravac_agent.exchange.survey import Survey
from gravac_agent.exchange.tick import StepSums, Tick

Activity = Literal["compress", "communicate", "decompress"]


@dataclass(slots=True)
class Task:
    bucket: Bucket
    buffer: Tensor
    last: bool
    future: torch.futures.Future[Tensor]


class Transfer(Protocol):
    """What the engine needs of an aggregation or of a dense all-reduce in flight."""

    @property
    def work(self) -> Work: ...
    @property
    def sent_bytes(self) -> int: ...
    @property
    def payload_bytes(self) -> int: ...
    def mean_into(self, out: Tensor) -> None: ...


@dataclass(slots=True)
class Sending:
    task: Task
    exchange: Transfer
    raw: bool = False  # the mean will be that of the raw gradients
    dense: bool = False  # the buffer itself is reduced
    over_at: float | None = None  # monotonic; None: still on the real network
    error: Exception | None = None


@dataclass(slots=True)
class Outcome:
    """What one step did on this rank, and the tick all ranks share."""

    tick: Tick
    last_submit_at: float
    """Monotonic seconds: when backward handed over its last bucket."""
    activity: list[tuple[Activity, float, float]]
    dense_bytes: int
    payload_bytes: int
    mean_sq: float | None
    """‖mean over ranks of the raw gradients‖², where the step was plainly dense; the same on all ranks."""
    finite: bool
    """False: the mean left the gradients' format. The same on all ranks, as they all hold the same bits."""
    curve: Curve | None
    """Of this rank, where the step was surveyed and finite."""
    cpu_seconds: float
    """CPU time of the exchange thread."""


@dataclass(slots=True)
class Step:
    plan: Plan
    number: int
    sums: StepSums = field(default_factory=StepSums)
    last_submit_at: float = 0.0
    activity: list[tuple[Activity, float, float]] = field(default_factory=list)
    dense_bytes: int = 0
    payload_bytes: int = 0
    mean_sq: float | None = 0.0
    finite: bool = True
    survey: Survey = field(default_factory=Survey)
    cpu_seconds: float = 0.0
    tick: Tensor | None = None
    tick_work: dist.Work | None = None
