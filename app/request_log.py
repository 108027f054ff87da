"""The two outer layers of the application. Neither ever tells a query: an `access_token` may stand in it.

`RequestLog` is the outermost: an id for every request, a line and a count for every answer, and the headers that keep a
browser from taking an answer for more than it is. `Failures` makes a problem of what nobody foresaw; it stands inside the
layer for other origins, so that their pages can read it too.
"""

import asyncio
import time

import structlog
from fastapi import Response
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.infra import ids, tracing
from app.infra.errors import RondoError, Unavailable
from app.infra.reach import is_out_of_reach
from app.infra.telemetry import REQUEST_SECONDS, REQUESTS, log
from app.problems import problem

SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""On every answer that does not say otherwise itself."""

_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"})
_AWAY = Unavailable("The service cannot reach its database or its event log just now.", retry_after_seconds=2)
_GOING = Unavailable("This process is going down.", retry_after_seconds=1)
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked every few seconds by machines: told at level debug only."""


class RequestLog:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["request_id"] = request_id = ids.new("req_")
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        started, status, head_seconds = time.monotonic(), 0, 0.0

        async def send_with_headers(message: Message) -> None:
            nonlocal status, head_seconds
            if message["type"] == "http.response.start":
                status, head_seconds = message["status"], time.monotonic() - started
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            with tracing.continued(scope["headers"]):
                await self._app(scope, receive, send_with_headers)
        finally:
            milliseconds = round((time.monotonic() - started) * 1000, 1)
            tell = log.debug if scope["path"] in _QUIET else log.info
            tell("request", method=scope["method"], path=scope["path"], status=status, milliseconds=milliseconds)
            _count(scope, status, head_seconds)


def _count(scope: Scope, status: int, head_seconds: float) -> None:
    """By the route's template, never by what stood in the path, so that there are no more series than routes."""
    method = scope["method"] if scope["method"] in _METHODS else "other"
    route = getattr(scope.get("route"), "path_format", "none")
    REQUESTS.labels(method, route, str(status)).inc()
    if status:
        REQUEST_SECONDS.labels(method, route).observe(head_seconds)


class Failures:
    """A bare 500 (or 503, where the database or Redis is out of reach): the log has the rest, under the request's id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except ClientDisconnect:
            log.info("client_gone", method=scope["method"], path=scope["path"])
        except asyncio.CancelledError:  # the process is going down and cannot wait any longer
            if not has_begun:
                await problem(_GOING)(scope, receive, send)
            raise
        except Exception as error:
            away = is_out_of_reach(error)
            told = {"away": type(error).__name__} if away else {"exc_info": error}
            log.error("request_failed", method=scope["method"], path=scope["path"], **told)
            if has_begun:
                raise
            await self._answer(scope, away)(scope, receive, send)

    @staticmethod
    def _answer(scope: Scope, away: bool) -> Response:
        request_id = scope["request_id"]
        return problem(_AWAY if away else RondoError(f"Something went wrong here. The request was {request_id}."))
