"""Settings, ladder and state of the GraVAC policy, shared by its two variants."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from gravac.policies.base import GainDenominator, PolicySettings, PolicyState
from gravac.protocol import CompressionFactor, Count, Decision, JobSpec, Ratio, Record, Seconds

EPSILON = 0.3
"""Default of ``epsilon``. The paper's 0.7 and 0.9 do not fit the gain it prints; how this one was chosen from
measurements is in ``docs/gravac.md``."""

LadderName = Literal["exponential", "geometric"]
MAX_RUNGS = 60
"""The most rungs that a ladder may have, as decisions list every one."""

Share = Annotated[float, Field(ge=0, le=1)]

PresetName = Literal["none", "paper", "paper-geometric", "paper-randomk"]
_PUBLISHED: Mapping[str, Any] = {
    "variant": "paper",
    "epsilon": 0.7,
    "omega": 0.01,
    "smoothing": None,
    "denominator": "gradient",
}
PRESETS: Mapping[PresetName, Mapping[str, Any]] = {
    "none": {},
    "paper": {**_PUBLISHED, "ladder": "exponential", "cf_min": 10.0, "cf_max": 1000.0},
    "paper-geometric": {**_PUBLISHED, "ladder": "geometric", "cf_min": 10.0, "cf_max": 2000.0},
    "paper-randomk": {**_PUBLISHED, "ladder": "geometric", "cf_min": 1.5, "cf_max": 1000.0},
}
"""Published settings of GraVAC's experiments (its section IV) by name; ``docs/gravac.md`` says what they reproduce."""


def exponential(cf_min: float, cf_max: float) -> tuple[float, ...]:
    """cf_min times 1, 2, 2², 2⁴, 2⁸, …, capped at cf_max (GraVAC §III-C): 10, 20, 40, 160, 1000."""
    rungs, multiplier = [cf_min], 2.0
    while rungs[-1] < cf_max:
        rungs.append(min(cf_min * multiplier, cf_max))
        multiplier *= multiplier
    return tuple(rungs)


def geometric(cf_min: float, cf_max: float) -> tuple[float, ...]:
    """cf_min, doubled until cf_max, which is the last rung (GraVAC §III-C): 10, 20, 40, …, 640, 1000."""
    rungs = [cf_min]
    while rungs[-1] < cf_max:
        rungs.append(min(rungs[-1] * 2.0, cf_max))
    return tuple(rungs)


@lru_cache(maxsize=64)  # asked for in every window
def rungs(ladder: LadderName | tuple[float, ...], cf_min: float, cf_max: float) -> tuple[float, ...]:
    """Return the rungs above dense, ascending.

    They are absolute and fixed for the run. The printed algorithm multiplies by its minimum, which rises, and so it
    drifts to factors that nobody evaluated.

    Raises:
        ValueError: They are not above 1 and strictly ascending, or not 1 to 60.
    """
    if isinstance(ladder, tuple):
        made = ladder
    else:
        if not 1.0 < cf_min <= cf_max:
            raise ValueError(f"cf_min must be above 1 and at most cf_max, got {cf_min:g} and {cf_max:g}")
        made = exponential(cf_min, cf_max) if ladder == "exponential" else geometric(cf_min, cf_max)
    if not 1 <= len(made) <= MAX_RUNGS:
        raise ValueError(f"ladder must have 1 to {MAX_RUNGS} rungs, got {len(made)}")
    if any(lower >= upper for lower, upper in zip((1.0, *made), made, strict=False)):
        raise ValueError(f"ladder must ascend strictly from above 1 (dense is always there), got {made}")
    return made


