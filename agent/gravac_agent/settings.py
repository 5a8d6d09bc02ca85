"""Settings of the agent: a keyword of ``Agent``, else the variable ``GRAVAC_<NAME>``, else the default."""

import functools
import inspect
import os
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, ParamSpec

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from gravac import aggregators, memories, policies
from gravac.protocol import NAME_RULE, Choice, Name
from gravac.wording import did_you_mean, validator_message
from gravac_agent import sinks
from gravac_agent.errors import SetupError
from gravac_agent.network import link

SECRET = ("token",)
"""Settings whose value no message shows."""
_RECORDED, _NAME = TypeAdapter(Choice), TypeAdapter(Name)
P = ParamSpec("P")


class Default(Enum):
    """Type of ``DEFAULT``: a keyword that was not given, where None has a meaning already."""

    DEFAULT = "the variable in the environment, else the default"

    def __repr__(self) -> str:
        return self.name


DEFAULT: Final = Default.DEFAULT


def spelled(text: str) -> str:
    """Return a choice by name as records hold it, without blanks. Raises ValueError for what cannot be recorded."""
    cleaned = "".join(text.split())
    try:
        return _RECORDED.validate_python(cleaned) if cleaned else cleaned
    except ValidationError:
        raise ValueError(
            "write a name, or name:setting=value,setting=value, in at most 200 letters, digits and . _ - : = , / +"
        ) from None


def _known_compressor(text: str) -> str:
    aggregators.parse(name := spelled(text))
    return name


def _known_collective(text: str, info: ValidationInfo) -> str:
    # A wrong compressor is missing here and has an error of its own.
    aggregators.parse(info.data.get("compressor", "topk"), name := spelled(text))
    return name


def _known_memory(text: str) -> str:
    memories.build(name := spelled(text))
    return name


def _known_policy(text: str) -> str:
    policies.parse(text)
    return text


def _as_text(levels: object) -> object:
    return str(levels) if type(levels) is int else levels


def _known_levels(text: str) -> str:
    known = ("auto", "flat", "host")
    if text in known or (text.isascii() and text.isdecimal() and 2 <= int(text) <= 2**20):
        return text
    raise ValueError(
        "must be 'auto', 'flat', 'host', or a number of ranks from 2 on that divide a bucket"
        f"{did_you_mean(text, known)}"
    )


def _known_sink(text: str) -> str:
    sinks.parse(text)
    return text


def _link(text: str) -> str:
    link.parse(text)
    return text


def _controller(text: str) -> str:
    if text not in ("auto", "none") and not text.startswith("http://"):
        host = text.removeprefix("https://")  # a controller speaks no TLS
        hint = f" (did you mean 'http://{host}'?)" if re.fullmatch(r"[\w.-]+:[0-9]+/?", host) else ""
        raise ValueError(f"must be auto, none, or an address such as http://host:8756{hint}")
    return text.rstrip("/")


def _job(name: str | None) -> str | None:
    try:
        return name if name is None else _NAME.validate_python(name)
    except ValidationError:
        raise ValueError(f"write {NAME_RULE}") from None


class AgentSettings(BaseSettings):
    """How the agent behaves; ``Agent`` says what each setting means. All ranks need the same values."""

    model_config = SettingsConfigDict(env_prefix="GRAVAC_", frozen=True, extra="forbid")

    enabled: bool = True
    compressor: Annotated[str, AfterValidator(_known_compressor)] = "topk+bf16"
    memory: Annotated[str, AfterValidator(_known_memory)] = "residual"
    collective: Annotated[str, AfterValidator(_known_collective)] = "auto"
    policy: Annotated[str, AfterValidator(_known_policy)] = "auto"
    window: int = Field(50, ge=1, le=1_000_000)
    controller: Annotated[str, AfterValidator(_controller)] = "auto"
    job: Annotated[str | None, AfterValidator(_job)] = None
    data_dir: Path = Path("gravac-runs")
    page_port: int = Field(0, ge=0, le=65535)
    link: Annotated[str, AfterValidator(_link)] = "none"
    levels: Annotated[str, BeforeValidator(_as_text), AfterValidator(_known_levels)] = "auto"
    nonfinite: Literal["skip", "propagate"] = "skip"
    agreement_seconds: float = Field(300.0, gt=0, le=86400)
    adapt_optimizer: bool = False
    sink: Annotated[str, AfterValidator(_known_sink)] = "none"
    steering: Literal["off", "owner"] = "off"
    token: str | None = Field(None, repr=False)

    def described(self) -> dict[str, Any]:
        """Return the settings for the job's trace: no secrets, no places, and nothing that it records elsewhere."""
        elsewhere = {"enabled", "compressor", "memory", "policy", "window", "job", "link"}
        return self.model_dump(
            mode="json",
            exclude=elsewhere | {"token", "data_dir", "controller", "page_port", "steering", "sink"},
        )


