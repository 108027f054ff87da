"""What an endpoint may ask for.

Dependencies run in the order of an endpoint's parameters, and the body is one of them: so a caller is judged first, then
the thing in the path is looked up, then the body is read and judged.
"""

import base64
import binascii
import math
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import orjson
from fastapi import Depends, Query, Request, Response
from pydantic import BaseModel
from sqlmodel.ext.asyncio.session import AsyncSession

from app.idempotency import Idempotency, check_key
from app.infra.crypto import fingerprint
from app.infra.database import Connection, Database, Pool, driver_connection
from app.infra.errors import (
    Forbidden,
    Invalid,
    NotFound,
    TooMany,
    Unauthenticated,
)
from app.infra.telemetry import REFUSALS
from app.infra.token_bucket import TokenBuckets
from app.limits import StreamPlace
from app.scope import Reference, parse_axes

Kind = Literal["admin", "service", "client"]
Can = Literal["read", "run"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. An admin has no workspace; a client token is good for one session and for what it `can`."""

    kind: Kind
    workspace_id: str
    session_id: str | None = None
    can: tuple[str, ...] = ()

    def may_see_session(self, session_id: str | None) -> bool:
        return self.kind != "client" or self.session_id == session_id


Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Authenticate = Callable[[str], Awaitable[Caller | None]]


# ---- callers


def callers(*kinds: Kind, can: Can | None = None, in_query: bool = False) -> Any:
    """Who may use a route. A route that does not say so keeps the service from starting (`main.create_app`)."""

    async def judge(request: Request) -> Caller:
        caller, key = await _authenticated(request, in_query)
        await _spend_token(request, key)
        if caller.kind not in kinds or (caller.kind == "client" and can is not None and can not in caller.can):
            raise Forbidden("This kind of key may not do that.")
        if "\x00" in request.scope["path"]:
            raise NotFound()
        if named := [name for name, value in request.query_params.items() if "\x00" in value]:
            raise Invalid(errors=[(("query", name), "the character NUL") for name in named])
        request.state.caller = caller
        return caller

    judge.allowed_kinds = kinds  # type: ignore[attr-defined]
    return Depends(judge)


def public(endpoint: Endpoint) -> Endpoint:
    """Mark a route that asks for no key."""
    endpoint.is_public = True  # type: ignore[attr-defined]
    return endpoint


async def _authenticated(request: Request, in_query: bool) -> tuple[Caller, str]:
    """The caller and its key."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        key = request.query_params.get("access_token", "") if in_query else ""
    authenticate: Authenticate = request.app.state.authenticate
    caller = await authenticate(key.strip()) if key.strip() else None
    if caller is None:
        raise Unauthenticated()
    return caller, key.strip()


async def _spend_token(request: Request, key: str) -> None:
    """Raises TooMany for a key that asks too often; for a POST that may be a repeated one `Once` judges that."""
    buckets: TokenBuckets | None = request.app.state.buckets
    seconds = 0.0 if buckets is None else await buckets.spend(fingerprint(key).hex()[:32])
    if not seconds:
        return
    refusal = TooMany("This key asks more often than it may.", retry_after_seconds=math.ceil(seconds))
    if "idempotency-key" not in request.headers or not request.scope["endpoint"].may_be_repeated:
        REFUSALS.labels("rate").inc()
        raise refusal
    request.state.refusal = refusal


Admin = Annotated[Caller, callers("admin")]
Service = Annotated[Caller, callers("service")]
Reader = Annotated[Caller, callers("service", "client", can="read")]
Starter = Annotated[Caller, callers("service", "client", can="run")]
Follower = Annotated[Caller, callers("service", "client", in_query=True)]


# ---- database


def database(request: Request) -> Database:
    found: Database = request.app.state.database
    return found


def pool(request: Request) -> Pool:
    return database(request).pool


async def _transaction(request: Request) -> AsyncIterator[AsyncSession]:
    async with database(request).transaction() as db:
        yield db


Db = Annotated[AsyncSession, Depends(_transaction, scope="function")]
"""A transaction that is committed before the answer leaves."""


async def _hot(request: Request) -> Pool:
    return pool(request)


HotDb = Annotated[Pool, Depends(_hot)]
"""The asyncpg pool, for statements that are a transaction each."""


# ---- idempotency


class Once:
    """Answers a repeated POST with what the first one answered."""

    def __init__(self, idempotency: Idempotency | None) -> None:
        self.idempotency = idempotency

    async def create(self, db: AsyncSession, make: Callable[[], Awaitable[Any]], status: int = 201) -> Response:
        """Run `make` in the transaction `db` and keep its JSON with it, or give the first answer again."""
        if self.idempotency is None:
            return _made(await make(), status)
        connection = await driver_connection(db)

        async def make_and_flush(_: Connection) -> Any:
            made = await make()
            await db.flush()
            return made

        return await self._create(self.idempotency, connection, make_and_flush, status)

    async def create_hot(
        self, hot: Pool, make: Callable[[Connection | Pool], Awaitable[Any]], status: int = 201
    ) -> Response:
        """The same on the asyncpg pool: without a key, what `make` does there is a transaction of its own."""
        if self.idempotency is None:
            return _made(await make(hot), status)
        async with hot.acquire() as connection, connection.transaction():
            return await self._create(self.idempotency, connection, make, status)

    @staticmethod
    async def _create(
        idempotency: Idempotency, connection: Connection, make: Callable[[Connection], Awaitable[Any]], status: int
    ) -> Response:
        row = await idempotency.find(connection, wait=False)
        if row is not None:
            first_status, answer = idempotency.answer(row)
            headers = {"Idempotent-Replayed": "true"}
            return Response(answer, first_status, headers, media_type="application/json")
        response = _made(await make(connection), status)
        await idempotency.keep_answer(connection, response.status_code, bytes(response.body))
        return response


def _made(value: Any, status: int) -> Response:
    """What was made, unless it is an answer already: one that found it made before has another status."""
    return value if isinstance(value, Response) else json_response(value, status)


async def _once(request: Request) -> Once:
    header = request.headers.get("idempotency-key")
    if header is None:
        return Once(None)
    caller: Caller = request.state.caller
    who = caller.kind if caller.session_id is None else f"client:{caller.session_id}"
    content = getattr(request.state, "body", None)
    scope = f"{who} {request.url.path}"
    idempotency = Idempotency(caller.workspace_id, scope, check_key(header), content, request.app.state.crypto)
    refusal: TooMany | None = getattr(request.state, "refusal", None)
    if refusal is not None and not await idempotency.is_known(pool(request)):
        REFUSALS.labels("rate").inc()
        raise refusal
    return Once(idempotency)


_once.takes_key = True  # type: ignore[attr-defined]
Idempotent = Annotated[Once, Depends(_once)]
"""Must stand after the caller and the body in an endpoint's parameters."""


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return Response(orjson.dumps(value), status, headers, media_type="application/json")


# ---- streams


async def _stream_place(request: Request) -> AsyncIterator[StreamPlace]:
    caller: Caller = request.state.caller
    place = StreamPlace(request.app.state.stream_places, caller.workspace_id)
    try:
        yield place
    finally:
        place.give_back()


Streaming = Annotated[StreamPlace, Depends(_stream_place, scope="request")]
"""`take()` it before anything is begun that will answer with a stream; given back after the last byte."""


# ---- lists


@dataclass(frozen=True, slots=True)
class Page:
    """At most `limit` rows after `cursor`, which is what the last row of the page before was. `mark` tells lists apart."""

    limit: int
    cursor: str | None
    mark: str

    def cut(self, rows: list[Any], key: Callable[[Any], str | int]) -> tuple[list[Any], str | None]:
        """`rows` were read one more than `limit`: the page, and the cursor of the next one if there is one."""
        if len(rows) <= self.limit:
            return rows, None
        return rows[: self.limit], _as_cursor(self.mark + str(key(rows[self.limit - 1])))


def _as_cursor(value: str) -> str:
    return base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")


async def _page(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    after: Annotated[str | None, Query(max_length=200)] = None,
) -> Page:
    mark = f"{zlib.crc32(request.url.path.encode()):08x}"
    if after is None:
        return Page(limit, None, mark)
    try:
        text = base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        text = ""
    if not text.startswith(mark) or not text.isprintable():
        raise Invalid("That is no cursor.", errors=[(("query", "after"), "not a cursor of this list")])
    return Page(limit, text.removeprefix(mark), mark)


Paged = Annotated[Page, Depends(_page)]


async def _axes(
    tenant: str | None = None, subject: str | None = None, member: str | None = None
) -> dict[str, Reference | None]:
    return parse_axes({"tenant": tenant, "subject": subject, "member": member})


Axes = Annotated[dict[str, Reference | None], Depends(_axes)]
"""The axes that a list is filtered by, `TYPE:ID` each; `null` is the absence of that axis."""


def listed(data: Any, next_cursor: str | None) -> Response:
    return json_response({"data": data, "next": next_cursor})
