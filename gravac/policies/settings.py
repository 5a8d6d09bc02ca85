"""How a policy gets its settings: a frozen model, checked strictly, resolved in full into the job's spec."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import ValidationError

from gravac.policies.base import PolicyState
from gravac.protocol import PolicySpec, Record
from gravac.wording import did_you_mean, first_problem

LARGEST_CF = 1e9
"""The most that a record can hold (``gravac.protocol.CompressionFactor``)."""
StateT = TypeVar("StateT", bound=PolicyState)


class PolicySettings(Record):
    """Base of every policy's settings."""

    before: ClassVar[Mapping[str, Any]] = {}
    """Settings added after journals were first written, and what was done until then: a recorded spec that lacks one
    means that."""


SettingsT = TypeVar("SettingsT", bound=PolicySettings)


class Configured(Generic[SettingsT]):
    """Constructor from keywords, ``spec`` and equality, shared by all policies.

    A subclass sets ``name`` and ``Settings``. ``Policy(cf=0)`` raises ValueError naming the setting, the value
    and what is allowed.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[PolicySettings]]
    settings: SettingsT

    def __init__(self, **given: object) -> None:
        self.settings = resolve(self.name, self.Settings, given)  # type: ignore[assignment]

    def largest_cf(self) -> float:
        """The largest CF that this policy can choose: any, unless a subclass says otherwise."""
        return LARGEST_CF

    def spec(self) -> PolicySpec:
        """Name and every setting resolved, as plain JSON values."""
        return PolicySpec(name=self.name, settings=json.loads(self.settings.model_dump_json()))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.settings == self.settings

    def __hash__(self) -> int:
        return hash((self.name, self.settings))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.settings)})"


def resolve(policy: str, model: type[PolicySettings], given: dict[str, Any]) -> PolicySettings:
    """Check ``given``. Raises ValueError naming policy, setting, value and what is allowed."""
    unknown = sorted(set(given) - set(model.model_fields))
    if unknown:
        allowed = ", ".join(model.model_fields) or "none"
        hint = did_you_mean(unknown[0], model.model_fields)
        raise ValueError(
            f"policy {policy}: no setting named {unknown[0]!r}{hint}. Its settings are: {allowed}."
        )
    try:
        # Through JSON, so that a spec read from a trace and keywords typed in Python obey one set of rules.
        return model.model_validate_json(json.dumps(given))
    except TypeError as error:
        raise ValueError(f"policy {policy}: settings must be numbers, texts or lists: {error}") from None
    except ValidationError as error:
        where = error.errors()[0]["loc"]
        field = model.model_fields.get(str(where[0])) if where else None
        meaning = f". Meaning: {field.description}" if field and field.description else ""
        raise ValueError(f"policy {policy}, setting {first_problem(error)}{meaning}") from None


def narrow(state: PolicyState, expected: type[StateT]) -> StateT:
    """The state as this policy's own type. Raises TypeError when it belongs to another policy."""
    if not isinstance(state, expected):
        raise TypeError(f"this policy's state is {expected.__name__}, got {type(state).__name__}")
    return state
