"""How errors become problem documents (RFC 9457). Nothing else tells a caller what went wrong."""

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app.infra.errors import BadRequest, Invalid, NotFound, RondoError


def problem(error: RondoError) -> Response:
    document = {
        "type": f"urn:rondo:problem:{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail or error.title,
        "code": error.code,
        **error.extra,
    }
    return Response(orjson.dumps(document), error.status, error.headers, media_type="application/problem+json")


async def on_rondo_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RondoError)
    return problem(error)


async def on_invalid_parameters(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem(Invalid(errors=[(item["loc"], item["msg"]) for item in error.errors()]))


async def on_http_exception(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return problem(NotFound())
    known = BadRequest(error.detail, code="method_not_allowed" if error.status_code == 405 else None)
    known.status, known.title = error.status_code, str(error.detail)
    known.headers.update(error.headers or {})
    return problem(known)
