"""What a provider said went wrong -> `ProviderError`. Pure, shared by all clients.

Providers disagree on statuses and codes: a prompt that is too long comes as 400, 413, 429 or inside a 200, used-up credits
as 400, 402, 403 or 429. So the words are read too, and a status decides only what they leave open.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from app.loop.cleaning import clean_text
from app.providers.client import ProviderError, ProviderErrorKind

MAX_MESSAGE_CHARS = 500
_READ_CHARS = 8000
_SHORTEST_SECRET = 6

_OVERFLOW_CODES = frozenset(
    {
        "context_length_exceeded",
        "context_window_exceeded",
        "context_limit_exceeded",
        "exceed_context_size_error",
        "model_context_window_exceeded",
        "max_context_length_exceeded",
        "prompt_too_long",
        "request_too_large",
    }
)
_CREDIT_CODES = frozenset(
    {
        "insufficient_quota",
        "insufficient_credits",
        "insufficient_balance",
        "insufficient_funds",
        "billing_hard_limit_reached",
        "billing_not_active",
        "billing_error",
        "exceeded_current_quota_error",
    }
)
_BUSY_CODES = frozenset(
    {"rate_limit_exceeded", "rate_limit_error", "overloaded_error", "engine_overloaded_error", "resource_exhausted"}
)
_AUTH_CODES = frozenset(
    {"invalid_api_key", "authentication_error", "permission_error", "permission_denied", "unauthenticated"}
)
_REJECTED_CODES = frozenset(
    {"invalid_request_error", "invalid_request", "invalid_argument", "not_found_error", "model_not_found", "not_found"}
)
_RETRIED_STATUSES = frozenset({402, 408, 409, 425, 429})

_OVERFLOW = re.compile(
    r"maximum (?:context|prompt|input) length"
    r"|(?:exceed|larger than|beyond|too (?:long|large|big) for)[^.]{0,60}context[ _-]?(?:length|window|size|limit)"
    r"|context[ _-]?(?:length|window|size|limit)[^.]{0,40}(?:exceed|overflow|too (?:long|large|small)|reached)"
    r"|(?:prompt|input|conversation|messages?|request) (?:is|are|was|were) too (?:long|large)\b"
    r"|(?:prompt|input|conversation) too (?:long|large)\b"
    r"|(?:prompt|input)[^.]{0,60}tokens?[^.]{0,60}(?:exceed|too large|larger than|more than|greater than)"
    r"|(?:input|prompt) (?:token count|length)[^.]{0,60}exceed"
    r"|exceed(?:s|ed)?[^.]{0,40}(?:model token limit|maximum number of (?:input )?tokens|max(?:imum)? message tokens)"
    r"|tokens? in (?:the )?(?:request|prompt)[^.]{0,60}(?:exceed|more than|larger than)"
    r"|too many (?:input |prompt )?tokens\b[^.]{0,60}(?:prompt|exceed|maximum|context|\d{4})"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input|conversation)"
    r"|range of input length should be"
    r"|(?:request|body) too large for [^.]{0,60}max size:? ?\d+ tokens"
    r"|\d{3,}\D{1,30}tokens?\D{0,30}>\D{0,10}\d{3,}",
    re.IGNORECASE,
)
_THROTTLED = re.compile(
    r"rate[ _-]?limit|throttl|quota|too many requests|\bper[ -]?(?:second|minute|min|hour|day|month)\b"
    r"|\b(?:tpm|rpm|tpd|rpd|itpm|otpm)\b|try again (?:in|later)|retry after|please wait|billing|credits?\b|concurren",
    re.IGNORECASE,
)
_PACED = re.compile(r"\bper[ -]?(?:second|minute|min|hour|day|month)\b|\b(?:tpm|rpm|tpd|rpd|itpm|otpm)\b", re.IGNORECASE)
_CONTEXT = re.compile(r"context[ _-]?(?:length|window|size|limit)", re.IGNORECASE)
_NUMBER = re.compile(r"\d{3,}")
_CREDITS = re.compile(
    r"insufficient (?:balance|credits?|quota|funds)|credit balance is too low|exceeded your current quota"
    r"|out of credits|not enough credits|requires more credits",
    re.IGNORECASE,
)
_SECRET = re.compile(r"bearer\s+\S+|\b(?:sk|pk|rk|key|xai|gsk|api)[-_][A-Za-z0-9_*.\-]{6,}|AIza[\w-]{10,}", re.IGNORECASE)


def is_context_overflow(status: int | None, code: str | None, message: str) -> bool:
    """Whether a provider says that the prompt does not fit the model's window.

    Throttling speaks of too many tokens as well: where its words stand, only a message that names the context and two
    amounts, and no span of time, is an overflow. An output limit that is too high is none.
    """
    if status in (401, 403, 404):
        return False
    if code is not None and code.lower() in _OVERFLOW_CODES:
        return True
    if _THROTTLED.search(message):
        amounts = len(_NUMBER.findall(message)) >= 2
        return amounts and bool(_CONTEXT.search(message)) and not _PACED.search(message)
    return status == 413 or _OVERFLOW.search(message) is not None


def retry_after_seconds(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """What `retry-after-ms` or `Retry-After` (seconds or a date) asks for, never negative; None when neither is usable."""
    milliseconds = _amount(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _amount(value)
    if seconds is not None or not value:
        return seconds
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())


def _amount(text: str | None) -> float | None:
    try:
        amount = float(text or "")
    except ValueError:
        return None
    return max(0.0, amount) if math.isfinite(amount) else None


def http_error(status: int, headers: Mapping[str, str], body: bytes, secrets: Iterable[str] = ()) -> ProviderError:
    """The error of an answer with an error status; `headers` must be looked up without regard to case."""
    facts = _facts_of(_parsed(body))
    facts = _Facts(facts.codes, facts.message or _plain_text(body), facts.hidden, status)
    return _error(facts, secrets, retry_after_seconds(headers))


def in_band_error(error: Any, secrets: Iterable[str] = ()) -> ProviderError:
    """The error that stood inside an answer with status 200: an object, or a text."""
    return _error(_facts_of(error), secrets, None)


@dataclass(frozen=True, slots=True)
class _Facts:
    """`hidden` is read for the kind but never shown."""

    codes: frozenset[str] = frozenset()
    message: str = ""
    hidden: str = ""
    status: int | None = None


def _facts_of(value: Any) -> _Facts:
    """What can be read from any of the shapes that errors come in."""
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, str):
        return _Facts(message=value)
    if not isinstance(value, dict):
        return _Facts()
    inner = next((value[key] for key in ("error", "errors", "detail") if value.get(key)), None)
    if inner is not None and not (isinstance(value.get("message"), str) and value["message"]):
        return _facts_of(inner)
    words = [value.get(key) for key in ("code", "type", "status")]
    statuses = [int(word) for word in words if type(word) is int or (isinstance(word, str) and word.isdecimal())]
    metadata = value.get("metadata")
    message = value.get("message") or value.get("msg")
    return _Facts(
        codes=frozenset(word.lower() for word in words if isinstance(word, str) and word),
        message=message if isinstance(message, str) else "",
        hidden=str(metadata.get("raw", "")) if isinstance(metadata, dict) else "",
        status=next((status for status in statuses if 400 <= status <= 599), None),
    )


def _error(facts: _Facts, secrets: Iterable[str], retry_after: float | None) -> ProviderError:
    kind = _kind(facts)
    said = _shown(facts.message, secrets)
    status = f" ({facts.status})" if facts.status else ""
    if kind is ProviderErrorKind.AUTH and facts.status != 403:
        said = ""
    text = f"{_WORDS[kind]}{status}: {said}" if said else f"{_WORDS[kind]}{status}."
    return ProviderError(kind, text, status=facts.status, retry_after_seconds=retry_after)


_WORDS = {
    ProviderErrorKind.UNAVAILABLE: "The provider is unavailable",
    ProviderErrorKind.REJECTED: "The provider rejected the request",
    ProviderErrorKind.AUTH: "The provider refused the credentials",
    ProviderErrorKind.OVERFLOW: "The prompt does not fit the model's context window",
}


def _kind(facts: _Facts) -> ProviderErrorKind:
    text = f"{facts.message[:_READ_CHARS]} {facts.hidden[:_READ_CHARS]}"
    if facts.codes & _CREDIT_CODES or (facts.status != 401 and _CREDITS.search(text)):
        return ProviderErrorKind.UNAVAILABLE
    if any(is_context_overflow(facts.status, code, text) for code in (facts.codes or {None})):
        return ProviderErrorKind.OVERFLOW
    if facts.codes & _BUSY_CODES:
        return ProviderErrorKind.UNAVAILABLE
    if facts.status is not None:
        return _kind_of_status(facts.status)
    if facts.codes & _AUTH_CODES:
        return ProviderErrorKind.AUTH
    return ProviderErrorKind.REJECTED if facts.codes & _REJECTED_CODES else ProviderErrorKind.UNAVAILABLE


def _kind_of_status(status: int) -> ProviderErrorKind:
    if status in (401, 403):
        return ProviderErrorKind.AUTH
    if status >= 500 or status in _RETRIED_STATUSES:
        return ProviderErrorKind.UNAVAILABLE
    return ProviderErrorKind.REJECTED


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _plain_text(body: bytes) -> str:
    """The body as words, where it is meant to be read: no page and no JSON."""
    text = body[:2000].decode("utf-8", "replace").strip()
    return "" if text.startswith(("<", "{", "[")) else text


def _shown(message: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            message = message.replace(secret, "[secret]")
    message = _SECRET.sub("[secret]", " ".join(clean_text(message[: 4 * MAX_MESSAGE_CHARS]).split()))
    return message if len(message) <= MAX_MESSAGE_CHARS else message[:MAX_MESSAGE_CHARS] + "…"
