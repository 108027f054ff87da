"""All that is kept within some axes: export it, erase it."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel
from starlette.responses import StreamingResponse

from app.erasure import service
from app.infra.errors import Invalid
from app.scope import Reference
from app.shapes import JsonObject
from app.web import Axes, HotDb, Service, json_response

router = APIRouter(prefix="/v1", tags=["data"])


class Erased(BaseModel):
    """How many rows of each store were erased."""

    deleted: dict[str, int]


class Exported(BaseModel):
    """The rows of each store."""

    data: dict[str, list[JsonObject]]


async def _named(axes: Axes) -> dict[str, Reference | None]:
    """Raises Invalid where no axis names anything: that would be the whole workspace."""
    if not any(axes.values()):
        places = [(("query", name), "one of the three is needed, as TYPE:ID") for name in ("tenant", "subject", "member")]
        raise Invalid("Name a tenant, a subject or a member.", code="scope_required", errors=places)
    return axes


Named = Annotated[dict[str, Reference | None], Depends(_named)]


@router.get("/data", response_model=Exported)
async def export_data(request: Request, caller: Service, axes: Named, hot: HotDb) -> Response:
    exported = service.export(hot, request.app.state.vaults, caller.workspace_id, axes)
    return StreamingResponse(exported, media_type="application/json")


@router.delete("/data", response_model=Erased)
async def erase_data(
    request: Request, caller: Service, axes: Named, hot: HotDb, confirm: Annotated[str | None, Query()] = None
) -> Response:
    if set(axes) == {"tenant"} and confirm != "tenant":
        places = [(("query", "confirm"), "must be 'tenant' where only a tenant is named")]
        raise Invalid("This erases a whole tenant.", code="confirmation_required", errors=places)
    state: Any = request.app.state
    return json_response({"deleted": await service.erase(hot, state.runs, state.crypto, caller.workspace_id, axes)})
