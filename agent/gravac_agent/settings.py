"""Settings of the agent: keyword argument, else ``GRAVAC_<NAME>`` in the environment, else the default."""

import os
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from gravac import aggregators, memories, policies
from gravac.protocol import MAX_LISTED_STEPS, Choice
from gravac.wording import did_you_mean, validator_message
from gravac_agent.errors import SetupError
from gravac_agent.network import link

OTHER_KEYWORDS = ("module", "optimizer", "scaler")
"""Keywords of ``Agent`` that are no settings."""
SECRET = ("token",)
"""Settings whose value no message shows."""
_RECORDED = TypeAdapter(Choice)


def spelled(text: str) -> str:
    """A choice by name as records hold it: without blanks. Raises ValueError for what cannot be recorded."""
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
    # Not there: wrong itself, and said so.
    aggregators.parse(info.data.get("compressor", "topk"), name := spelled(text))
    return name


def _known_memory(text: str) -> str:
    memories.build(name := spelled(text))
    return name


def _known_policy(text: str) -> str:
    policies.parse(text)
    return text


def _link(text: str) -> str:
    link.parse(text)
    return text


def _controller(text: str) -> str:
    if text not in ("auto", "none") and not text.startswith("http://"):
        raise ValueError("must be auto, none, or an address such as http://host:8756")
    return text.rstrip("/")


class AgentSettings(BaseSettings):
    """How the agent behaves. All ranks must have the same values; a difference is an error at start."""

    model_config = SettingsConfigDict(env_prefix="GRAVAC_", frozen=True, extra="forbid")

    enabled: bool = Field(True, description="False: plain DDP, nothing is registered, nothing is started.")
    compressor: Annotated[str, AfterValidator(_known_compressor)] = Field(
        "topk+bf16",
        description="Codec or aggregator: a name, or name:setting=value,setting=value. `gravac codecs` lists them. The "
        "default sends 16-bit values, so that CF 10 is 15 on the wire; what rounding leaves stays owed.",
    )
    memory: Annotated[str, AfterValidator(_known_memory)] = Field(
        "residual", description="Error memory: a name, or name:setting=value,setting=value."
    )
    collective: Annotated[str, AfterValidator(_known_collective)] = Field(
        "auto",
        description="How the payloads of a codec meet. auto: the way that is quickest by the network, which is "
        "measured at the start where there are more than 2 ranks. gather, reduce-scatter, shared, "
        "shared:leader=largest, all-reduce: that one. Linear codecs and aggregators have a way of their own.",
    )
    policy: Annotated[str, AfterValidator(_known_policy)] = Field(
        "gravac", description="Decision rule: a name, or name:setting=value,… such as static:cf=100."
    )
    window: int = Field(
        50, ge=1, le=1_000_000, description="Steps between decisions. Smaller reacts faster, noisier."
    )
    controller: Annotated[str, AfterValidator(_controller)] = Field(
        "auto",
        description="auto: rank 0 starts one on this machine. http://…: use that one. none: decide in process.",
    )
    job: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$",
        description="Name of the job; default: script name and start time.",
    )
    data_dir: Path = Field(Path("gravac-runs"), description="Folder of the journals, one folder per job.")
    page_port: int = Field(
        0, ge=0, le=65535, description="Port of a controller started by the agent; 0: any free one."
    )
    link: Annotated[str, AfterValidator(_link)] = Field(
        "none",
        description="Emulate a slow link, such as 100mbit, by pacing collectives; none: the real network.",
    )
    kernels: Literal["auto", "cpu", "reference"] = Field(
        "auto",
        description="Hot loops. auto: compiled where numba works (it comes with the extra `cpu`), else plain torch, "
        "several times slower; results are the same. cpu or reference: that one.",
    )
    seed: int = Field(0, ge=0, le=2**31, description="Seed of codecs that draw, shared by all ranks.")
    nonfinite: Literal["skip", "propagate"] = Field(
        "skip",
        description="A step with a NaN or infinite gradient on any rank. skip: the optimiser step does nothing on all "
        "ranks. propagate: the optimiser gets it, as plain DDP would. Either way the error memory stays clean.",
    )
    rescale: bool = Field(
        True,
        description="When the learning rate or the loss scale changes, scale what is owed, so that it is applied "
        "as it was computed. False: leave it.",
    )
    settle_steps: int = Field(
        3, ge=0, le=1000, description="Steps after a change of CF left out of step times."
    )
    fallback_windows: int = Field(
        3,
        ge=1,
        le=1000,
        description="Windows without an answer from the controller before all ranks go dense.",
    )
    max_cf: float = Field(
        1000.0,
        ge=1,
        le=1e9,
        description="Largest compression factor that an operator may pin. The agent obeys no decision above it, nor "
        "above what its policy can choose.",
    )
    request_seconds: float = Field(
        2.0, gt=0, le=60, description="Total deadline of one request to the controller."
    )
    agreement_seconds: float = Field(
        300.0,
        gt=0,
        le=86400,
        description="How long ranks wait for each other in the agent's own collectives.",
    )
    rank_rows: int = Field(
        1024,
        ge=0,
        le=1024,
        description="How many ranks a window's report lists one by one, from rank 0 on. It always says how times "
        "spread over all of them; fewer rows keep the journal of a large job small, and the page shows fewer ranks.",
    )
    step_rows: int = Field(
        0,
        ge=0,
        le=MAX_LISTED_STEPS,
        description="How many steps a window's report lists one by one, the newest of the window; 0: none. For looking "
        "inside windows: each costs the journal about 200 bytes, and nothing is decided by it.",
    )
    log_to_stderr: bool = Field(
        True,
        description="Where the program has configured no logging, rank 0 shows its lines (logger gravac.agent) on "
        "stderr: the page's address at the start, what was sent at the end. False: only warnings are shown, as by any "
        "library.",
    )
    steering: Literal["off", "owner"] = Field(
        "off",
        description="Who may steer the job at a controller started by the agent. off: nobody. owner: the owner of the "
        "data folder, with `gravac pin`, `dense`, `pause` and `resume`.",
    )
    token: str | None = Field(None, description="Token of a controller that asks for one.", repr=False)

    def described(self) -> dict[str, Any]:
        """For the job's trace: all that does not stand there already, and neither secrets nor places."""
        elsewhere = {"enabled", "compressor", "memory", "policy", "window", "job", "link"}
        return self.model_dump(
            mode="json",
            exclude=elsewhere | {"token", "data_dir", "controller", "page_port", "steering", "log_to_stderr"},
        )


