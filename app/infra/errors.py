"""The tree of errors that a caller can meet. Each has a status, a stable code, a title; `problems.py` makes HTTP of them.

    RondoError                 500 internal
    ├── BadRequest             400 bad_request
    ├── Unauthenticated        401 unauthenticated
    ├── Forbidden              403 forbidden
    ├── NotFound               404 not_found
    ├── Conflict               409 (code names it: run_in_progress, idempotency_in_progress, …)
    ├── TooLarge               413 too_large
    ├── UnsupportedMediaType   415 unsupported_media_type
    ├── Invalid                422 invalid_request, or a code that names it; `errors` lists the places
    ├── TooMany                429 capacity, with Retry-After: a limit of this key, session or workspace
    └── Unavailable            503 capacity, with Retry-After: a limit of the service

`LeaseLost` is not in the tree: no caller sees it. It ends the work of an owner that no longer owns a run.
"""

from collections.abc import Mapping, Sequence
from typing import Any


class RondoError(Exception):
    """`detail` is for the caller; `extra` adds members to the problem document; `headers` go out with it."""

    status = 500
    code = "internal"
    title = "Internal error"

    def __init__(
        self,
        detail: str = "",
        *,
        code: str | None = None,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or self.code
        self.extra = dict(extra or {})
        self.headers = dict(headers or {})


class BadRequest(RondoError):
    status, code, title = 400, "bad_request", "Bad request"


class Unauthenticated(RondoError):
    status, code, title = 401, "unauthenticated", "Unauthenticated"

    def __init__(self, detail: str = "A valid key is needed: Authorization: Bearer KEY.") -> None:
        super().__init__(detail, headers={"WWW-Authenticate": "Bearer"})


class Forbidden(RondoError):
    status, code, title = 403, "forbidden", "Forbidden"


class NotFound(RondoError):
    status, code, title = 404, "not_found", "Not found"

    def __init__(self, detail: str = "There is no such thing here.") -> None:
        super().__init__(detail)


class Conflict(RondoError):
    status, code, title = 409, "conflict", "Conflict"


class TooLarge(RondoError):
    status, code, title = 413, "too_large", "Too large"


class UnsupportedMediaType(RondoError):
    status, code, title = 415, "unsupported_media_type", "Unsupported media type"


class Invalid(RondoError):
    status, code, title = 422, "invalid_request", "Invalid request"

    def __init__(
        self,
        detail: str = "The request is not valid.",
        *,
        code: str | None = None,
        errors: Sequence[tuple[Sequence[str | int], str]] = (),
    ) -> None:
        listed = [{"loc": list(loc), "msg": msg} for loc, msg in errors] or [{"loc": [], "msg": detail}]
        super().__init__(detail, code=code, extra={"errors": listed})


class TooMany(RondoError):
    status, code, title = 429, "capacity", "Too many"

    def __init__(self, detail: str, *, retry_after_seconds: int) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after_seconds)})


class Unavailable(RondoError):
    status, code, title = 503, "capacity", "At capacity"

    def __init__(self, detail: str, *, retry_after_seconds: int) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after_seconds)})


class LeaseLost(Exception):
    """A write was refused, since this process no longer owns the run. Stop, and touch nothing more."""
