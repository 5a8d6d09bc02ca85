"""Decisions: what the ranks do next and why, and the orders of operators that override policies."""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from gravac.protocol.fields import Choice, CompressionFactor, Count, Ratio, Record, Seconds, Text, WindowSteps

Phase = Literal["warmup", "explore", "hold", "fallback"]
"""warmup: dense, measuring the baseline. explore: climbing the ladder. hold: a CF was chosen.
fallback: dense because the controller is away or a step failed (set by agents only)."""
KnownRule = Literal[
    "start",  # the decision a job begins with
    "warmup",  # still measuring the dense baseline
    "explore",  # first candidate after the baseline
    "climb",  # a stronger CF may win: try it
    "extend",  # too few settled steps to judge: same candidate again
    "no_headroom",  # the network is too small a share of the step for any CF to pay
    "saturated",  # a stronger CF no longer raises T_comp: hold the best
    "too_strong",  # the gain of the candidate is too low: hold the best below it
    "top",  # the ladder ended: hold the best
    "hold",  # nothing changed
    "scale_down",  # the gain in hold fell below epsilon: a weaker CF
    "reexplore",  # step time or gain drifted: measure again
    "fixed",  # the policy follows a schedule, or does not change
    "unusable",  # the window holds no step of the decision in force
    "pinned",  # an operator ordered this CF, or dense
    "paused",  # an operator paused exploring
    "resumed",  # an operator gave the decision back to the policy
]
"""The rules of gravac's own policies and of operators' orders."""
RULES: tuple[str, ...] = get_args(KnownRule)
Rule = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$", examples=[*RULES])]
"""Which rule of the policy fired: one of ``RULES``, or a name that a policy of a plugin gives to its own."""
Throughput = Annotated[float, Field(ge=0, le=1e15)]
"""Samples a second."""


class Candidate(Record):
    """What the policy knows about one plan: a codec and a CF.

    T_sys = ``samples_per_second``. ``useful_samples_per_second`` is what the policy maximizes: T_comp = T_sys · gain
    for ``gravac``, T_sys · efficiency for ``auto``.
    """

    cf: CompressionFactor  # rung of the ladder
    gain: Ratio | None  # as last measured; null: not yet
    samples_per_second: Throughput | None  # T_sys, as measured
    useful_samples_per_second: Throughput | None  # what the policy maximizes, as measured
    window: Count | None  # last window that measured it
    verdict: Literal["untried", "trying", "passed", "too_strong", "chosen"]  # of the policy
    codec: Choice | None = None  # of the plan; null: the job's compressor
    efficiency: Ratio | None = None  # believed: steps dense needs / steps this plan needs; null: not known
    efficiency_error: Ratio | None = None  # by which it may be off; null: not known
    efficiency_steps: Count = 0  # of this job that show it; 0: expected alone
    predicted_samples_per_second: Throughput | None = None  # T_sys, expected; null: measured, or not known


class Trial(Record):
    """What a trial may cost: a step that takes longer ends it, and all ranks then send the plan that it names."""

    step_seconds: Seconds  # a step that takes longer on all ranks ends the trial
    cf: CompressionFactor  # to send then; 1: dense
    codec: Choice | None = None  # to send then; null: the job's compressor


class Decision(Record):
    """What all ranks do next, and why. ``window`` -1: the decision the job began with.

    ``epoch`` grows by one whenever (phase, cf_minimum, cf_candidate, codec) changes or an operator's order begins or
    ends. The ranks send ``cf_candidate`` if its smoothed gain >= ``epsilon``, else ``cf_minimum`` if that passes, else
    dense.
    """

    window: Annotated[int, Field(ge=-1, le=2**53)]  # that it followed
    epoch: Count  # number of the decision
    phase: Phase  # of the search
    cf_minimum: CompressionFactor  # weaker CF, sent when the gain of the candidate is too low
    cf_candidate: CompressionFactor  # CF to send
    epsilon: Ratio  # smallest gain at which a CF is sent
    rule: Rule  # which rule of the policy fired
    reason: Text  # one sentence with its evidence
    candidates: Annotated[tuple[Candidate, ...], Field(max_length=64)] = ()  # what is known about each plan
    codec: Choice | None = None  # to send with; null: the job's compressor
    window_steps: WindowSteps | None = None  # steps of a window under it; null: the job's
    trial: Trial | None = None  # what it may cost; null: it is no trial, or has no price limit

    @property
    def dense(self) -> bool:
        """Whether the ranks compress nothing under it."""
        return self.cf_minimum == self.cf_candidate == 1.0


class WindowAnswer(Record):
    """Answer to ``POST /v1/jobs/{job}/windows``."""

    decision: Decision
    policy_state: str


Actor = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$")]
"""Name of the operator who gives an order: a name or an address, not a proof of identity."""


class Order(Record):
    """An operator's order. Body of ``PUT /v1/jobs/{job}/override``.

    pin: send ``cf``, whatever its gain; no other action takes a ``cf`` or a ``codec``. dense: send everything. pause:
    hold the plan that the policy has chosen, or its minimum while it explores; epsilon still applies. resume: the
    policy decides again and continues where it was.
    """

    action: Literal["pin", "dense", "pause", "resume"]  # what is ordered
    cf: CompressionFactor | None = None  # to pin; null with any other action
    actor: Actor  # name of the operator
    note: Annotated[str, Field(max_length=300)] = ""  # why, in the operator's words
    codec: Choice | None = None  # to pin: of the job or of its policy; null: the one in force

    @model_validator(mode="after")
    def _cf_with_pin(self) -> Self:
        if (self.cf is None) == (self.action == "pin"):
            raise ValueError("cf must be given with pin, and with nothing else")
        if self.codec is not None and self.action != "pin":
            raise ValueError("codec must be given with nothing but pin")
        return self


class Override(Order):
    """An accepted order, as journaled. See ``gravac.policies.steering``.

    ``epoch``: of the decision in force when the order was given, which the operator had seen.
    """

    epoch: Count  # of the decision that the operator had seen
