"""What a rank measures over a window: where time goes, samples and loss, and the sums of all steps."""

import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from operator import index
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gravac.protocol import GainCurve
from gravac.signals.spectrum import LADDER, Curve
from gravac_agent.errors import SetupError
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.exchange.step import StepResult
from gravac_agent.exchange.tick import NAMES, StepSums

MOST_SAMPLES = 10**12
"""Most samples in a step. Sums over windows and ranks stay exact as float64."""
_USUAL_STEPS = 9
"""Steps whose median computing time is the usual one: few, and still no two long ones change it."""


class StepTimes(NamedTuple):
    """Wall time of one step; the five phases add up to ``seconds``."""

    seconds: float
    data_wait: float
    compute: float
    compress: float
    communicate: float
    decompress: float


class StepClock:
    """Times steps from one end of exchange to the next: optimizer, data, forward, backward, exchange."""

    def __init__(self) -> None:
        self._computes: deque[float] = deque(maxlen=1 + _USUAL_STEPS)
        self._hidden = 0.0  # of the exchange's work in the newest step, what backward hid
        self._began_at = time.monotonic()
        self._optimizer_ended_at: float | None = None
        self._data_wait = 0.0
        self.inside = 0.0
        """What the newest step waited for other ranks of the host, a part of ``communicate``."""

    def forward_began(self) -> None:
        """End the wait for data, at the first forward after the optimizer. Later micro-batches count as compute."""
        if self._optimizer_ended_at is not None:
            self._data_wait = time.monotonic() - self._optimizer_ended_at
            self._optimizer_ended_at = None

    def optimizer_ended(self) -> None:
        """Begin the wait for data."""
        self._optimizer_ended_at = time.monotonic()

    def end_step(self, result: StepResult) -> StepTimes:
        """Return the times of the step that ends now.

        What the exchange thread did before backward ended is hidden behind backward and does not count.
        """
        now = time.monotonic()
        exposed = {"compress": 0.0, "communicate": 0.0, "decompress": 0.0, "inside": 0.0}
        self._hidden = 0.0
        for activity, begin, end in result.activity:
            if activity in ("compress", "decompress"):
                self._hidden += max(0.0, min(end, result.last_submit_at) - begin)
            exposed[activity] += max(0.0, min(end, now) - max(begin, result.last_submit_at))
        self.inside = exposed.pop("inside")
        exposed["communicate"] += self.inside
        seconds = now - self._began_at
        data_wait = min(self._data_wait, seconds)
        compute = max(0.0, seconds - data_wait - sum(exposed.values()))
        self._began_at, self._data_wait = now, 0.0
        self._computes.append(compute)
        return StepTimes(seconds=seconds, data_wait=data_wait, compute=compute, **exposed)

    def plan_seconds(self, times: StepTimes) -> float:
        """Return what the plan answers for of the newest step, whose times these are.

        That is not the wait for data, in which trainers save and evaluate, nor what computing took longer than it
        usually does, as where the trainer compiles. Unless the exchange was at work then, which slows backward.
        """
        usual = median(list(self._computes)[:-1] or [0.0])
        compute = min(times.compute, usual + self._hidden)
        return compute + times.compress + times.communicate + times.decompress


@dataclass(slots=True)
class TrainerInput:
    """What the trainer passes to the agent: samples of the running window, and the loss that was logged last."""

    samples_per_step: int | None = None
    """Samples of a step of this rank, where the trainer logs them; else they are counted."""
    _step: int = field(default=0, init=False)
    _forward_ran: bool = field(default=False, init=False)
    _window: int = field(default=0, init=False)
    _loss: float | Tensor | None = field(default=None, init=False)
    _arrived: torch.cuda.Event | None = field(default=None, init=False)
    """Reached when a loss on a GPU is in the host's memory."""

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the first dimension of the first tensor given to ``forward``; micro-batches add up."""
        self._forward_ran = True
        first = args[0] if args and isinstance(args[0], Tensor) else _first_tensor((*args, *kwargs.values()))
        if first is not None and first.dim():
            self._step += first.shape[0]

    def end_step(self) -> None:
        """Add the step's samples to the window."""
        # Without a forward this rank's inputs have ended, and it shadows the others in a Join context.
        if self._forward_ran:
            self._window += self._step if self.samples_per_step is None else self.samples_per_step
        self._step, self._forward_ran = 0, False

    def pop_samples(self) -> int:
        """Return the samples since the last call."""
        samples, self._window = self._window, 0
        return samples

    def log_loss(self, loss: float | Tensor) -> float | None:
        """Store ``loss`` and return the one before it, so that a tensor is read one step later and no step waits."""
        before = self.pop_loss()
        self._loss = loss.detach() if isinstance(loss, Tensor) else loss
        if isinstance(self._loss, Tensor) and self._loss.is_cuda:
            with torch.cuda.device(self._loss.device):  # not always the current one
                self._loss = self._loss.to("cpu", non_blocking=True)
                self._arrived = torch.cuda.Event()
                self._arrived.record()
        return before

    def pop_loss(self) -> float | None:
        """Return the stored loss, once. None when there is none or it is not finite, which is a bad step already."""
        loss, self._loss = self._loss, None
        arrived, self._arrived = self._arrived, None
        if arrived is not None:
            arrived.synchronize()
        if loss is None or not math.isfinite(value := float(loss)):
            return None
        return value


