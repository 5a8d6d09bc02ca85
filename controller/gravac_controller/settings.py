"""Settings of the controller. Each can be set by an environment variable ``GRAVAC_CONTROLLER_<NAME>``.

The agents' token is ``GRAVAC_TOKEN``, as for the agents, or a file. Tokens are never arguments, so that no process list
shows them.
"""

import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from gravac.protocol import Name

DEFAULT_PORT = 8756
SNAPSHOT_WINDOWS = 600
SNAPSHOT_DECISIONS = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """What one controller takes at most, and how long it waits. Nobody has needed others, so they are no
    settings; tests make smaller ones.

    Attributes:
        max_jobs: Jobs at most; more are refused with 429.
        max_body_bytes: Largest request body. A window that lists 1,024 ranks takes about 400,000 bytes.
        request_seconds: Time limit of the body of a request.
        head_seconds: Time limit of the head of a request; then the connection is closed.
        history_windows: Windows of a job in memory; older ones are read from the journal on request.
        history_bytes: Approximate bytes of windows and decisions in memory, all jobs together. Beyond that the job that
            has been silent for longest drops its oldest ones, which are then read from its journal.
        history_rank_rows: Most ranks whose rows windows in memory keep; in larger jobs only the latest window does. The
            journal keeps all rows.
        metrics_max_ranks: Most ranks of a job that has series per rank in /metrics.
        metrics_max_rank_series: Ranks with their own series in /metrics, all jobs together. The oldest jobs that fit
            have them.
        metrics_silent_seconds: Silence after which a job leaves /metrics; REST and the page keep it.
        max_streams: Event streams at once; an open page takes one. More get a 503, so that agents find a free
            connection.
        max_reads_per_second: Reading requests a second from one client address, on average over 10 seconds; more get a
            429.
        max_changes_per_second: Changing requests a second for one job, on average over 10 seconds; more get a 429, and
            agents retry later.
        stream_interval_seconds: Least time between two deliveries to one event stream.
        stream_ping_seconds: Interval of keep-alive comments on an idle event stream.
        stall_seconds: Time without a byte taken of its answer after which a client's connection is closed.
        stale_seconds: Silence after which a job is stale, or 5 times its last window if longer.
    """

    max_jobs: int = 1000
    max_body_bytes: int = 786_432
    request_seconds: float = 20.0
    head_seconds: float = 10.0
    history_windows: int = 1000
    history_bytes: int = 256 << 20
    history_rank_rows: int = 16
    metrics_max_ranks: int = 256
    metrics_max_rank_series: int = 4096
    metrics_silent_seconds: float = 86_400.0
    max_streams: int = 256
    max_reads_per_second: float = 1000.0
    max_changes_per_second: float = 100.0
    stream_interval_seconds: float = 0.5
    stream_ping_seconds: float = 15.0
    stall_seconds: float = 30.0
    stale_seconds: float = 30.0


usual_limits = Limits()
"""Limits of a new controller."""


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
    job: Name | None = Field(
        default=None,
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
        description="Token that agents need to report; it also allows reading everything. null: reporting needs no "
        "token (loopback only).",
    )
    control_token: SecretStr | None = Field(
        default=None,
        description="Token that operators need to pin a CF, go dense, pause or resume. It must differ from the agents' "
        "token. null: nothing can be steered over HTTP.",
    )
    owner_may_steer: bool = Field(
        default=False,
        description="Whether the owner of the data folder may steer: the control token (generated if none was given) "
        "is written there to a file that only the owner can read, for `gravac steer`.",
    )
    look_needs_token: bool | None = Field(
        default=None,
        description="Whether reading (page, API, metrics) needs one of the tokens; null: only where the address is not "
        "loopback.",
    )
    journal_part_bytes: int = Field(
        default=16 << 20,
        ge=1 << 16,
        le=1 << 30,
        description="Size in bytes at which a job's journal continues in a new part; the full part is compressed.",
    )
    journal_keep_bytes: int = Field(
        default=8 << 30,
        ge=0,
        description="Bytes on disk of a job's full parts; beyond that the oldest are deleted. The job continues, but "
        "its trace then begins later.",
    )
    max_connections: int = Field(
        default=512,
        ge=1,
        description="Requests and event streams at once. More get a 503, but a report or a request with a token "
        "replaces a reading one without a token. 64 more connections may wait for their next request; beyond that the "
        "oldest waiting ones are closed.",
    )

    _limits: Limits = PrivateAttr(default_factory=lambda: usual_limits)

    @property
    def limits(self) -> Limits:
        """What the process takes at most: constants, which no variable sets."""
        return self._limits

    def with_limits(self, **changes: Any) -> Self:
        """Return these settings with other limits."""
        copy = self.model_copy()
        copy._limits = replace(self._limits, **changes)
        return copy

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
            raise ValueError("look_needs_token: needs GRAVAC_TOKEN, without which anyone may report")
        if self.token is not None and self.token == self.control_token:
            raise ValueError("control_token: must differ from GRAVAC_TOKEN, which every agent holds")
        return self

    def with_control_token(self) -> "ControllerSettings":
        """Return the settings with a generated control token, where the owner may steer and none was given."""
        if not self.owner_may_steer or self.control_token is not None:
            return self
        return self.model_copy(update={"control_token": SecretStr(secrets.token_urlsafe(32))})
