"""What a policy is: a pure rule that decides, once a window, which compression factors the ranks use next.

No clock, no I/O, no randomness, and no mathematics beyond + - * / and comparisons: replaying a trace must give the same
decisions, byte for byte, on every platform (promise P7).
"""

import json
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

from pydantic import model_validator

from gravac.protocol import LARGEST_CF, Decision, JobSpec, Override, PolicySpec, Record, WindowReport
from gravac.registry import check_settings

GainDenominator = Literal["compensated", "gradient"]
"""Energy that a gain is a share of: of gradient + residual, or of the raw gradient."""


class Plan(NamedTuple):
    """What all ranks send with: a codec and its strength. ``codec`` None: the job's compressor. CF 1 is dense."""

    codec: str | None
    cf: float


DENSE = Plan(None, 1.0)


class PolicyState(Record):
    """Base of every policy's state. ``decision`` is the one in force, so a state alone can resume a job.

    ``override`` is the operator's order in force, and ``suspended`` the policy's own decision meanwhile. Both belong to
    ``gravac.policies.steering``, which does not ask the policy while they are set.
    """

    decision: Decision
    override: Override | None = None
    suspended: Decision | None = None

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.override is None) != (self.suspended is None):
            raise ValueError("override and suspended go together: give both or neither")
        if self.decision.phase == "fallback":
            raise ValueError(
                "decision.phase must not be 'fallback': only agents enter it, no policy decides it"
            )
        return self


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision, with its reason inside, and the state to pass to the next ``decide``."""

    decision: Decision
    state: PolicyState


class Policy(ABC):
    """A decision rule. Settings are in the instance; all that changes is in the state.

    Derive from ``ConfiguredPolicy`` to choose it by name.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    """Paper and section, or a phrase that says what it is."""
    State: ClassVar[type[PolicyState]]
    examples: ClassVar[tuple[str, ...]] = ()
    """Settings, as ``parse`` reads them behind the colon, with which tests run the policy, besides its defaults."""

    @abstractmethod
    def start(self, epoch: int = 0) -> Verdict:
        """Return the decision that a job begins with (window -1), numbered ``epoch``."""

    @abstractmethod
    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Decide after one window. It never raises for a valid report."""

    @abstractmethod
    def spec(self) -> PolicySpec:
        """Return the name and every setting; ``gravac.policies.build`` makes an equal policy of it."""

    def ladder(self) -> tuple[float, ...]:
        """Return every CF that a decision may name, ascending; empty: any."""
        return ()

    def largest_cf(self) -> float:
        """Return the largest CF that it can choose. An agent refuses a decision above it."""
        ladder = self.ladder()
        return ladder[-1] if ladder else LARGEST_CF

    def codecs(self) -> tuple[str, ...]:
        """Return the codecs or aggregators besides the job's compressor that a decision may name.

        Ranks build all of them before the first step, and refuse a decision that names another one. A decision with the
        job's compressor has ``codec=None``.
        """
        return ()

    def plans(self, compressor: str) -> tuple[Plan, ...]:
        """Return the plans whose cost this policy needs in ``JobSpec.plans``, at most 64; empty: of none.

        Args:
            compressor: The job's.
        """
        return ()

    def fitted(self, spec: JobSpec) -> Self:
        """Return this policy for one job, for a rule that depends on what the job is, such as its optimizer.

        Called before ``start``, and again when the job registers again. The result has an equal ``spec``; it may
        depend on what stays the same when a trace is replayed, so on nothing but the policy's settings and ``spec``.
        """
        return self

    def least_window(self) -> int:
        """Return the steps that a window must have, so that the policy learns from it."""
        return 1

    def check_window(self, steps: int) -> None:
        """Raise ValueError where windows of this many steps are too short."""
        least = self.least_window()
        if steps < least:
            raise ValueError(
                f"window={steps} (GRAVAC_WINDOW) is too short for policy {self.spec().name!r}, which learns from "
                f"windows with at least {least} settled steps: make it {least} or more; the default is 50"
            )

    def smoothing(self, world_size: int) -> float:
        """Return the weight of the newest step in the agents' moving averages of the gain, above 0 and at most 1."""
        return 0.1

    def gain_denominator(self) -> GainDenominator:
        """Return what the agents divide by when they measure the gain that the gate compares with epsilon."""
        return "compensated"


class PolicySettings(Record):
    """Base of every policy's settings. Each field has a description: a sentence with its unit."""

    def fitted(self, spec: JobSpec) -> Self:
        """Return these settings with the CFs that the compressor of a job reaches instead of those asked for."""
        return self


SettingsT = TypeVar("SettingsT", bound=PolicySettings)
StateT = TypeVar("StateT", bound=PolicyState)


class ConfiguredPolicy(Policy, Generic[SettingsT]):
    """A policy with a ``Settings`` model, built from keywords: base of those that are chosen by name.

    Raises:
        ValueError: A setting is unknown or out of range. The message names it, its value and what is allowed.
    """

    Settings: ClassVar[type[PolicySettings]]
    given: SettingsT
    """Settings as the user gave them."""
    settings: SettingsT
    """Settings that decisions follow: fitted to the job."""

    def __init__(self, **given: object) -> None:
        self.given = check_settings("policy", self.name, self.Settings, given)  # type: ignore[assignment]
        self.settings = self.given

    def spec(self) -> PolicySpec:
        return PolicySpec(name=self.name, settings=json.loads(self.given.model_dump_json()))

    def fitted(self, spec: JobSpec) -> Self:
        other = copy(self)
        other.settings = self.given.fitted(spec)
        return other

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.given == self.given

    def __hash__(self) -> int:
        return hash((self.name, self.given))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.given)})"


def narrow(state: PolicyState, expected: type[StateT]) -> StateT:
    """Return ``state`` as the policy's own type. Raises TypeError if it belongs to another policy."""
    if not isinstance(state, expected):
        raise TypeError(f"this policy's state is {expected.__name__}, got {type(state).__name__}")
    return state
