"""The headers that a caller wants sent (with a webhook, to a provider): checked at registration, so that every call can
send them.

No text here ever shows a value, which may be a secret.
"""

import re
from collections.abc import Mapping
from typing import Any

from app.infra.errors import Invalid

MAX_HEADERS = 30
MAX_NAME_CHARS = 100
MAX_VALUE_CHARS = 4_000
MAX_TOTAL_CHARS = 16_000
PLACE = ("body", "headers")

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_RESERVED = frozenset(
    {
        "host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection", "keep-alive",
        "te", "trailer", "upgrade", "expect", "accept", "accept-encoding", "user-agent", "idempotency-key",
    }
)  # fmt: skip
_RESERVED_BEGINNINGS = ("webhook-", "rondo-", "proxy-", "sec-")


def check_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """The same headers, if all of them can be sent as they are; raises `Invalid`, which names each that cannot."""
    if len(headers) > MAX_HEADERS:
        raise Invalid(errors=[(PLACE, f"at most {MAX_HEADERS} headers are allowed")])
    seen: set[str] = set()
    problems: list[tuple[tuple[str, ...], str]] = []
    for name, value in headers.items():
        problem = _problem(name, value)
        if problem is None and name.lower() in seen:
            problem = "the header is given twice"
        seen.add(name.lower())
        if problem is not None:
            problems.append(((*PLACE, name[:MAX_NAME_CHARS]), problem))
    if sum(len(name) + len(str(value)) for name, value in headers.items()) > MAX_TOTAL_CHARS:
        problems.append((PLACE, f"all headers together may have {MAX_TOTAL_CHARS} characters"))
    if problems:
        raise Invalid(errors=problems)
    return dict(headers)


def _problem(name: str, value: Any) -> str | None:
    if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        return f"a header's name has 1 to {MAX_NAME_CHARS} ASCII letters, digits and -"
    if name.lower() in _RESERVED or name.lower().startswith(_RESERVED_BEGINNINGS):
        return "this header is set by Rondo"
    if not isinstance(value, str) or not value:
        return "the value must be a string that is not empty"
    if len(value) > MAX_VALUE_CHARS:
        return f"the value is longer than {MAX_VALUE_CHARS} characters"
    if not _VALUE.fullmatch(value):
        return "the value may hold printable ASCII characters only, no line breaks"
    if value.strip() != value:
        return "the value begins or ends with a space"
    return None
