"""Every record that crosses a process, once: REST bodies, journal lines and trace lines are these models (and the
orders of operators, ``gravac.protocol.orders``).

Strict (no coercion), frozen, no unknown fields, no NaN or infinity. Unknown values are ``null``, never 0.
Parse wire text with ``Model.model_validate_json``; write it with ``model_dump_json``: both are
deterministic, so equal records are equal bytes. Sums are over ranks unless a field says otherwise.
"""

from typing import Annotated, Literal, get_args

from pydantic import Field

from gravac.protocol.detail import StepDetail
from gravac.protocol.fields import (
    Bytes,
    Choice,
    CompressionFactor,
    Count,
    Energy,
    Name,
    Ratio,
    Record,
    Seconds,
    Settings,
    Text,
)
from gravac.protocol.spread import Spread

SCHEMA = 3
"""Version of these records. A reader refuses a larger one and upgrades a smaller one (``gravac.traces.upgrades``).

It grows with every field, even one that has a default: records take no unknown fields, so an older reader would
otherwise complain about the field, and not say that the trace is newer than itself.
"""

Phase = Literal["warmup", "explore", "hold", "fallback"]
"""warmup: dense, measuring the baseline. explore: climbing the ladder. hold: settled.
fallback: dense because the controller is away or a step failed (only ever set by the agents)."""
KnownRule = Literal[
    "start",  # the decision a job begins with
    "warmup",  # still measuring the dense baseline
    "explore",  # first candidate after the baseline
    "climb",  # the candidate passed and paid: try the next rung
    "extend",  # too few settled steps to judge: same candidate again
    "no_headroom",  # the network is too small a share of the step for any CF to pay
    "saturated",  # a stronger CF no longer raises T_comp: settled on the best
    "too_strong",  # the candidate keeps too little: settled on the best below it
    "top",  # the ladder ended: settled on the best
    "hold",  # nothing changed
    "scale_down",  # the gain in hold fell below epsilon: one rung down
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
"""Which rule of the policy fired: one of ``RULES``, or a name that a policy of a plugin gives to its own.

Also the ``reason`` label of the decisions metric; see ``rule_label``.
"""
OTHER_RULE = "other"


def rule_label(rule: str) -> str:
    """Return ``rule`` if it is one of ``RULES``, else ``OTHER_RULE``, so that counts by rule stay bounded."""
    return rule if rule in RULES else OTHER_RULE


class PolicySpec(Record):
    """A policy by name with every setting resolved, so that a trace replays without defaults."""

    name: Name  # of the policy: gravac, static, dense, …
    settings: Settings = Field({})  # by name, as `docs/settings.md` lists them


class LinkSpec(Record):
    """An emulated link (pacing in the collective layer). Absent when the network is the real one."""

    bits_per_second: Annotated[float, Field(gt=0, le=1e15)]  # of each rank's way out
    latency_seconds: Seconds = 0.0  # of each collective


class Environment(Record):
    """Where the job runs; for people, never for decisions."""

    python: Text  # version
    torch: Text  # version
    gravac: Text  # version
    platform: Text  # operating system
    backend: Text  # of the process group: gloo, nccl
    device: Text  # of the model's parameters
    revision: Text | None = None  # of the git checkout that the trainer's script is in


class ModelShape(Record):
    """Summary of the wrapped module. ``elements``: trainable elements = gradient elements a step."""

    name: Text  # class of the wrapped module
    tensors: Count  # how many of them are trained
    elements: Count  # trained = gradient elements a step


class JobSpec(Record):
    """What a job is. First line of its journal; body of ``POST /v1/jobs``.

    ``incarnation`` changes each time the trainer starts; ``policy_state`` carries a resumed policy
    (the JSON a previous ``WindowAnswer`` gave) or is null for a fresh start. ``settings``: what the agent was told
    besides, for people, never for decisions.
    """

    job: Name  # name; also of the folder of its journal
    incarnation: Name  # one start of the trainer
    world_size: Annotated[int, Field(ge=1, le=1_000_000)]  # ranks
    window_steps: Annotated[int, Field(ge=1, le=1_000_000)]  # steps between decisions
    policy: PolicySpec  # the rule that decides
    compressor: Choice  # codec or aggregator
    memory: Choice  # error memory
    model: ModelShape  # what is trained
    environment: Environment  # where it runs
    link: LinkSpec | None = None  # emulated network; null: the real one
    first_window: Count = 0  # number of the next window
    policy_state: Annotated[str, Field(max_length=200_000)] | None = None  # of a resumed policy; else null
    settings: Settings | None = None  # the agent's other settings


class GainSums(Record):
    """Raw squared norms over the steps of one level, summed over ranks and steps.

    g: this step's raw gradient; p = g + residual before sending; sent: what left the rank;
    residual: what is owed after sending. ``minimum_sq``/``candidate_sq``: energy that compressing p to the
    level's CF would send (both measured while exploring; equal in hold). Non-finite steps are left out.
    ``mean_sq``: ‖mean over ranks of g‖², known of the ``mean_steps`` plainly dense steps only; ``mean_gradient_sq``:
    sum of ‖g‖² over the same steps. Both are for the gradient diversity, see ``gravac.signals.diversity``.
    """

    steps: Count  # finite ones
    gradient_sq: Energy  # ‖g‖²
    compensated_sq: Energy  # ‖p‖²
    sent_sq: Energy  # ‖sent‖²
    minimum_sq: Energy  # energy sent at the minimum CF
    candidate_sq: Energy  # energy sent at the candidate CF
    residual_sq: Energy  # ‖residual‖²
    residual_dot_gradient: Annotated[float, Field(ge=-1e300, le=1e300)]  # ⟨residual, g⟩
    mean_steps: Count = 0  # plainly dense ones
    mean_sq: Energy = 0.0  # ‖mean of g‖² over those
    mean_gradient_sq: Energy = 0.0  # ‖g‖² over those


class LevelSums(Record):
    """Steps of one window that sent the same CF under the same decision (epoch).

    ``settled_steps``: steps after the first few at this level; their median duration on rank 0 is
    ``step_seconds_median`` (null when there is none), of which ``exposed_seconds_median`` is the part the step
    waited for the network (communicate phase). ``cf`` 1 = dense.
    """

    epoch: Count  # of the decision
    cf: CompressionFactor  # that was sent
    steps: Count  # at this CF
    settled_steps: Count  # of those, after the first few
    step_seconds_median: Seconds | None  # of settled steps on rank 0; null: there is none
    exposed_seconds_median: Seconds | None  # of which waiting for the network
    dense_bytes: Bytes  # what dense would have handed over, all ranks
    payload_bytes: Bytes  # what was handed over, all ranks
    sums: GainSums  # for gains


class PhaseSeconds(Record):
    """Where the wall time of a window's steps went, critical path only, so the five add up to the whole.

    compress/communicate/decompress count only what the step waited for after backward ended; work hidden behind
    backward is in compute. compute also holds the optimiser and anything else.
    """

    data_wait: Seconds  # for the next batch
    compute: Seconds  # forward, backward, optimiser
    compress: Seconds  # encoding
    communicate: Seconds  # waiting for the network
    decompress: Seconds  # decoding


class RankRow(Record):
    """One rank's share of a window."""

    rank: Count  # from 0
    steps: Count  # of this window
    step_seconds: Seconds  # sum over the window's steps
    phases: PhaseSeconds  # sums over the steps
    samples: Count  # this rank's own
    nonfinite_steps: Count  # with NaN or infinity
    failed_steps: Count  # compression raised
    memory_bytes: Bytes  # held by the error memory
    agent_cpu_seconds: Seconds | None = None  # CPU time of the thread that encodes, sends and decodes


class SmoothedGain(Record):
    """Ratio of moving averages at one CF, as the ranks' gate sees it at the end of the window."""

    cf: CompressionFactor  # minimum or candidate
    gain: Ratio  # share of energy kept


class GainCurve(Record):
    """What the largest n/CF elements of each bucket would have kept, over ``steps`` steps and all ranks.

    ``gains[i]``: at least the gain at CF 10^(i/20), so CFs 1 to 1000; null when there was nothing to send. ``own``: the
    job's codec sends just these elements, so this is its own curve; else it is Top-k's. It holds for the residual of
    those steps.
    """

    steps: Count  # surveyed ones
    own: bool  # whether it is the codec's own curve
    gains: Annotated[tuple[Ratio | None, ...], Field(min_length=61, max_length=61)]  # at CF 10^(i/20)


class WindowReport(Record):
    """What rank 0 tells the controller once a window. Raw sums, so other signals can be computed later."""

    job: Name  # name
    incarnation: Name  # as registered
    window: Count  # counted from 0 over the whole job, without gaps
    first_step: Count  # from 0 over the whole job
    last_step: Count  # inclusive
    epoch: Count  # decision in force at the last step
    phase: Phase  # what the ranks were doing at the last step
    cf: CompressionFactor  # sent at the last step, after the gate
    seconds: Seconds  # wall time of the window on rank 0
    samples: Count  # all ranks
    dense_bytes: Bytes  # what dense would have handed to collectives, all ranks
    payload_bytes: Bytes  # what was handed over, all ranks, indices included
    loss: Annotated[float, Field(ge=-1e300, le=1e300)] | None  # mean of those logged; null: none was
    nonfinite_steps: Count  # skipped: a gradient was not finite on some rank
    failed_steps: Count  # sent nothing: compression failed on some rank
    levels: Annotated[tuple[LevelSums, ...], Field(max_length=64)]  # one for each CF sent under one decision
    gains: Annotated[tuple[SmoothedGain, ...], Field(max_length=64)]  # as the gate saw them at the end
    phases: PhaseSeconds  # mean over ranks
    spread: Spread | None = None  # of times over all ranks; null: not known
    ranks: Annotated[tuple[RankRow, ...], Field(max_length=1024)]  # as many as the agent was told to list
    curve: GainCurve | None = None  # null: no step of the window was surveyed
    steps: StepDetail | None = None  # one by one, in the trace only; null: not listed


class Candidate(Record):
    """What the policy knows of one CF. T_sys = ``samples_per_second``; T_comp = ``useful_samples_per_second``."""

    cf: CompressionFactor  # rung of the ladder
    gain: Ratio | None  # as last measured; null: not yet
    samples_per_second: Annotated[float, Field(ge=0, le=1e15)] | None  # T_sys
    useful_samples_per_second: Annotated[float, Field(ge=0, le=1e15)] | None  # T_comp
    window: Count | None  # last window that measured it
    verdict: Literal["untried", "trying", "passed", "too_strong", "chosen"]  # of the policy


class Decision(Record):
    """What all ranks do next, and why. ``window`` -1: the decision the job began with.

    ``epoch`` grows by one whenever (phase, cf_minimum, cf_candidate) changes or an operator's order begins or ends,
    else it stays. The ranks send
    ``cf_candidate`` if its smoothed gain >= ``epsilon``, else ``cf_minimum`` if that passes, else dense.
    """

    window: Annotated[int, Field(ge=-1, le=2**53)]  # that it followed
    epoch: Count  # number of the decision
    phase: Phase  # of the search
    cf_minimum: CompressionFactor  # weaker CF, sent where the candidate keeps too little
    cf_candidate: CompressionFactor  # CF to send
    epsilon: Ratio  # least gain at which a CF is sent
    rule: Rule  # which rule of the policy fired
    reason: Text  # one sentence with its evidence
    candidates: Annotated[tuple[Candidate, ...], Field(max_length=64)] = ()  # what is known of each CF

    @property
    def dense(self) -> bool:
        """Whether the ranks compress nothing under it."""
        return self.cf_minimum == self.cf_candidate == 1.0


class Event(Record):
    """Something that happened to a job besides its windows, for people and for the fault list."""

    kind: Literal[
        "registered", "restarted", "gap", "override", "fallback", "recovered", "nonfinite", "failed", "note"
    ]  # what happened
    window: Count | None  # in which; null: in none
    message: Text  # for people


class End(Record):
    """The trainer closed its agent; no window follows under this incarnation."""

    incarnation: Name  # that ended
    windows: Count  # of the whole job
    steps: Count  # of the whole job
    message: Text  # how it ended


class JobAnswer(Record):
    """Answer to ``POST /v1/jobs``: the decision in force and the first window the controller lacks."""

    job: Name
    next_window: Count
    decision: Decision
    policy_state: str


class WindowAnswer(Record):
    """Answer to ``POST /v1/jobs/{job}/windows``."""

    decision: Decision
    policy_state: str
