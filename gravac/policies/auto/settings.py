"""Settings and state of the auto policy."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from gravac.policies.auto.plans import read
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
            "with 3, some of these also with Huffman coding, topk+bf16 from CF 10, and topk+twobit under "
            "gravac.optim. If you name another compressor, the plans are that one from CF 2."
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
    """What this job measured of a plan.

    ``fresh``: its times are of today's network and computation. ``efficiency``: η by the newest ``steps`` that showed
    it, the last of them in window ``shown``; ``confirmed``: ρ then. ``failures``: how often it left the bound; it is
    not taken again before window ``barred``. ``tenth``: share of the energy in the largest tenth of the elements, in
    the first window under it since a plan was last left. ``until``: it is not tried before this window, as its trial
    gave no settled step.
    """

    codec: Choice | None
    cf: CompressionFactor
    step_seconds: Seconds = 0.0
    exposed_seconds: Seconds = 0.0
    window: Count = 0
    fresh: bool = False
    efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    steps: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    shown: Count = 0
    confirmed: Annotated[float, Field(ge=0, le=1)] | None = None
    failures: Count = 0
    barred: Count = 0
    tenth: Annotated[float, Field(ge=0, le=1)] | None = None
    until: Count = 0

    @property
    def plan(self) -> Plan:
        return Plan(self.codec, self.cf)


class Coding(Record):
    """Coding time of a codec: measured / expected."""

    family: str
    ratio: Annotated[float, Field(ge=0, le=100)]


Number = Annotated[float, Field(ge=-1e12, le=1e12)]
Share = Annotated[float, Field(ge=0, le=1)]


class Beliefs(Record):
    """What the job has shown of itself and its network.

    ``noise``: relative noise of a window's step time. ``reference``: step seconds of the held plan; null until
    measured; ``reference_exposed``: of it waiting for the network. ``off``: windows in a row whose times are off the
    reference, all of them ``slower`` or all faster. ``waiting``, ``per_byte`` and ``line_error``: wait of a step that
    no plan avoids, seconds per byte, and their relative error, as two plans last determined them; null before.
    ``largest``: most bytes that a measured plan has put on a link of this network in a step. ``confirmed``: ρ, the part
    of the mean gradient that is not noise; null: not known. ``raw_mean_sq`` and ``raw_dot_next``: sums of all windows
    until it was known, as in ``gravac.protocol.GainSums``. ``gradient``: energy of one step's gradients in the last
    window, under SGD; null: not known. ``elapsed``: seconds of all windows with a step under the decision in force.
    ``spent``: what trials took more than the plans held before them would have.
    """

    seen: Annotated[tuple[Seen, ...], Field(max_length=64)] = ()
    codings: Annotated[tuple[Coding, ...], Field(max_length=64)] = ()
    noise: Share = NOISE
    reference: Seconds | None = None
    reference_exposed: Seconds = 0.0
    off: Count = 0
    slower: bool = False
    waiting: Number | None = None
    per_byte: Annotated[float, Field(ge=0, le=1e9)] | None = None
    line_error: Share = 0.0
    largest: Annotated[float, Field(ge=0, le=1e18)] = 0.0
    confirmed: Share | None = None
    raw_mean_sq: Energy = 0.0
    raw_dot_next: Annotated[float, Field(ge=-1e300, le=1e300)] = 0.0
    gradient: Energy | None = None
    elapsed: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    spent: Annotated[float, Field(ge=0, le=1e12)] = 0.0


class AutoState(PolicyState):
    """What the policy remembers besides the decision in force: beliefs, and where its search stands.

    ``waited``: windows in a row without a settled step of the plan that is to be measured. ``trials``: plans tried in
    this search. ``outside``: windows in a row that showed the plan in force outside the bound. ``unlooked``: windows in
    hold since dense steps were last looked at. ``looks``: how often they were. ``held_codec``, ``held_cf`` and
    ``held_seconds``: the plan that a trial goes back to and its step; 0 seconds: not measured.
    """

    beliefs: Beliefs = Beliefs()
    waited: Count = 0
    trials: Count = 0
    outside: Count = 0
    unlooked: Count = 0
    looks: Count = 0
    held_codec: Choice | None = None
    held_cf: CompressionFactor = 1.0
    held_seconds: Seconds = 0.0

    @property
    def held(self) -> Plan:
        """The plan that a trial goes back to."""
        return Plan(self.held_codec, self.held_cf)
