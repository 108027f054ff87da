"""Registered tools: webhooks in the caller's application."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import BaseModel

from app.bodies import body
from app.infra.crypto import Crypto
from app.infra.errors import Invalid
from app.outbound.address_guard import AddressGuard, RefusedAddress
from app.outbound.headers import check_headers
from app.shapes import Listing
from app.tools import repository
from app.tools.models import TOOL_NAME, ToolPut, ToolRead, tool_json
from app.tools.schema import compile_schema
from app.tools.trial import ToolTrial, TrialRead, try_tool
from app.web import Db, Idempotent, Paged, Service, json_response, listed, pool

router = APIRouter(prefix="/v1", tags=["tools"])

NewName = Annotated[str, Path(pattern=TOOL_NAME)]


async def _tool(request: Request, name: str) -> Any:
    return await repository.find(pool(request), request.state.caller.workspace_id, name)


ToolInPath = Annotated[Any, Depends(_tool)]
"""The record of the tool that the path names. Must stand after the caller."""


class RotatedSecret(BaseModel):
    secret: str


def _crypto(request: Request) -> Crypto:
    found: Crypto = request.app.state.crypto
    return found


@router.put("/tools/{name}", response_model=ToolRead, responses={201: {"model": ToolRead}})
async def put_tool(
    request: Request, caller: Service, name: NewName, wanted: Annotated[ToolPut, body(ToolPut)], db: Db
) -> Response:
    await _check(request.app.state.address_guard, wanted)
    compile_schema(wanted.parameters)
    values = wanted.model_dump()
    values["headers"] = check_headers(wanted.headers or {})
    crypto = _crypto(request)
    row, secret = await repository.put(db, crypto, caller.workspace_id, name, values)
    shown = tool_json(row, sorted(wanted.headers or {}), secret)
    return json_response(shown, 200 if secret is None else 201)


async def _check(guard: AddressGuard, wanted: ToolPut) -> None:
    if wanted.kind == "client":
        if wanted.url is not None:
            raise _invalid("url", "a client tool has none")
        return
    if wanted.url is None:
        raise _invalid("url", "a webhook needs one")
    try:
        await guard.check_resolved(wanted.url)
    except RefusedAddress as error:
        raise _invalid("url", str(error)) from None


def _invalid(field: str, reason: str) -> Invalid:
    return Invalid(f"{field}: {reason}.", errors=[(("body", field), reason)])


@router.get("/tools", response_model=Listing[ToolRead])
async def list_tools(request: Request, caller: Service, page: Paged, db: Db) -> Response:
    rows, cursor = page.cut(await repository.list_tools(db, caller.workspace_id, page), repository.cursor_of)
    return listed([_shown(request, row) for row in rows], cursor)


@router.get("/tools/{name}", response_model=ToolRead)
async def get_tool(request: Request, caller: Service, name: str, db: Db) -> Response:
    return json_response(_shown(request, await repository.get(db, caller.workspace_id, name)))


def _shown(request: Request, row: Any) -> dict[str, Any]:
    return tool_json(row, sorted(repository.open_headers(_crypto(request), row)))


@router.delete("/tools/{name}", status_code=204)
async def delete_tool(caller: Service, name: str, db: Db) -> None:
    await db.delete(await repository.get(db, caller.workspace_id, name))


@router.post("/tools/{name}/test", response_model=TrialRead)
async def test_tool(
    request: Request, caller: Service, tool: ToolInPath, wanted: Annotated[ToolTrial, body(ToolTrial)]
) -> Response:
    return json_response(await try_tool(_crypto(request), request.app.state.sender, tool, wanted))


@router.post("/tools/{name}/rotate-secret", response_model=RotatedSecret)
async def rotate_secret(request: Request, caller: Service, name: str, once: Idempotent, db: Db) -> Response:
    row = await repository.get(db, caller.workspace_id, name)

    async def make() -> RotatedSecret:
        return RotatedSecret(secret=await repository.rotate_secret(db, _crypto(request), row))

    return await once.create(db, make, 200)