def logged(loss: Any, samples: Any) -> tuple[float | Tensor | None, int | None]:
    """Return what a trainer logs as plain numbers; a loss on a GPU as a tensor, for which the host does not wait yet.

    Raises:
        SetupError: It is no number.
    """
    return (None if loss is None else _loss(loss)), (None if samples is None else _samples(samples))


def _loss(loss: Any) -> float | Tensor:
    try:
        if isinstance(loss, Tensor) and loss.is_cuda and loss.numel() == 1 and not loss.is_complex():
            return loss.detach()
        value = loss.item() if hasattr(loss, "item") else loss
        if hasattr(value, "__float__") and not isinstance(value, bool):
            return float(value)
    except Exception as error:  # whatever the value's own class raises
        raise SetupError(_no_loss(loss)) from error
    raise SetupError(_no_loss(loss))


def _no_loss(loss: Any) -> str:
    shape = getattr(loss, "shape", ())
    shown = f" of shape {tuple(shape)}" if shape else f"={loss!r:.100}"
    return f"loss{shown} is not one number: pass the loss of the step, such as agent.log(loss=loss.mean())"


def _samples(samples: Any) -> int:
    try:
        count = -1 if isinstance(samples, bool) else index(samples)
    except TypeError:
        count = -1
    if not 0 <= count <= MOST_SAMPLES:
        raise SetupError(
            f"samples={samples!r:.100} is not a number of samples: pass those of this rank's step, len(x)"
        )
    return count


@dataclass(slots=True)
class RankTotals:
    """One rank's totals of a window. Rank 0 gathers them at its end, as float64."""

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
    inside_bytes: float = 0
    inside_seconds: float = 0.0

    def values(self) -> list[float]:
        """Return all of them, in order."""
        return [float(value) for value in astuple(self)]


_FIELDS = len(fields(RankTotals))


