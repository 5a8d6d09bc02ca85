"""Settings and state of the auto policy."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from gravac.policies.auto.space import read
from gravac.policies.base import Plan, PolicySettings, PolicyState
from gravac.protocol import Choice, CompressionFactor, Count, Record, Seconds
from gravac.protocol.fields import Energy
from gravac.signals import risk

NOISE = 0.02
"""Relative noise of a window's median step time, until it was measured. [share; chosen]"""


class AutoSettings(PolicySettings):
    """The loss that you accept, and the plans that the policy may choose."""

    bound: Annotated[float, Field(ge=0, le=1)] = Field(
        default=risk.ACCEPTED,
        description=(
            "Largest loss of statistical efficiency that you accept, 0 to 1: 0.02 allows 2 % more steps to the same "
            "loss. Above 0.04 it applies only to plans that you list, because others that lose more seldom reach the "
            "loss in the planned number of steps."
        ),
    )
    plans: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(max_length=60)
    ] = Field(
        default=(),
        description=(
            "Plans to choose from besides dense, as codec@CF and separated by slashes: "
            "nearest:levels=7/topk+bf16@100. Write ; instead of , in the settings of a codec. A codec with one size "
            "needs no CF. Empty: 16 and 8 bits, nearest with 39 to 2 levels, dither with 7 to 3, dither-subtractive "
            "with 3, some of these also with Huffman coding, and topk+bf16 from CF 10. If you name another compressor, "
            "the plans are that one from CF 2."
        ),
    )

    @field_validator("plans", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value

    @field_validator("plans")
    @classmethod
    def _readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        found = [read(text) for text in value]
        for place, plan in enumerate(found):
            if plan in found[:place]:
                raise ValueError(f"{value[place]!r} is listed twice")
        return value


class Seen(Record):
    """A plan as last measured. ``fresh``: since the step time last moved, so that it compares with the others."""

    codec: Choice | None
    cf: CompressionFactor
    step_seconds: Seconds
    exposed_seconds: Seconds
    efficiency: Annotated[float, Field(gt=0, le=1)] | None
    window: Count
    fresh: bool

    @property
    def plan(self) -> Plan:
        return Plan(self.codec, self.cf)


class Coding(Record):
    """Coding time of a codec: measured / prior."""

    family: str
    ratio: Annotated[float, Field(ge=0, le=100)]


class Rest(Record):
    """A plan that lost: not tried before window ``until``; 0: the rest is over.

    ``windows``: length of the rest, doubled each time. ``gain``: share of energy in the largest tenth of the elements
    when it lost; null: not known.
    """

    codec: Choice | None
    cf: CompressionFactor
    until: Count
    windows: Count
    gain: Annotated[float, Field(ge=0, le=1)] | None

    @property
    def plan(self) -> Plan:
        return Plan(self.codec, self.cf)


Number = Annotated[float, Field(ge=-1e12, le=1e12)]


class AutoState(PolicyState):
    """What the policy remembers besides the decision in force.

    ``waited``: windows in a row without a settled step of the plan that is to be measured. ``trials``: plans tried in
    this search. ``reference``: step seconds of the held plan; null until measured. ``reference_exposed``: seconds of it
    waiting for the network. ``noise``: relative noise of a window's step time. ``off``: windows in a row whose times
    are off the reference, all of them ``slower`` or all faster. ``outside``: windows in a row whose efficiency is
    outside the bound, those not counted whose times are off. ``fitting``: windows in a row in which another plan is
    predicted to win. ``severity``: measured loss of efficiency / expected one. ``confirmed``: part of the mean gradient
    that is not noise; null: not known. ``raw_mean_sq`` and ``raw_dot_next``: sums of all windows until it was known, as
    in ``gravac.protocol.GainSums``. ``gradient``: energy of one step's gradients in the last window, under SGD;
    null: not known. ``waiting`` and ``per_byte``: line of the time model as last fitted to two plans; null before.
    ``freed``: steps became faster, and dense was not measured since. ``unlooked``: windows in hold since it was last
    measured only to see whether the network became faster. ``looks``: how often it was.
    """

    seen: Annotated[tuple[Seen, ...], Field(max_length=64)] = ()
    codings: Annotated[tuple[Coding, ...], Field(max_length=64)] = ()
    resting: Annotated[tuple[Rest, ...], Field(max_length=64)] = ()
    waited: Count = 0
    trials: Count = 0
    reference: Seconds | None = None
    reference_exposed: Seconds = 0.0
    noise: Annotated[float, Field(ge=0, le=1)] = NOISE
    off: Count = 0
    slower: bool = False
    outside: Count = 0
    fitting: Count = 0
    severity: Annotated[float, Field(ge=0, le=100)] = 1.0
    confirmed: Annotated[float, Field(ge=0, le=1)] | None = None
    raw_mean_sq: Energy = 0.0
    raw_dot_next: Annotated[float, Field(ge=-1e300, le=1e300)] = 0.0
    gradient: Energy | None = None
    waiting: Number | None = None
    per_byte: Annotated[float, Field(ge=0, le=1e9)] | None = None
    freed: bool = False
    unlooked: Count = 0
    looks: Count = 0