def load(**given: Any) -> AgentSettings:
    """Read the settings from keyword arguments (None and ``DEFAULT``: not given) and the environment.

    Raises:
        SetupError: With a sentence for each wrong value, which names the keyword or variable that it came from. Also
            for a ``GRAVAC_`` variable that is not a setting: the job would run with a default in its place.
    """
    for name in sorted(os.environ):
        if name.upper().startswith("GRAVAC_") and not _is_read(name.upper()):
            known = [field.upper() for field in AgentSettings.model_fields]
            raise SetupError(
                f"environment variable {name!r} is not a setting of gravac"  # its value may be a secret
                f"{did_you_mean(name, known, prefix='GRAVAC_')}: correct or unset it; docs/settings.md lists them"
            )
    chosen = {name: value for name, value in given.items() if value is not None and value is not DEFAULT}
    for name, value in chosen.items():
        if isinstance(value, bool) and not isinstance(_default(name), bool):
            raise SetupError(f"{name}={value}: must not be True or False{_such_as(name)}")
    try:
        settings = AgentSettings(**chosen)
    except ValidationError as error:
        raise SetupError("; ".join(_wrong(each, chosen) for each in error.errors())) from None
    if settings.steering != "off" and settings.controller != "auto":
        raise SetupError(
            f"steering={settings.steering!r} needs a controller that the agent starts, and "
            f"controller={settings.controller!r}: start that one with `gravac serve --owner-may-steer` and leave "
            "steering (GRAVAC_STEERING) out"
        )
    return settings


_ALIASES = {
    "codec": "compressor=",
    "model": "module=",
    "url": "controller=",
    "cf": "policy='static:cf=…'",
    "ratio": "policy='static:cf=…'",
}
"""What an argument is called in other places."""


def keywords_checked(init: Callable[P, None]) -> Callable[P, None]:
    """Let an ``__init__`` raise SetupError, with the closest name, for an argument that it does not have."""
    parameters = inspect.signature(init).parameters
    named = [name for name, param in parameters.items() if param.kind is param.KEYWORD_ONLY]
    first = len(parameters) - len(named)

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        for name in kwargs.keys() - parameters.keys():
            hint = (
                f" (did you mean {_ALIASES[name]}?)" if name in _ALIASES else did_you_mean(name, parameters)
            )
            raise SetupError(
                f"{name}={kwargs[name]!r:.100}: Agent has no such argument{hint}; docs/settings.md lists them"
            )
        for name in list(parameters)[len(args) : first]:
            if name not in kwargs:
                raise SetupError(f"{name} is missing: write Agent(module, optimizer)")
        if len(args) > first:
            raise SetupError(
                f"Agent has two arguments without a name, module and optimizer, and got {args[first]!r:.100} as well: "
                "name it, such as compressor='topk'"
            )
        init(*args, **kwargs)

    return checked


def _wrong(error: ErrorDetails, chosen: dict[str, Any]) -> str:
    """Return what is wrong with one value, and the keyword or variable that it came from."""
    field, message = ".".join(map(str, error["loc"])), validator_message(error["msg"])
    if error["type"] == "string_type":
        message = f"must be a text{_such_as(field)}"
    value = "" if field in SECRET else f"={error['input']!r:.100}"
    if field in chosen:
        return message if message.startswith(f"{field}=") else f"{field}{value}: {message}"
    names = [name for name in os.environ if name.upper() == _variable(field)]
    return f"{names[0] if names else _variable(field)}{value}: {message}"


def _default(field: str) -> object:
    return AgentSettings.model_fields[field].default if field in AgentSettings.model_fields else None


def _such_as(field: str) -> str:
    default = _default(field)
    return "" if default is None else f", write for example {default!r}, the default"


def _variable(field: str) -> str:
    return f"GRAVAC_{field.upper()}"


def _is_read(variable: str) -> bool:
    """Return whether an agent reads the variable, or ``gravac.kernels``, or a controller, which checks its own names.

    Kubernetes sets some in each pod beside a service of the name ``gravac``.
    """
    name = variable.removeprefix("GRAVAC_")
    ours = name.lower() in AgentSettings.model_fields or name in ("OBSERVE", "KERNELS")
    others = r"CONTROLLER_.*|SERVICE_(HOST|PORT.*)|PORT(_[0-9]+_(TCP|UDP).*)?"
    return ours or re.fullmatch(others, name) is not None
