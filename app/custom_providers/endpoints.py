"""Providers of a workspace, used as `NAME/MODEL`."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from app.bodies import body
from app.custom_providers import repository
from app.custom_providers.models import PROVIDER_NAME, CustomProvider, ProviderPut, ProviderRead, provider_json
from app.infra.errors import Invalid
from app.outbound.address_guard import RefusedAddress
from app.outbound.headers import check_headers
from app.providers.catalog import BUILT_IN, reserved_option
from app.shapes import Listing
from app.web import Db, Paged, Service, json_response, listed

router = APIRouter(prefix="/v1", tags=["providers"])

NewName = Annotated[str, Path(pattern=PROVIDER_NAME)]


@router.put("/providers/{name}", response_model=ProviderRead, responses={201: {"model": ProviderRead}})
async def put_provider(
    request: Request, caller: Service, name: NewName, wanted: Annotated[ProviderPut, body(ProviderPut)], db: Db
) -> Response:
    if name in BUILT_IN:
        raise _invalid(("path", "name"), f"'{name}' is there from the start")
    if (option := reserved_option(wanted.kind, wanted.options or {})) is not None:
        raise _invalid(("body", "options", option), "is the loop's own")
    check_headers(wanted.headers or {})
    try:
        await request.app.state.address_guard.check_resolved(wanted.base_url)
    except RefusedAddress as error:
        raise _invalid(("body", "base_url"), str(error)) from None
    row, is_new = await repository.put(db, request.app.state.crypto, caller.workspace_id, name, wanted)
    return json_response(_shown(request, row), 201 if is_new else 200)


@router.get("/providers", response_model=Listing[ProviderRead])
async def list_providers(request: Request, caller: Service, page: Paged, db: Db) -> Response:
    rows, cursor = page.cut(await repository.list_providers(db, caller.workspace_id, page), lambda row: row.name)
    return listed([_shown(request, row) for row in rows], cursor)


@router.delete("/providers/{name}", status_code=204)
async def delete_provider(caller: Service, name: str, db: Db) -> None:
    await db.delete(await repository.get(db, caller.workspace_id, name))


def _shown(request: Request, row: CustomProvider) -> dict[str, Any]:
    return provider_json(row, repository.header_names(request.app.state.crypto, row))


def _invalid(place: tuple[str, ...], reason: str) -> Invalid:
    return Invalid(f"{place[-1]}: {reason}.", errors=[(place, reason)])
