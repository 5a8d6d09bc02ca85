"""What all ranks must agree on before a step, and how it follows from what they all know. All functions are pure."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256

from gravac.protocol import Decision, Phase
from gravac.signals.gain import GainTracker


@dataclass(frozen=True, slots=True)
class Directive:
    """The part of a decision that the ranks follow. It travels from rank 0 to all ranks in the tick."""

    epoch: int
    phase: Phase
    cf_minimum: float
    cf_candidate: float
    epsilon: float
    codec: int = 0
    """Number among the codecs that the ranks agreed on; 0: the job's compressor."""
    window_steps: int = 0
    """Steps of a window; 0: the job's."""
    limit_seconds: float = 0.0
    """What a step may take, or all ranks go back to another plan; 0: there is no limit."""
    back_codec: int = 0
    """Number of the codec to go back to."""
    back_cf: float = 1.0
    """CF to go back to."""

    @classmethod
    def of(cls, decision: Decision, codecs: Sequence[str]) -> "Directive":
        """Return the directive of a decision.

        Args:
            decision: The decision.
            codecs: What the ranks can send with besides the job's compressor, in the order that they agreed on.

        Raises:
            ValueError: The decision or its trial names another codec, or no step can be fast enough for the trial.
        """
        trial = decision.trial
        if trial is not None and not trial.step_seconds > 0.0:
            raise ValueError(
                "a decision with trial.step_seconds 0, which every step exceeds; give seconds above 0"
            )
        return cls(
            epoch=decision.epoch,
            phase=decision.phase,
            cf_minimum=decision.cf_minimum,
            cf_candidate=decision.cf_candidate,
            epsilon=decision.epsilon,
            codec=_number(decision.codec, codecs),
            window_steps=decision.window_steps or 0,
            limit_seconds=0.0 if trial is None else trial.step_seconds,
            back_codec=0 if trial is None else _number(trial.codec, codecs),
            back_cf=1.0 if trial is None else trial.cf,
        )

    def dense(self) -> "Directive":
        """Return the same decision, but dense: what ranks agree on when no controller answers (promise P5)."""
        return replace(self._without_trial(), phase="fallback", cf_minimum=1.0, cf_candidate=1.0)

    def back(self) -> "Directive":
        """Return what the ranks do once a step of this trial took too long (promise P12)."""
        cf = self.back_cf
        back = replace(self, cf_minimum=cf, cf_candidate=cf, codec=self.back_codec, window_steps=0)
        return back._without_trial()

    def _without_trial(self) -> "Directive":
        return replace(self, limit_seconds=0.0, back_codec=0, back_cf=1.0)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan of one step: the directive in force and the CF to send at (1 is dense)."""

    directive: Directive
    cf: float
    codec: int = field(init=False, repr=False, compare=False)
    """Number of the codec to send with; 0: the job's compressor."""
    measured: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """CFs to compress to in this step, weakest first: minimum and candidate, which may be equal; none if dense."""
    gains: frozenset[tuple[int, float]] = field(init=False, repr=False, compare=False)
    """Pairs of codec and CF whose gains this step measures, and that of the plan to go back to."""
    level: tuple[int, int, float] = field(init=False, repr=False, compare=False)
    """Epoch, codec and CF: steps with the same three are a level of a window."""
    idle: bool = field(init=False, repr=False, compare=False)
    """Whether the step is dense and measures nothing."""
    priced: bool = field(init=False, repr=False, compare=False)
    """Whether the step sends what is on trial, and may take no longer than the directive says."""

    def __post_init__(self) -> None:
        keep, directive = partial(object.__setattr__, self), self.directive
        measured = tuple(sorted(cf for cf in {directive.cf_minimum, directive.cf_candidate} if cf > 1.0))
        keep("codec", directive.codec)
        keep("measured", measured)
        gains = frozenset((directive.codec, cf) for cf in measured)
        if directive.limit_seconds:  # else the first step after the trial might be dense, to measure it
            gains |= {(directive.back_codec, directive.back_cf)}
        keep("gains", gains)
        keep("level", (directive.epoch, directive.codec, self.cf))
        keep("idle", self.cf == 1.0 and not measured)
        keep("priced", directive.limit_seconds > 0.0 and self.cf == directive.cf_candidate)

    def dense(self) -> "StepPlan":
        """Return the plan for a bucket that the ranks agreed to send densely."""
        return StepPlan(self.directive.dense(), 1.0)

    def fingerprint(self, setup: str) -> tuple[int, int, int]:
        """Return a hash of the plan and ``setup`` (codec, sizes, …): 48 bits in three pieces of 16.

        The tick compares them by sums of squares, which are exact in float64 only for small pieces.
        """
        digest = sha256(f"{setup}|{self!r}".encode()).digest()
        first, second, third = struct.unpack(">3H", digest[:6])
        return first, second, third


def next_plan(
    directive: Directive,
    tracker: GainTracker,
    measure_first: frozenset[int] = frozenset(),
    before: StepPlan | None = None,
) -> StepPlan:
    """Choose the plan of a step by GraVAC's three-way gate (Algorithm 1, lines 11 to 24).

    It sends at the candidate CF if the smoothed gain there is at least epsilon, else at the minimum CF if that gain is,
    else densely. A gain that was not measured yet does not pass, so the first step at a new CF sends something weaker.
    If epsilon is 0, nothing is compared, and nothing needs to be measured before it is sent.

    Args:
        directive: The directive in force.
        tracker: The smoothed gains.
        measure_first: Codecs whose first step at a CF only measures, whatever epsilon is. At the start of a job the
            first two steps do: DDP regroups its buckets after the first one, and what was learned of them is lost.
        before: Plan of the step before; returned itself if nothing changes.
    """
    sends = 1.0
    for cf in (directive.cf_candidate, directive.cf_minimum):
        gain = tracker.gain(cf, directive.codec)
        if gain is None:
            passes = directive.epsilon == 0.0 and directive.codec not in measure_first
        else:
            passes = gain >= directive.epsilon
        if passes:
            sends = cf
            break
    if before is not None and before.cf == sends and before.directive == directive:
        return before
    return StepPlan(directive, sends)


def _number(codec: str | None, codecs: Sequence[str]) -> int:
    if codec is not None and codec not in codecs:
        raise ValueError(unknown_codec(codec, codecs))
    return 0 if codec is None else 1 + codecs.index(codec)


def unknown_codec(codec: str, codecs: Sequence[str]) -> str:
    """Return a message about a decision that names a codec which no rank has built."""
    known = ", ".join(codecs) or "none"
    return f"a decision with codec {codec!r}; besides the job's compressor the ranks have {known}"