def load(**given: Any) -> AgentSettings:
    """Settings from keyword arguments (None: not given) and the environment.

    Raises SetupError with one sentence per wrong value, naming the keyword or variable it came from. Warns about
    ``GRAVAC_`` variables that are no settings.
    """
    known = set(AgentSettings.model_fields)
    if unknown := sorted(set(given) - known):
        hints = [f"{name!r}{did_you_mean(name, known | set(OTHER_KEYWORDS))}" for name in unknown]
        raise SetupError(f"Agent has no keyword {', '.join(hints)}; docs/settings.md lists them all")
    chosen = {name: value for name, value in given.items() if value is not None}
    try:
        settings = AgentSettings(**chosen)
    except ValidationError as error:
        raise SetupError("; ".join(_wrong(each, chosen) for each in error.errors())) from None
    if settings.steering != "off" and settings.controller != "auto":
        raise SetupError(
            f"steering={settings.steering!r} is for a controller that the agent starts, and "
            f"controller={settings.controller!r}: start that one with `gravac serve --owner-may-steer` and leave "
            "steering (GRAVAC_STEERING) out"
        )
    for name in sorted(os.environ):
        if name.startswith("GRAVAC_") and not _read_by_us(name):
            hint = did_you_mean(name, [field.upper() for field in known], prefix="GRAVAC_")
            warnings.warn(f"environment variable {name!r} is not a setting of gravac{hint}", stacklevel=3)
    return settings


def _wrong(error: ErrorDetails, chosen: dict[str, Any]) -> str:
    """One wrong value, blamed on the keyword or the variable that it came from."""
    field, message = ".".join(map(str, error["loc"])), validator_message(error["msg"])
    value = "" if field in SECRET else f"={error['input']!r:.100}"
    if field in chosen:
        return message if message.startswith(f"{field}=") else f"{field}{value}: {message}"
    names = [name for name in os.environ if name.upper() == _variable(field)]
    return f"{names[0] if names else _variable(field)}{value}: {message}"


def _variable(field: str) -> str:
    return f"GRAVAC_{field.upper()}"


def _read_by_us(variable: str) -> bool:
    """Whether an agent reads it, or a controller, which checks the names of its own variables itself."""
    field = variable.removeprefix("GRAVAC_").lower()
    return field in AgentSettings.model_fields or variable.startswith("GRAVAC_CONTROLLER_")