@dataclass(slots=True)
class ProgressSums:
    """Sums over blocks of steps, for the progress ratio ⟨moved, reference⟩ / ‖reference‖².

    Attributes:
        steps: Steps in complete blocks.
        moved_sq: ‖moved‖², the way that the parameters went in a block.
        reference_sq: ‖reference‖², the way that they would have gone with dense gradients.
        moved_dot_reference: ⟨moved, reference⟩.
        raw_sq: ‖ḡ‖², the mean over ranks of the raw gradients, summed over steps.
        raw_dot_next: ⟨ḡ, ḡ of the next step⟩.
    """

    steps: int = 0
    moved_sq: float = 0.0
    reference_sq: float = 0.0
    moved_dot_reference: float = 0.0
    raw_sq: float = 0.0
    raw_dot_next: float = 0.0

    def __add__(self, other: "ProgressSums") -> "ProgressSums":
        return ProgressSums(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def is_finite(self) -> bool:
        """Return whether all of them are finite."""
        return all(math.isfinite(getattr(self, each.name)) for each in fields(self))

    @property
    def ratio(self) -> float | None:
        """Share of the dense way that the parameters went; None where none is known."""
        return self.moved_dot_reference / self.reference_sq if self.reference_sq > 0 else None


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


@dataclass(slots=True)
class WindowTotals:
    """One window on one rank. Memory is bounded: a number or two per step."""

    number: int
    first_step: int
    rate: float = 0.0
    """Largest learning rate of those that the residual follows now; 0: it follows none."""
    full: bool = False
    """Whether the window is over and waits to be closed."""
    own: RankTotals = field(default_factory=RankTotals)
    """This rank's."""
    levels: dict[tuple[int, int, float], LevelTotals] = field(default_factory=dict)
    """Totals by epoch, codec and CF."""
    last_plan: StepPlan | None = None
    trial_seconds: float | None = None
    """Longest step of a trial that ended early with this window; None: none did."""
    moved_sq: float = 0.0
    """Energy of the residual, times the square of the learning rate that it follows."""
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
        own.seconds += times.seconds
        own.data_wait += times.data_wait
        own.compute += times.compute
        own.compress += times.compress
        own.communicate += times.communicate
        own.decompress += times.decompress
        own.dense_bytes += dense
        own.payload_bytes += payload
        own.nonfinite += sums.nonfinite > 0
        own.failed += sums.failed > 0
        level = self.levels.get(plan.level)
        if level is None:
            level = self.levels[plan.level] = LevelTotals()
        level.steps += 1
        level.dense_bytes += dense
        level.payload_bytes += payload
        if not sums.nonfinite:
            level.finite_steps += 1
            for name in NAMES:
                setattr(level.sums, name, getattr(level.sums, name) + getattr(sums, name))
        if settled:
            level.settled_seconds.append(times.seconds)
            level.settled_exposed.append(times.communicate)
        self.last_plan = plan

    def add_mean(self, plan: StepPlan, sums: StepSums, mean_sq: float | None) -> None:
        """Add ‖mean of the raw gradients‖² of the step just added; None where it is not known."""
        if mean_sq is not None and not sums.nonfinite:
            level = self.levels[plan.level]
            level.mean_steps += 1
            level.mean_sq += mean_sq
            level.mean_gradient_sq += sums.gradient_sq

    def add_rate(self, sums: StepSums) -> None:
        """Add the learning rate that the residual of the step just added follows."""
        if not sums.nonfinite:
            self.moved_sq += sums.residual_sq * self.rate * self.rate

    def residual_rate(self) -> float | None:
        """Return the learning rate that the residual followed, by its energy; None: none, or there was no residual."""
        residual_sq = math.fsum(level.sums.residual_sq for level in self.levels.values())
        rate_sq = self.moved_sq / residual_sq if residual_sq > 0.0 else 0.0
        return math.sqrt(rate_sq) if 0.0 < rate_sq < 1e30 else None  # beyond, no record takes it

    def add_progress(self, plan: StepPlan, progress: ProgressSums) -> None:
        """Add progress under a plan of this window."""
        level = self.levels.get(plan.level)
        if level is not None:
            level.progress += progress

    def add_curve(self, curve: Curve | None) -> None:
        """Add this rank's gain curve of a finite step; None where the step was not surveyed."""
        if curve is not None:
            self.curve = curve if self.curve is None else self.curve + curve
            self.curve_steps += 1

    def vector(self) -> Tensor:
        """Return this rank's totals and the sums of its gain curve, zeros when it has none, for rank 0 to gather."""
        curve = (
            torch.zeros(len(LADDER) + 1, dtype=torch.float64, device="cpu")
            if self.curve is None
            else self.curve.sums()
        )
        return torch.cat((torch.tensor(self.own.values(), dtype=torch.float64, device="cpu"), curve))

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


@dataclass(slots=True)
class RunTotals:
    """What a rank adds up from the start of its agent on."""

    steps_at: Counter[tuple[int, float]] = field(default_factory=Counter)
    """Steps by codec and CF that they sent."""
    dense_bytes: int = 0
    """Bytes that dense gradients would have taken."""
    payload_bytes: int = 0
    """Bytes that were sent."""
    nonfinite_steps: int = 0
    failed_steps: int = 0
    dropped_residuals: int = 0
    """Residuals that overflowed and were dropped, by the memory in use."""


def totals_of(vector: Tensor) -> RankTotals:
    """Read the totals from a rank's ``vector``."""
    return RankTotals(*vector[:_FIELDS].tolist())


def _first_tensor(values: Iterable[Any], depth: int = 3) -> Tensor | None:
    """Return the first tensor among values and those in lists and mappings: trainers pass a whole batch as one."""
    for value in values:
        if isinstance(value, Tensor):
            return value
        if depth and isinstance(value, list | tuple | Mapping):
            inside = value.values() if isinstance(value, Mapping) else value
            if (found := _first_tensor(inside, depth - 1)) is not None:
                return found
    return None
