"""Settings of the controller. Each can be set by an environment variable ``GRAVAC_CONTROLLER_<NAME>``.

The agents' token is ``GRAVAC_TOKEN``, shared with them, or a file; tokens are never arguments, so that no process list
shows them.
"""

import secrets
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from gravac_controller.api.access import Access
from gravac_controller.hosts import is_loopback

DEFAULT_PORT = 8756
SNAPSHOT_WINDOWS = 600
SNAPSHOT_DECISIONS = 200


class ControllerSettings(BaseSettings):
    """How one controller process serves. Raises pydantic.ValidationError naming the field."""

    model_config = SettingsConfigDict(
        env_prefix="GRAVAC_CONTROLLER_",
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        env_ignore_empty=True,
    )

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on. 127.0.0.1: this machine only. Any other needs a token.",
    )
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535, description="TCP port; 0 takes a free one.")
    data_dir: Path = Field(
        default=Path("gravac-runs"),
        description="Folder of the journals: one folder a job, journal.jsonl in it.",
    )
    job: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$",
        description="Serve this one job only, so that several controllers can share a data folder; null: all.",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Names or addresses, without port, by which browsers and agents may call this server besides "
        "localhost and the address it listens on.",
    )
    token: SecretStr | None = Field(
        default=None,
        validation_alias="GRAVAC_TOKEN",
        description="What agents must show to report, and opens everything there is to look at; null: reporting needs "
        "no token (loopback only).",
    )
    control_token: SecretStr | None = Field(
        default=None,
        description="What operators must show to pin a CF, go dense, pause or resume; null: nothing can be steered "
        "over HTTP. Another than the agents' token.",
    )
    owner_may_steer: bool = Field(
        default=False,
        description="Whether the owner of the data folder may steer: the control token (one is made if none was "
        "given) is left there in a file that only they can read, for `gravac pin` and its like.",
    )
    look_needs_token: bool | None = Field(
        default=None,
        description="Whether looking (page, API, metrics) needs one of the tokens; null: where the address is not "
        "loopback.",
    )
    max_body_bytes: int = Field(
        default=786_432,
        ge=1024,
        description="Largest request body, in bytes. A window that lists 1,024 ranks takes about 400,000.",
    )
    request_seconds: float = Field(
        default=20.0,
        gt=0,
        description="Longest time that the body of a request may take to arrive, in seconds.",
    )
    head_seconds: float = Field(
        default=10.0,
        gt=0,
        description="Longest time that the head of a request may take to arrive, in seconds; then the connection is "
        "closed.",
    )
    max_jobs: int = Field(default=1000, ge=1, description="Jobs held at once; more are refused with 429.")
    journal_part_bytes: int = Field(
        default=16 << 20,
        ge=1 << 16,
        le=1 << 30,
        description="A job's journal goes on in a new part when the one being written has so many bytes; the full one "
        "is compressed.",
    )
    journal_keep_bytes: int = Field(
        default=8 << 30,
        ge=0,
        description="Bytes on disk of a job's full parts; beyond it the oldest are deleted. The job goes on, but its "
        "trace then begins later.",
    )
    history_windows: int = Field(
        default=1000,
        ge=SNAPSHOT_WINDOWS,
        description="Windows per job kept in memory; older ones are read from the journal when asked for.",
    )
    history_bytes: int = Field(
        default=256 << 20,
        ge=1 << 20,
        description="About how many bytes of windows and decisions all jobs together keep in memory. Beyond it the job "
        "not heard of for longest forgets its oldest, which are then read from its journal.",
    )
    history_rank_rows: int = Field(
        default=16,
        ge=0,
        description="Windows in memory keep their rank rows up to this many ranks; beyond it only the latest "
        "window does. The journal keeps all rows.",
    )
    metrics_max_ranks: int = Field(
        default=256, ge=0, description="Jobs of more ranks than this have no series per rank in /metrics."
    )
    metrics_max_rank_series: int = Field(
        default=4096,
        ge=0,
        description="Ranks with series of their own in /metrics, all jobs together: the oldest jobs that fit have "
        "them.",
    )
    metrics_silent_seconds: float = Field(
        default=86_400.0,
        gt=0,
        description="A job of which nothing was heard for this many seconds leaves /metrics; REST and the page keep "
        "it.",
    )
    max_connections: int = Field(
        default=512,
        ge=1,
        description="Requests and event streams at once. More are answered 503; a report or a request with a token "
        "takes the place of one without that only looks. Of connections without a whole request 64 more are kept; "
        "beyond, those silent for longest are closed.",
    )
    max_streams: int = Field(
        default=256,
        ge=1,
        description="Event streams at once, which are what an open page costs; more are answered 503, so that agents "
        "find a free connection.",
    )
    max_reads_per_second: float = Field(
        default=1000.0,
        ge=1,
        description="Requests a second that one client's address may look with, on average over 10 seconds; more are "
        "answered 429.",
    )
    max_changes_per_second: float = Field(
        default=100.0,
        ge=1,
        description="Requests a second that may change one job, on average over 10 seconds; more are answered 429, "
        "and agents try again later.",
    )
    stream_interval_seconds: float = Field(
        default=0.5,
        ge=0,
        le=60,
        description="Least time between two deliveries to one event stream, in seconds.",
    )
    stream_ping_seconds: float = Field(
        default=15.0, gt=0, le=600, description="An idle event stream gets a comment this often, in seconds."
    )
    stream_stall_seconds: float = Field(
        default=30.0,
        gt=0,
        description="A stream whose reader takes nothing for this long is closed, in seconds.",
    )
    stale_seconds: float = Field(
        default=30.0,
        gt=0,
        description="A job is stale without a report for this many seconds or 5 times its last window, if longer.",
    )
    linger_seconds: float = Field(
        default=0.0, ge=0, description="With --with-parent: seconds to go on after the parent has gone."
    )

    @field_validator("token", "control_token")
    @classmethod
    def _token_is_long(cls, token: SecretStr | None) -> SecretStr | None:
        if token is None:
            return None
        text = token.get_secret_value()
        if len(text) < 16 or not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError(
                "needs at least 16 printable ASCII characters without spaces, for example the output of: "
                "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        return token

    @model_validator(mode="after")
    def _two_roles(self) -> Self:
        if self.look_needs_token and self.token is None:
            raise ValueError("look_needs_token: needs GRAVAC_TOKEN, without which anybody may even report")
        if self.token is not None and self.token == self.control_token:
            raise ValueError("control_token: must be another than GRAVAC_TOKEN, which every agent holds")
        return self

    def with_control_token(self) -> "ControllerSettings":
        """The same, with a control token made where the owner may steer and none was given."""
        if not self.owner_may_steer or self.control_token is not None:
            return self
        return self.model_copy(update={"control_token": SecretStr(secrets.token_urlsafe(32))})

    def access(self) -> Access:
        """Who may do what, from the tokens and the address."""
        beyond = not is_loopback(self.host) if self.look_needs_token is None else self.look_needs_token
        return Access(
            agent_token=None if self.token is None else self.token.get_secret_value(),
            control_token=None if self.control_token is None else self.control_token.get_secret_value(),
            open_to_look=not beyond,
        )
