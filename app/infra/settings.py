"""All settings, read once from the environment by whoever starts the process, then handed down as values.

A wrong one stops the start and names itself (`SettingsError`). `RONDO_` stands before all but the
few that other tools share.
"""

import base64
import binascii
import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")

SHARED_NAMES = frozenset(
    {
        "DATABASE_URL", "REDIS_URL", "HOST", "PORT",
        "OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL",
    }
)  # fmt: skip
"""Read without the prefix, as other tools name them."""


class SettingsError(Exception):
    """A setting is wrong. The text names it and says why, without its value."""


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    # where things are
    database_url: str | None = None
    redis_url: str | None = None
    data_dir: Path = Path(".rondo")
    pg_bin: Path | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080

    # who may
    admin_key: str | None = None
    service_key: str | None = None
    encryption_keys: str | None = None
    allow_private_webhooks: bool | tuple[Network, ...] = False
    cors_origins: tuple[str, ...] = ()

    # model APIs
    openai_api_key: str | None = None
    openai_base_url: str = "https://api.openai.com/v1"
    anthropic_api_key: str | None = None
    anthropic_base_url: str = "https://api.anthropic.com"
    model_attempts: Annotated[int, Field(ge=1, le=10)] = 4
    model_first_token_seconds: Annotated[float, Field(gt=0)] = 120.0
    model_idle_seconds: Annotated[float, Field(gt=0)] = 60.0
    model_retry_seconds: Annotated[float, Field(gt=0)] = 0.5
    model_retry_after_seconds: Annotated[float, Field(ge=0)] = 30.0

    default_context_window: Annotated[int, Field(ge=200)] = 128_000

    # the history and memories
    history_token_budget: Annotated[int, Field(ge=100, le=2_000_000)] = 8000
    history_keep_recent_turns: Annotated[int, Field(ge=1, le=1000)] = 6
    history_summary_model: Annotated[str, Field(pattern=r"^[^/\s]+/\S+$")] | None = None
    memory_read: bool = True
    memory_write: bool = True
    memory_max_tokens: Annotated[int, Field(ge=0, le=100_000)] = 800
    memory_model: Annotated[str, Field(pattern=r"^[^/\s]+/\S+$")] | None = None
    distill_idle_minutes: Annotated[float, Field(ge=0)] = 15.0

    # redaction (section 8); the dictionary is a JSON list
    redaction_enabled: bool = False
    redaction_entities: tuple[str, ...] | None = None
    redaction_dictionary: str | None = None
    redaction_names: bool = False

    # defaults of a run (section 4)
    model: str | None = None
    max_iterations: Annotated[int, Field(ge=1, le=50)] = 7
    on_cap: Literal["answer", "stop"] = "answer"
    empty_streak_after: Annotated[int, Field(ge=0, le=50)] = 2
    empty_streak_hint: str | None = None
    result_keys: tuple[str, ...] = ("items", "results", "matches", "passages", "data")
    max_tool_result_chars: Annotated[int, Field(ge=100, le=1_000_000)] = 16_000
    parallel_tools: Annotated[int, Field(ge=1, le=32)] = 4
    empty_nudge: bool = True
    empty_reply: str | None = None
    deadline_seconds: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    pending_seconds: Annotated[float, Field(gt=0)] = 86_400.0
    max_tokens_total: Annotated[int, Field(ge=1)] | None = None

    # agents
    prices: str | None = None
    subscription_failures: Annotated[int, Field(ge=0)] = 20
    subscription_failing_seconds: Annotated[float, Field(ge=0)] = 3600.0
    delivery_days: Annotated[int, Field(ge=1)] = 30
    agent_failures: Annotated[int, Field(ge=0)] = 5
    firing_days: Annotated[int, Field(ge=1)] = 90

    # what the operator adds
    hooks: str | None = None

    # durability
    event_ttl_seconds: Annotated[int, Field(ge=1)] = 86_400
    event_buffer_bytes: Annotated[int, Field(ge=10_000)] = 1_000_000
    event_buffer_total_bytes: Annotated[int, Field(ge=100_000)] = 64_000_000
    redis_timeout_seconds: Annotated[float, Field(gt=0)] = 2.0
    database_timeout_seconds: Annotated[float, Field(gt=0)] = 20.0
    lease_seconds: Annotated[float, Field(ge=1)] = 15.0
    heartbeat_seconds: Annotated[float, Field(gt=0)] = 1.0
    sweep_seconds: Annotated[float, Field(gt=0)] = 5.0
    drain_seconds: Annotated[float, Field(ge=0)] = 10.0
    idempotency_ttl_seconds: Annotated[int, Field(ge=60)] = 86_400

    # limits: a process's own, then those that all processes share
    max_concurrent_runs: Annotated[int, Field(ge=1)] = 500
    max_streams: Annotated[int, Field(ge=1)] = 2_000
    max_workspace_streams: Annotated[int, Field(ge=1)] | None = None
    max_queued_runs: Annotated[int, Field(ge=0)] = 1_000
    max_session_queued_runs: Annotated[int, Field(ge=0)] = 100
    max_workspace_runs: Annotated[int, Field(ge=1)] | None = None
    requests_per_second: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    request_burst: Annotated[int, Field(ge=1, le=1_000_000)] | None = None

    # how it speaks
    unknown_names: tuple[str, ...] = ()
    worker_metrics_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "text"] = "auto"

    @field_validator("allow_private_webhooks", mode="before")
    @classmethod
    def _networks(cls, value: Any) -> Any:
        if not isinstance(value, str) or value.lower() in {"true", "false"}:
            return value.lower() == "true" if isinstance(value, str) else value
        parts = [part.strip() for part in value.split(",")]
        try:
            return tuple(ipaddress.ip_network(part, strict=False) for part in parts if part)
        except ValueError:
            raise ValueError("true, false or networks like 10.0.0.0/8 are expected, several with commas") from None

    @field_validator("cors_origins", "result_keys", "redaction_entities", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(origin == "*" or _ORIGIN.fullmatch(origin) for origin in value):
            raise ValueError("scheme://host or scheme://host:port is expected, several with commas, or * for any")
        return value

    @field_validator("openai_base_url", "anthropic_base_url")
    @classmethod
    def _base_url(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("an http or https address is expected")
        return value.rstrip("/")

    @field_validator("encryption_keys")
    @classmethod
    def _keys(cls, value: str | None) -> str | None:
        if value is not None:
            parse_encryption_keys(value)
        return value

    @field_validator("admin_key", "service_key")
    @classmethod
    def _long_enough(cls, value: str | None) -> str | None:
        if value is not None and (len(value) < 16 or not value.isascii() or any(c.isspace() for c in value)):
            raise ValueError("at least 16 ASCII characters without spaces are expected")
        return value


def parse_encryption_keys(text: str) -> dict[str, bytes]:
    """`id:base64,…` to ids and 32-byte keys; the first is the one that encrypts."""
    keys: dict[str, bytes] = {}
    for part in text.split(","):
        key_id, _, encoded = part.strip().partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            key = b""
        if not key_id or len(key) != 32 or key_id in keys:
            raise ValueError("id:base64 pairs are expected, with different ids and keys of 32 bytes")
        keys[key_id] = key
    return keys


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the environment once. Empty values count as unset."""
    source = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for name, value in source.items():
        if value == "":
            continue
        if name in SHARED_NAMES:
            values[name.lower()] = value
        elif name.startswith("RONDO_"):
            field = name.removeprefix("RONDO_").lower()
            values[field] = value
            if field not in Settings.model_fields:
                unknown.append(name)
                del values[field]
    try:
        return Settings.model_validate({**values, "unknown_names": tuple(unknown)})
    except ValidationError as error:
        raise SettingsError("; ".join(_complaint(item) for item in error.errors())) from None


def _complaint(item: Any) -> str:
    name = str(item["loc"][0]).upper()
    shown = name if name in SHARED_NAMES else f"RONDO_{name}"
    return f"{shown}: {item['msg'].removeprefix('Value error, ')}"