class GravacSettings(PolicySettings):
    """The CFs that GraVAC may choose, and how it compares them."""

    variant: Literal["fixed", "paper"] = Field(
        default="fixed", description="fixed: the algorithm without its defects; paper: as printed."
    )
    ladder: (
        LadderName | Annotated[tuple[CompressionFactor, ...], Field(min_length=1, max_length=MAX_RUNGS)]
    ) = Field(
        default="exponential",
        description=(
            "exponential (cf_min times 1, 2, 4, 16, 256, up to cf_max), geometric (doubling), or the CFs "
            "themselves, ascending. Dense is always a candidate."
        ),
    )
    cf_min: CompressionFactor = Field(
        default=10.0, description="First rung: the weakest compression factor tried. Not used with a list."
    )
    cf_max: CompressionFactor = Field(
        default=1000.0, description="Last rung: the strongest compression factor tried. Not used with a list."
    )
    epsilon: Share = Field(
        default=EPSILON,
        description="Least gain (energy sent / energy of gradient + residual) at which a CF is sent.",
    )
    omega: Share = Field(
        default=0.01,
        description=(
            "Gains that differ by less than this (relative) count as equal, and the minimum moves up. T_comp that "
            "differ by less count as equal, and the lower CF is held."
        ),
    )
    smoothing: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=0.1,
        description=(
            "Weight of the newest step in the moving averages of the gain. The agents use it, not the policy. "
            "null: ranks/100, at most 1, as in the paper."
        ),
    )
    warmup_windows: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=2, description="Dense windows at the start, the last of which is the baseline. Fixed variant."
    )
    baseline: Literal["uncompressed", "any"] = Field(
        default="uncompressed",
        description=(
            "Dense steps that make the baseline. uncompressed: only those that compressed nothing; any: also those "
            "that the gate sent dense after compressing, which are slower. Fixed variant."
        ),
    )

    retry_windows: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=4,
        description=(
            "Windows after a search before hold tries a stronger CF again. The wait doubles after each failed try, up "
            "to 16 times. There is no wait if the curve promises clearly more than at the last try. Fixed variant."
        ),
    )
    denominator: GainDenominator = Field(
        default="compensated",
        description=(
            "What the gain divides the energy sent by. compensated: the energy of gradient + residual, as in the "
            "paper; gradient: that of the raw gradient, as in its released code, at most 1. The agents use it, too."
        ),
    )

    preset: PresetName = Field(
        default="none",
        description=(
            "Defaults of the other settings. none: those listed here; paper, paper-geometric and paper-randomk: those "
            "of the GraVAC paper (variant=paper, epsilon 0.7, omega 1 %, smoothing of ranks/100, gain of the raw "
            "gradient; CF 10 to 1000 exponential, 10 to 2000 and 1.5 to 1000 geometric). A setting that you give wins."
        ),
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rungs(self.ladder, self.cf_min, self.cf_max)
        if self.variant == "paper" and isinstance(self.ladder, tuple):
            raise ValueError(
                "ladder must be exponential or geometric for the paper variant, whose factors are relative"
            )
        return self

    def fitted(self, spec: JobSpec) -> Self:
        """The paper variant stays as it is: its factors are relative."""
        reached = {spec.reached(None, cf) for cf in self.rungs} - {1.0}
        if self.variant == "paper" or not reached or not spec.sizes_of(None):
            return self
        return self.model_copy(update={"ladder": tuple(sorted(reached))})

    @property
    def rungs(self) -> tuple[float, ...]:
        """All CFs that it may choose: dense first, ascending."""
        return (1.0, *rungs(self.ladder, self.cf_min, self.cf_max))


class Reference(Record):
    """What the held CF gave when it was first measured. Drift is the distance from it.

    ``exposed_seconds``: of a step, waiting for the network; null: not known.
    """

    window: Count
    samples_per_second: Annotated[float, Field(ge=0, le=1e15)]
    gain: Ratio
    exposed_seconds: Seconds | None = None


class Left(Record):
    """The rung above the CF that is held, when it was left or not chosen.

    ``promised``: gain that the curve gave it then; null without a curve.
    """

    cf: CompressionFactor
    promised: Ratio | None


class PaperSearch(Record):
    """The search in progress, or the last one.

    ``since``: first window whose measurements it compares. ``held``: CF held when it began; null: it began with a dense
    baseline. ``waited``: windows in hold since it ended. ``misses``: searches in a row that ended where they began, and
    steps down. ``free_rate``: samples/s of a dense step without its wait for the network; null: not known.
    """

    since: Count = 0
    held: CompressionFactor | None = None
    waited: Count = 0
    misses: Count = 0
    free_rate: Annotated[float, Field(ge=0, le=1e15)] | None = None
    left: Left | None = None


class GravacState(PolicyState):
    """What the policy remembers besides the decision in force, whose ``candidates`` hold all measurements.

    ``warmup_left``: dense windows still to come. ``extended``: extra windows the candidate has had.
    ``reference``: null until the held level was measured. ``drifting``: windows in a row off the reference.
    ``multiplier``: the paper variant's candidate relative to its minimum; null in the fixed variant.
    ``low``: windows in a row in which the gain of the held CF was below epsilon. ``fitting``: windows in a row in which
    a stronger CF could win. ``promising``: windows in a row in which the curve promised it clearly more than at the end
    of the last search. ``freed``: windows in a row whose wait for the network was clearly below the reference.
    ``looking``: the CF that was held until dense steps were measured again, which is in progress; null: it is not.
    ``looks``: such measurements in a row that changed nothing. ``unlooked``: windows in hold since the last one.
    ``elapsed``: seconds of all windows. ``spent``: what trials took more than the CFs held before them would have.
    ``held_seconds``: step of the CF that the trial in force goes back to.
    """

    warmup_left: Count
    extended: Count
    reference: Reference | None
    drifting: Count
    multiplier: Annotated[float, Field(gt=0, le=1e9)] | None
    low: Count = 0
    fitting: Count = 0
    promising: Count = 0
    search: PaperSearch = PaperSearch()
    freed: Count = 0
    looking: CompressionFactor | None = None
    looks: Count = 0
    unlooked: Count = 0
    elapsed: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    spent: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    held_seconds: Seconds = 0.0

    @classmethod
    def beginning(cls, decision: Decision, warmup_left: int, multiplier: float | None) -> "GravacState":
        """Return the state in which nothing is measured yet."""
        return cls(
            decision=decision,
            warmup_left=warmup_left,
            extended=0,
            reference=None,
            drifting=0,
            multiplier=multiplier,
        )
